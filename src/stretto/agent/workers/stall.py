"""Does the job make progress? A judgement of all workers' beats together. Pure.

    usual step time * FACTOR (20), at least STALL_S (30): so long may nobody's place change before the job counts as stalled
    SLICE_S (10) < STALL_S: a slice that hangs is found by `watch` before its peers, which wait for it, look stalled
    STALL_S < FIRST_S (300): the first exchanges of a large model are slow, and nobody knows yet what is usual

Time in the script's own code is legal (a download, an evaluation of the chief's own), so it is only told. Where everybody waits in
an exchange, nobody will ever come: the odd one out is restarted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stretto.core.beat import Activity, Pulse

STALL_S = 30.0
FIRST_S = 300.0
FACTOR = 20.0
RECENT = 32


@dataclass(frozen=True, slots=True)
class Seen:
    """One member of the roster, as its beat shows it."""

    worker: str
    pulse: Pulse
    order: int
    """When it was started: the newest are the last."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nobody has moved for too long: told once."""

    text: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Everybody waits for somebody else, and this one stands elsewhere."""

    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class Moves:
    """The job goes on after a stall."""

    text: str


@dataclass(slots=True)
class Stalls:
    """Looked at again and again; remembers when anybody moved last, and what it has said."""

    least_s: float = STALL_S
    _places: tuple[object, ...] = ()
    _moved: float = 0.0
    _told: bool = False
    _restarted: bool = False
    _text: str = field(default="")

    @property
    def text(self) -> str:
        """Who waits where, while the job is stalled."""
        return self._text if self._told else ""

    def look(
        self, members: Sequence[Seen], *, now: float, usual_s: float, whole: bool, settled: bool
    ) -> Stalled | Restart | Moves | None:
        """`whole` is whether these are all members of the roster, `settled` whether no change of roster is under way."""
        places = tuple((one.worker, one.pulse.activity, *_place(one.pulse), one.pulse.slice, one.pulse.slices) for one in members)
        if places != self._places or any(one.pulse.activity is Activity.SLICE for one in members):
            took, self._places, self._moved, self._restarted = now - self._moved, places, now, False
            if not self._told:
                return None
            self._told = False
            return Moves(f"the job goes on after {took:.0f} s")
        bound = max(self.least_s, FACTOR * usual_s)
        if not members or now - self._moved <= bound:
            return None
        where = ", ".join(f"{one.worker} {place_text(one.pulse)}" for one in members)
        if not self._told:
            usual = f"steps take {usual_s:.2f} s" if usual_s else "no step was committed yet"
            self._told, self._text = True, f"no progress for {now - self._moved:.0f} s ({usual}): {where}"
            return Stalled(self._text)
        waiting = len(members) > 1 and all(one.pulse.activity is Activity.EXCHANGE for one in members)
        patient = usual_s > 0 or now - self._moved > FIRST_S
        if waiting and patient and whole and settled and not self._restarted:
            self._restarted = True
            return Restart(odd_one(members), f"everybody waits for somebody else: {where}")
        return None


def odd_one(members: Sequence[Seen]) -> str:
    """Who stands where the fewest are; of several, the one that joined last."""
    count = Counter(_place(one.pulse) for one in members)
    return min(members, key=lambda one: (count[_place(one.pulse)], -one.order)).worker


def _place(pulse: Pulse) -> tuple[object, ...]:
    return (pulse.train, pulse.loader, pulse.step, pulse.pass_)


def place_text(pulse: Pulse) -> str:
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
