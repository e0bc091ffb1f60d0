"""Guards: reasons not to make a change, each a function of its own. They hold for every policy.

They only ever keep what is: a guard never gives a job more, so whatever limits held before still hold. A growth is taken back only
where the old placement lies inside the new one, so nobody else's slots are touched; a shrink is never held back, since
somebody may be waiting for those slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.scheduling.types import Allocation, ClusterNode, Placement, SchedulableJob, same, size

PAYS = 2.0
"""A change has to win back its pause this many times before the job ends."""
COOLDOWN_S = 120.0
LOW_UTILISATION = 0.3
"""A job whose slots are idle more than this does not need more of them."""


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Thresholds of the guards."""

    pays: float = PAYS
    cooldown_s: float = COOLDOWN_S
    low_utilisation: float = LOW_UTILISATION


def remaining_s(job: SchedulableJob, placement: Placement, kind: str) -> float | None:
    """Seconds left on a placement, where the job declares its length and has a model."""
    model = job.model(kind)
    if job.remaining is None or model is None or not placement:
        return None
    speed = model.choose(nodes=len(placement), workers=size(placement)).goodput
    return max(job.remaining, 0.0) / speed if speed > 0 else None


def near_end(job: SchedulableJob, before: Placement, after: Placement, kind: str, *, pays: float = PAYS) -> str | None:
    """Nothing near a job's end that cannot pay for itself: why not, or None."""
    old, new = remaining_s(job, before, kind), remaining_s(job, after, kind)
    if old is None or new is None:
        return None
    gain = old - new
    if gain >= pays * job.pause_s:
        return None
    return (
        f"{old:.0f} s are left; {size(after)} instead of {size(before)} workers would save {gain:.0f} s and cost {job.pause_s:g} s"
    )


def cooling(job: SchedulableJob, time_s: float, *, cooldown_s: float = COOLDOWN_S) -> str | None:
    """No second change right after one: why not, or None."""
    if job.changed_s is None or time_s - job.changed_s >= cooldown_s:
        return None
    return f"its placement changed {time_s - job.changed_s:.0f} s ago; the next change comes {cooldown_s:.0f} s after the last"


def idle(job: SchedulableJob, *, low_utilisation: float = LOW_UTILISATION) -> str | None:
    """No more slots for a job that does not use those it has: why not, or None."""
    if job.utilisation is None or job.utilisation >= low_utilisation:
        return None
    return f"its slots are busy {job.utilisation:.0%} of the time, below {low_utilisation:.0%}: more would not help"


def guard(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    now: Allocation,
    answer: Allocation,
    time_s: float,
    *,
    limits: GuardLimits | None = None,
) -> Allocation:
    """The answer without the growths that a guard objects to; their reasons say which."""
    bounds = limits or GuardLimits()
    kinds = {node.name: node.kind for node in nodes}
    places, reasons = dict(answer.places), dict(answer.reasons)
    for job in jobs:
        before, after = now.of(job.name), places.get(job.name, ())
        if not before or size(after) <= size(before) or not inside(before, after):
            continue
        kind = kinds.get(before[0][0], "")
        why = (
            cooling(job, time_s, cooldown_s=bounds.cooldown_s)
            or idle(job, low_utilisation=bounds.low_utilisation)
            or near_end(job, before, after, kind, pays=bounds.pays)
        )
        if why is not None:
            places[job.name] = before
            reasons[job.name] = why
    return Allocation(places, reasons, answer.memory)


def inside(before: Placement, after: Placement) -> bool:
    """Whether the old placement can be kept without slots that the new one does not have."""
    counts: Mapping[str, int] = dict(after)
    return not same(before, after) and all(counts.get(node, 0) >= count for node, count in before)
