"""Guards between a policy and the cluster: pure. A change has to be worth it, whatever the policy is.

They only ever keep what is: a guard never gives more, so limits and capacity hold if they held before. A shrink that
lets a waiting job have its minimum is never held back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.scheduling.words import Job, Placement, same, size
from stretto.server.policies import Answer, Snapshot

PAYS = 2.0
"""A change near a job's end has to win back its pause this many times."""


@dataclass(frozen=True, slots=True)
class Guarded:
    places: Mapping[str, Placement]
    reasons: Mapping[str, str]


def guard(snapshot: Snapshot, answer: Answer, *, cooldown_s: float) -> Guarded:
    """The answer with every growth that does not pay taken back."""
    places = dict(answer.places)
    reasons = dict(answer.reasons)
    for job in snapshot.jobs:
        before, after = snapshot.places.get(job.name, ()), places.get(job.name, ())
        if not size(before) or size(after) <= size(before) or not _inside(before, after):
            continue
        kept = cooling(job, snapshot.time_s, cooldown_s) or near_end(job, size(before), size(after))
        if kept:
            places[job.name] = before
            reasons[job.name] = kept
    return Guarded(places, reasons)


def _inside(before: Placement, after: Placement) -> bool:
    """Whether the old placement fits in the new one: only then can it be kept without taking somebody else's slots."""
    new = dict(after)
    return all(new.get(node, 0) >= count for node, count in before) and not same(before, after)


def cooling(job: Job, now_s: float, cooldown_s: float) -> str:
    """Cool-down after a change. A pinned job or a fixed size is the user's word and is not held back."""
    if job.changed_s is None or job.least == job.most:
        return ""
    left = job.changed_s + cooldown_s - now_s
    return f"its size changed a moment ago: not again for {left:.0f} s" if 0 < left <= cooldown_s else ""


def near_end(job: Job, before: int, after: int) -> str:
    """Nothing in the last part of a job that cannot pay for itself."""
    seconds = remaining_s(job, before)
    if seconds is None or job.least == job.most:
        return ""
    gain = seconds * (1 - before / after)
    if gain >= PAYS * job.pause_s:
        return ""
    return f"{seconds:.0f} s are left: growing would win at most {gain:.1f} s and cost {job.pause_s:.1f} s"


def remaining_s(job: Job, workers: int) -> float | None:
    if job.remaining is None:
        return None
    for kind in job.models:
        model = job.model(kind)
        if model is not None:
            speed = model.choose(nodes=1, workers=max(1, workers)).goodput
            return job.remaining / speed if speed > 0 else None
    return None
