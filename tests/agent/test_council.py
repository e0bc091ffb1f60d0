"""The agent's part in the leadership, on a real embedded store, with statuses told by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stretto.agent.coordination import Coordination, ScaleRequest
from stretto.core.roster import Roster
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.store import StoreError
from stretto.membership.timeouts import Timeouts
from stretto.membership.worker_status import Phase, WorkerStatus


@dataclass
class Notes:
    """A floor that writes everything down."""

    said: list[tuple[Any, ...]] = field(default_factory=list)
    rosters: list[Roster] = field(default_factory=list)

    def balance(self) -> None:
        self.said.append(("balance",))

    def publish(self, roster: Roster) -> None:
        self.rosters.append(roster)
        self.said.append(("publish", roster.number))

    def halt(self, number: int, reason: str) -> None:
        self.said.append(("halt", number, reason))

    def dismiss(self, worker: str, reason: str) -> None:
        self.said.append(("dismiss", worker, reason))

    def finish(self) -> None:
        self.said.append(("finish",))

    def lost(self) -> None:
        self.said.append(("lost",))

    def fail(self, reason: str, *, traceback: str = "", exit_code: int = 1) -> None:
        self.said.append(("fail", reason))

    def asked_to_stop(self, *, now: bool) -> None:
        self.said.append(("stop", now))

    def asked_to_leave(self) -> None:
        self.said.append(("leave",))

    def ended(self, document: dict[str, Any]) -> None:
        self.said.append(("ended", document))

    def ousted(self, reason: str) -> None:
        self.said.append(("ousted", reason))

    def compare(self) -> None:
        self.said.append(("compare",))

    def changed(self) -> None: ...

    def fence(self) -> None:
        self.said.append(("fence",))

    def heard(self, *what: str) -> list[tuple[Any, ...]]:
        return [one for one in self.said if one[0] in what]


def worker(name: str, order: int, **fields: Any) -> WorkerStatus:
    return WorkerStatus(name, "a0", Phase.READY, order, address=("127.0.0.1", 1), slices=8, shape="same", **fields)


def play(story: Callable[[Coordination, Notes], Awaitable[None]], *, least: int = 1, most: int = 4, wanted: int = 2) -> Notes:
    notes = Notes()

    async def run() -> None:
        council = Coordination(notes, EmbeddedStore(), agent="a0", slots=most, asked=ScaleRequest(least, most, wanted))
        await council.open()
        try:
            await asyncio.wait_for(story(council, notes), 60)
        finally:
            await council.close()

    asyncio.run(run())
    return notes


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def training(council: Coordination, notes: Notes) -> list[WorkerStatus]:
    """Two members of roster 1."""
    members = [worker("w0", 0), worker("w1", 1)]
    for one in members:
        council.tell(one)
    await until(lambda: notes.rosters)
    roster = notes.rosters[-1]
    if len(roster.members) < 2:
        council.tell(replace(members[0], phase=Phase.MEMBER, roster=roster.number, tick=0))
        await until(lambda: len(notes.rosters) == 2)
        roster = notes.rosters[-1]
    members = [replace(one, phase=Phase.MEMBER, roster=roster.number, tick=0) for one in members]
    for one in members:
        council.tell(one)
    await until(lambda: council.settled)
    return members


def test_the_agent_is_told_how_many_workers_to_run() -> None:
    async def story(council: Coordination, notes: Notes) -> None:
        await until(lambda: council.target == 2)
        council.want(4)
        assert council.wanted == 4
        await until(lambda: council.target == 4)

    assert play(story).heard("balance")


def test_a_death_breaks_the_roster_and_the_survivor_is_rescued() -> None:
    async def story(council: Coordination, notes: Notes) -> None:
        first, second = await training(council, notes)
        number = notes.rosters[-1].number
        council.tell(replace(second, phase=Phase.GONE))
        await until(lambda: notes.heard("halt"))
        assert notes.heard("halt")[0][1] == number
        assert notes.rosters[-1].number == number, "nobody is rescued before all survivors have stopped"
        council.tell(replace(first, halted=number, tick=5))
        await until(lambda: notes.rosters[-1].number > number)

    notes = play(story)
    assert notes.rosters[-1].rescue
    assert (notes.rosters[-1].workers, notes.rosters[-1].tick) == (("w0",), 5)


def test_a_worker_of_another_shape_is_dismissed_once_and_named() -> None:
    async def story(council: Coordination, notes: Notes) -> None:
        await training(council, notes)
        council.want(3)
        council.tell(replace(worker("w2", 2), shape="another"))
        await until(lambda: notes.heard("dismiss"))
        council.tell(replace(worker("w2", 2), shape="another", prepared=1))
        await asyncio.sleep(0.05)

    dismissals = play(story).heard("dismiss")
    assert [one[1] for one in dismissals] == ["w2"]
    assert "shape another" in dismissals[0][2]


def test_everybody_dying_is_a_loss() -> None:
    async def story(council: Coordination, notes: Notes) -> None:
        for one in await training(council, notes):
            council.tell(replace(one, phase=Phase.GONE))
        await until(lambda: notes.heard("lost"))

    play(story)


def test_the_job_is_over_when_all_members_have_finished() -> None:
    async def story(council: Coordination, notes: Notes) -> None:
        first, second = await training(council, notes)
        council.tell(replace(first, phase=Phase.FINISHED, tick=9))
        await asyncio.sleep(0.05)
        assert not council.over
        council.tell(replace(second, phase=Phase.FINISHED, tick=9))
        await until(lambda: notes.heard("finish"))
        assert council.over

    play(story)


def test_more_workers_at_least_than_slices_fail_the_job_with_the_fix() -> None:
    async def story(council: Coordination, notes: Notes) -> None:
        for order in range(9):
            council.tell(worker(f"w{order}", order))
        await until(lambda: notes.heard("fail"))

    failures = play(story, least=9, most=9, wanted=9).heard("fail")
    assert "slices=8 allows at most 8 workers, 9 were asked for: raise slices= in job.loader(...)" in failures[0][1]


def test_an_agent_that_cannot_reach_the_store_is_fenced_and_starts_nobody_until_it_can() -> None:
    class Flaky(EmbeddedStore):
        down = False

        def _advance(self) -> None:
            if self.down and asyncio.current_task() is not self._keeper:
                raise StoreError("out of reach")
            super()._advance()

    notes = Notes()

    async def run() -> None:
        store = Flaky()
        timing = Timeouts().scaled(0.05)
        timing = Timeouts(timing.lease_s, timing.renewal_s, timing.answer_s, timing.margin_s, fence_s=0.5)
        council = Coordination(notes, store, agent="a0", slots=4, asked=ScaleRequest(1, 4, 2), timing=timing)
        await council.open()
        try:
            await until(lambda: council.target == 2)
            store.down = True
            store._tell()
            await until(lambda: notes.heard("fence"))
            assert council.cut_off
            before = len(notes.heard("balance"))
            store.down = False
            await until(lambda: not council.cut_off and len(notes.heard("balance")) > before)
        finally:
            store.down = False
            await council.close()

    asyncio.run(asyncio.wait_for(run(), 60))
