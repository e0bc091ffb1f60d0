"""Whether the job makes progress, judged by the heartbeats of all its workers together.

    the job is stalled when no worker moves for FACTOR (20) usual steps, at least STALL_S (30)
    SLICE_S (10) < STALL_S: `liveness` finds a hung slice before its peers, which wait for it, look stalled
    STALL_S < FIRST_S (300): before the first steps are committed, the usual step time is unknown

A script may spend time in its own code (a download, an evaluation on the chief), so that is only reported, and reported again only
if it takes longer than such a pause has taken before. When all workers wait in an exchange, it will never complete: the odd one out
is restarted.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from stretto.agent.workers.liveness import Liveness
from stretto.core.heartbeat import Activity, HeartbeatSample
from stretto.membership.worker_status import Phase

if TYPE_CHECKING:
    from stretto.agent.context import JobContext
    from stretto.agent.workers.worker_handle import WorkerHandle

STALL_S = 30.0
FIRST_S = 300.0
FACTOR = 20.0
LONGER = 1.5
OWN = (Activity.OUTSIDE, Activity.STEPPING)
RECENT = 32
CHECK_S = 0.5
AWAY_S = 4 * CHECK_S
"""An agent whose check is this late was itself stopped, as everything on its machine may have been."""


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """One member of the roster and its last heartbeat."""

    worker: str
    pulse: HeartbeatSample
    order: int
    """When it was started: the newest are the last."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """No worker has moved for too long. Reported once."""

    text: str


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """All workers wait for each other, and this one is somewhere else."""

    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class Moves:
    """The job continues after a stall."""

    text: str


@dataclass(slots=True)
class StallDetector:
    """Checked regularly; remembers when any worker moved last, and what it has reported."""

    least_s: float = STALL_S
    _places: tuple[object, ...] = ()
    _moved: float = 0.0
    _reported: bool = False
    _restarted: bool = False
    _longest: float = 0.0
    """The longest pause in the script's own code that ended by itself."""
    _own: bool = False
    _text: str = field(default="")

    @property
    def text(self) -> str:
        """Who waits where, while the job is stalled."""
        return self._text if self._reported else ""

    def check(
        self, members: Sequence[WorkerActivity], *, now: float, usual_s: float, whole: bool, settled: bool
    ) -> Stalled | RestartWorker | Moves | None:
        """`whole` is whether these are all members of the roster, `settled` whether no change of roster is under way."""
        places = tuple(
            (member.worker, member.pulse.activity, *_place(member.pulse), member.pulse.slice, member.pulse.slices)
            for member in members
        )
        if places != self._places or any(member.pulse.activity is Activity.SLICE for member in members):
            return self._move(places, now)
        own = any(member.pulse.activity in OWN for member in members)
        bound = max(self.least_s, FACTOR * usual_s if usual_s else FIRST_S, LONGER * self._longest if own else 0.0)
        if all(member.pulse.activity is Activity.ENDED for member in members) or now - self._moved <= bound:
            return None
        self._own = own
        where = ", ".join(f"{member.worker} {place_text(member.pulse)}" for member in members)
        if not self._reported:
            usual = f"steps take {usual_s:.2f} s" if usual_s else "no step was committed yet"
            self._reported, self._text = True, f"no progress for {now - self._moved:.0f} s ({usual}): {where}"
            return Stalled(self._text)
        waiting = len(members) > 1 and all(member.pulse.activity is Activity.EXCHANGE for member in members)
        if waiting and whole and settled and not self._restarted:
            self._restarted = True
            return RestartWorker(odd_one(members), f"everybody waits for somebody else: {where}")
        return None

    def awake(self, now: float) -> None:
        """The agent itself was stopped: time counts from here."""
        self._moved = now

    def _move(self, places: tuple[object, ...], now: float) -> Moves | None:
        seconds, self._places, self._moved = now - self._moved, places, now
        reported, restarted, self._reported, self._restarted = self._reported, self._restarted, False, False
        if not reported:
            return None
        if self._own and not restarted:
            self._longest = max(self._longest, seconds)
        return Moves(f"the job goes on after {seconds:.0f} s")


def odd_one(members: Sequence[WorkerActivity]) -> str:
    """The worker whose place the fewest share; of several, the one that joined last."""
    count = Counter(_place(member.pulse) for member in members)
    return min(members, key=lambda member: (count[_place(member.pulse)], -member.order)).worker


def _place(pulse: HeartbeatSample) -> tuple[object, ...]:
    return (pulse.train, pulse.loader, pulse.step, pulse.pass_)


def place_text(pulse: HeartbeatSample) -> str:
    """Where a worker is: `in the exchange of training step 115`."""
    step = f"training step {pulse.step}" if pulse.train else f"evaluation step {pulse.step} of loader {pulse.loader}"
    match pulse.activity:
        case Activity.EXCHANGE:
            return f"in the exchange of {step}"
        case Activity.SLICE:
            return f"in slice {pulse.slice} of {step}"
        case Activity.OUTSIDE | Activity.STEPPING:
            return f"in the script's own code {f'after {step}' if pulse.loader >= 0 else 'before its first step'}"
        case Activity.WAITING:
            return "waiting to be put on a roster"
        case Activity.SWITCH:
            return "between two rosters"
        case Activity.STARTING:
            return "at the top of its script"
        case Activity.ENDED:
            return "at the end of its script"


def usual_step_s(times: Sequence[float]) -> float:
    """The median time between the last commits; 0 where there were none."""
    gaps = [after - before for before, after in pairwise(list(times)[-RECENT:])]
    return statistics.median(gaps) if gaps else 0.0


class ProgressMonitor:
    """Checks one agent's workers twice a second. In a job on several hosts it sees its own only, so it restarts none."""

    def __init__(self, context: JobContext, *, mark_dead: Callable[[WorkerHandle, Liveness], None]) -> None:
        self._context = context
        self._mark_dead = mark_dead
        self._stalls = StallDetector(least_s=context.options.stall_timeout_s)

    @property
    def stalled(self) -> str:
        """Who waits where, or nothing while the job makes progress."""
        return self._stalls.text

    async def watch(self) -> None:
        """Runs until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(CHECK_S)
            now = time.monotonic()
            if now - last > AWAY_S:
                self._stalls.awake(now)
            last = now
            self._check(now)

    def _check(self, now: float) -> None:
        context, roster = self._context, self._context.coordination.roster
        if context.completion.stopping is not None or roster is None:
            return
        workers = {worker.name: worker for worker in context.serving if worker.status.phase is Phase.MEMBER}
        members = [
            WorkerActivity(name, workers[name].beat.read(), workers[name].status.order)
            for name in roster.workers
            if name in workers
        ]
        verdict = self._stalls.check(
            members,
            now=now,
            usual_s=usual_step_s(context.recorder.tally.recent),
            whole=len(members) == len(roster.members),
            settled=context.coordination.settled,
        )
        match verdict:
            case Stalled(text):
                context.recorder.event("stalled", text)
            case Moves(text):
                context.recorder.event("unstalled", text)
            case RestartWorker(worker, text):
                self._mark_dead(workers[worker], Liveness("stuck", text))
            case None:
                pass
