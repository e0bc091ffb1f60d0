"""Coordination on a real embedded store; the tests write the workers' statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from stretto.agent.coordination import (
    ALONE,
    Coordination,
    CoordinationEvent,
    FailureReported,
    JobFinished,
    JobLost,
    RosterBroken,
    RosterPublished,
    ScaleRequest,
    TargetChanged,
    WorkerDismissed,
)
from stretto.core.roster import Roster
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.store import StoreError
from stretto.membership.timeouts import Timeouts
from stretto.membership.worker_status import Phase, WorkerStatus

Event = TypeVar("Event")


@dataclass
class Log:
    """Every event, and whether the agent was fenced."""

    events: list[CoordinationEvent] = field(default_factory=list)
    fenced: bool = False

    def fence(self) -> None:
        self.fenced = True

    @property
    def rosters(self) -> list[Roster]:
        return [event.roster for event in self.of(RosterPublished)]

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def open_coordination(log: Log, store: EmbeddedStore, *, request: ScaleRequest, timing: Timeouts = ALONE) -> Coordination:
    return Coordination(
        store, on_event=log.events.append, on_fence=log.fence, agent="a0", slots=request.most, request=request, timing=timing
    )


def worker(name: str, order: int, **fields: Any) -> WorkerStatus:
    return WorkerStatus(name, "a0", Phase.READY, order, address=("127.0.0.1", 1), slices=8, shape="same", **fields)


def play(story: Callable[[Coordination, Log], Awaitable[None]], *, least: int = 1, most: int = 4, wanted: int = 2) -> Log:
    log = Log()

    async def run() -> None:
        coordination = open_coordination(log, EmbeddedStore(), request=ScaleRequest(least, most, wanted))
        await coordination.open()
        try:
            await asyncio.wait_for(story(coordination, log), 60)
        finally:
            await coordination.close()

    asyncio.run(run())
    return log


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def training(coordination: Coordination, log: Log) -> list[WorkerStatus]:
    """Two members of roster 1."""
    members = [worker("w0", 0), worker("w1", 1)]
    for member in members:
        coordination.report(member)
    await until(lambda: log.rosters)
    roster = log.rosters[-1]
    if len(roster.members) < 2:
        coordination.report(replace(members[0], phase=Phase.MEMBER, roster=roster.number, tick=0))
        await until(lambda: len(log.rosters) == 2)
        roster = log.rosters[-1]
    members = [replace(member, phase=Phase.MEMBER, roster=roster.number, tick=0) for member in members]
    for member in members:
        coordination.report(member)
    await until(lambda: coordination.settled)
    return members


def test_the_agent_is_told_how_many_workers_to_run() -> None:
    async def story(coordination: Coordination, log: Log) -> None:
        await until(lambda: coordination.target == 2)
        coordination.set_wanted(4)
        assert coordination.wanted == 4
        await until(lambda: coordination.target == 4)

    assert play(story).of(TargetChanged)


def test_a_death_breaks_the_roster_and_the_survivor_is_rescued() -> None:
    async def story(coordination: Coordination, log: Log) -> None:
        first, second = await training(coordination, log)
        number = log.rosters[-1].number
        coordination.report(replace(second, phase=Phase.GONE))
        await until(lambda: log.of(RosterBroken))
        assert log.of(RosterBroken)[0].number == number
        assert log.rosters[-1].number == number, "nobody is rescued before all survivors have stopped"
        coordination.report(replace(first, halted=number, tick=5))
        await until(lambda: log.rosters[-1].number > number)

    log = play(story)
    assert log.rosters[-1].rescue
    assert (log.rosters[-1].workers, log.rosters[-1].tick) == (("w0",), 5)


def test_a_worker_of_another_shape_is_dismissed_once_and_named() -> None:
    async def story(coordination: Coordination, log: Log) -> None:
        await training(coordination, log)
        coordination.set_wanted(3)
        coordination.report(replace(worker("w2", 2), shape="another"))
        await until(lambda: log.of(WorkerDismissed))
        coordination.report(replace(worker("w2", 2), shape="another", prepared=1))
        await asyncio.sleep(0.05)

    dismissals = play(story).of(WorkerDismissed)
    assert [event.worker for event in dismissals] == ["w2"]
    assert "shape another" in dismissals[0].reason


def test_everybody_dying_is_a_loss() -> None:
    async def story(coordination: Coordination, log: Log) -> None:
        for member in await training(coordination, log):
            coordination.report(replace(member, phase=Phase.GONE))
        await until(lambda: log.of(JobLost))

    play(story)


def test_the_job_is_over_when_all_members_have_finished() -> None:
    async def story(coordination: Coordination, log: Log) -> None:
        first, second = await training(coordination, log)
        coordination.report(replace(first, phase=Phase.FINISHED, tick=9))
        await asyncio.sleep(0.05)
        assert not coordination.over
        coordination.report(replace(second, phase=Phase.FINISHED, tick=9))
        await until(lambda: log.of(JobFinished))
        assert coordination.over

    play(story)


def test_more_workers_at_least_than_slices_fail_the_job_with_the_fix() -> None:
    async def story(coordination: Coordination, log: Log) -> None:
        for order in range(9):
            coordination.report(worker(f"w{order}", order))
        await until(lambda: log.of(FailureReported))

    failures = play(story, least=9, most=9, wanted=9).of(FailureReported)
    assert "slices=8 allows at most 8 workers, 9 were asked for: raise slices= in job.loader(...)" in failures[0].reason


def test_an_agent_that_cannot_reach_the_store_is_fenced_and_starts_nobody_until_it_can() -> None:
    class Flaky(EmbeddedStore):
        down = False

        def _advance(self) -> None:
            if self.down and asyncio.current_task() is not self._keeper:
                raise StoreError("out of reach")
            super()._advance()

    log = Log()

    async def run() -> None:
        store = Flaky()
        timing = Timeouts().scaled(0.05)
        timing = Timeouts(timing.lease_s, timing.renewal_s, timing.answer_s, timing.margin_s, fence_s=0.5)
        coordination = open_coordination(log, store, request=ScaleRequest(1, 4, 2), timing=timing)
        await coordination.open()
        try:
            await until(lambda: coordination.target == 2)
            store.down = True
            store._notify()
            await until(lambda: log.fenced)
            assert coordination.cut_off
            before = len(log.of(TargetChanged))
            store.down = False
            await until(lambda: not coordination.cut_off and len(log.of(TargetChanged)) > before)
        finally:
            store.down = False
            await coordination.close()

    asyncio.run(asyncio.wait_for(run(), 60))
