"""Does the job make progress? A judgement of all workers' beats together. Pure.

    usual step time * FACTOR (20), at least STALL_S (30): so long may nobody's place change before the job counts as stalled
    SLICE_S (10) < STALL_S: a slice that hangs is found by `watch` before its peers, which wait for it, look stalled
    STALL_S < FIRST_S (300): before the first steps are committed, nobody knows what is usual

Time in the script's own code is legal (a download, an evaluation of the chief's own), so it is only told, and told again only where
it takes longer than such a pause has taken before. Where everybody waits in an exchange, nobody will ever come: the odd one out is
restarted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stretto.core.heartbeat import Activity, HeartbeatSample

STALL_S = 30.0
FIRST_S = 300.0
FACTOR = 20.0
LONGER = 1.5
OWN = (Activity.OUTSIDE, Activity.STEPPING)
RECENT = 32


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """One member of the roster, as its beat shows it."""

    worker: str
    pulse: HeartbeatSample
    order: int
    """When it was started: the newest are the last."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nobody has moved for too long: told once."""

    text: str


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Everybody waits for somebody else, and this one stands elsewhere."""

    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class Moves:
    """The job goes on after a stall."""

    text: str


@dataclass(slots=True)
class StallDetector:
    """Looked at again and again; remembers when anybody moved last, and what it has said."""

    least_s: float = STALL_S
    _places: tuple[object, ...] = ()
    _moved: float = 0.0
    _told: bool = False
    _restarted: bool = False
    _longest: float = 0.0
    """Of the pauses in the script's own code that ended by themselves."""
    _own: bool = False
    _text: str = field(default="")

    @property
    def text(self) -> str:
        """Who waits where, while the job is stalled."""
        return self._text if self._told else ""

    def look(
        self, members: Sequence[WorkerActivity], *, now: float, usual_s: float, whole: bool, settled: bool
    ) -> Stalled | RestartWorker | Moves | None:
        """`whole` is whether these are all members of the roster, `settled` whether no change of roster is under way."""
        places = tuple((one.worker, one.pulse.activity, *_place(one.pulse), one.pulse.slice, one.pulse.slices) for one in members)
        if places != self._places or any(one.pulse.activity is Activity.SLICE for one in members):
            return self._move(places, now)
        own = any(one.pulse.activity in OWN for one in members)
        bound = max(self.least_s, FACTOR * usual_s if usual_s else FIRST_S, LONGER * self._longest if own else 0.0)
        if all(one.pulse.activity is Activity.ENDED for one in members) or now - self._moved <= bound:
            return None
        self._own = own
        where = ", ".join(f"{one.worker} {place_text(one.pulse)}" for one in members)
        if not self._told:
            usual = f"steps take {usual_s:.2f} s" if usual_s else "no step was committed yet"
            self._told, self._text = True, f"no progress for {now - self._moved:.0f} s ({usual}): {where}"
            return Stalled(self._text)
        waiting = len(members) > 1 and all(one.pulse.activity is Activity.EXCHANGE for one in members)
        if waiting and whole and settled and not self._restarted:
            self._restarted = True
            return RestartWorker(odd_one(members), f"everybody waits for somebody else: {where}")
        return None

    def awake(self, now: float) -> None:
        """Whoever looks was itself away: time counts from here."""
        self._moved = now

    def _move(self, places: tuple[object, ...], now: float) -> Moves | None:
        took, self._places, self._moved = now - self._moved, places, now
        told, restarted, self._told, self._restarted = self._told, self._restarted, False, False
        if not told:
            return None
        if self._own and not restarted:
            self._longest = max(self._longest, took)
        return Moves(f"the job goes on after {took:.0f} s")


def odd_one(members: Sequence[WorkerActivity]) -> str:
    """Who stands where the fewest are; of several, the one that joined last."""
    count = Counter(_place(one.pulse) for one in members)
    return min(members, key=lambda one: (count[_place(one.pulse)], -one.order)).worker


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
