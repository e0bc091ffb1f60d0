"""A member whose next roster cannot be built goes on in the one in effect while the leader may still plan without the newcomer."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar, cast

import pytest

from stretto.core.errors import Broken
from stretto.core.journal import JournalEvent
from stretto.core.messages import HaltedMessage, PreparedMessage, RosterMessage, ToAgent
from stretto.core.roster import Member, Roster
from stretto.core.slices import Span
from stretto.train.entry.agent_channel import AgentChannel
from stretto.train.membership import NEWCOMERS_S, Membership
from stretto.train.reduce.process_group import ProcessGroup, Rendezvous

GUARD_S = 60.0
T = TypeVar("T")


class Said:
    """The agent's end of a link, as far as a team uses it: what was said, in order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[ToAgent] = queue.Queue()

    def send(self, message: ToAgent) -> None:
        self.messages.put(message)

    def until(self, kind: type[T]) -> T:
        while True:
            message = self.messages.get(timeout=GUARD_S)
            if isinstance(message, kind):
                return message


def newcomer(pipe: Connection) -> None:
    """Builds its side of the plan's group, and breaks off."""
    rendezvous = Rendezvous("127.0.0.1")
    pipe.send(rendezvous.address)
    ProcessGroup(Roster.from_dict(pipe.recv()), "w1", rendezvous)
    os._exit(1)


@pytest.fixture
def member() -> Iterator[tuple[Membership, Said, Roster]]:
    """A team that trains in roster 1, hears of a plan with a newcomer, and cannot finish its group."""
    said = Said()
    team = Membership("w0", channel=cast(AgentChannel, said))
    alone = Roster(1, (Member("w0", "a", team.address, Span(0, 8)),))
    team.group = ProcessGroup(alone, "w0", Rendezvous("127.0.0.1"))
    team.seat.enter(alone, tick=3)
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=newcomer, args=(theirs,), daemon=True)
    process.start()
    broke_off: queue.Queue[bool] = queue.Queue()

    def introduce(_: object, roster: Roster, *__: object) -> None:
        if roster.number == 2:
            broke_off.put(True)
            raise Broken("the newcomer broke off")

    team.introduce = introduce
    members = (Member("w0", "a", team.address, Span(0, 4)), Member("w1", "a", ours.recv(), Span(4, 8)))
    plan = Roster(2, members, base=1, joined=("w1",))
    ours.send(plan.to_dict())
    team.handle(RosterMessage(plan))
    assert broke_off.get(timeout=GUARD_S)
    yield team, said, plan
    process.kill()
    process.join()


def wait(true: Callable[[], bool]) -> None:
    until = time.monotonic() + GUARD_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_plan_without_the_newcomer_costs_the_member_nothing(member: tuple[Membership, Said, Roster]) -> None:
    team, said, plan = member
    shrunk = Roster(3, (plan.members[0],), base=1)
    team.handle(RosterMessage(shrunk))
    assert said.until(PreparedMessage).number == 3
    assert team.seat.roster is not None and team.seat.roster.number == 1
    assert team.seat.halted == 0, "the roster in effect was broken for a newcomer that the leader had already given up"


def test_a_member_breaks_the_roster_when_the_leader_says_nothing(member: tuple[Membership, Said, Roster]) -> None:
    team, said, plan = member
    assert NEWCOMERS_S < GUARD_S
    assert "broke off" in said.until(JournalEvent).text
    assert said.until(HaltedMessage).number == plan.number
    wait(lambda: team.seat.roster is None)
