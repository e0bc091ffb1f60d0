"""From what was decided to what may be done now: pure.

A decision moves slots from one job to another at once; workers move at step boundaries. Whoever gives slots away does
so first, and who gets them waits for that moment, so that more workers than slots never run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One job that holds or wants slots."""

    job: str
    have: int
    """Workers that may be running now."""
    want: int
    least: int
    """The number of workers that it can start with."""
    begun: bool
    """Its processes have been started: it can be resized, and it cannot be held back entirely."""
    since: float = 0.0


def admit(claims: Iterable[Claim], *, slots: int) -> Mapping[str, int]:
    """Workers that each job may have now: never more than it wants, shrinking at once, growing as slots are really free."""
    ordered = sorted(claims, key=lambda claim: (claim.since, claim.job))
    grants = {claim.job: min(claim.have, claim.want) if claim.begun else 0 for claim in ordered}
    free = slots - sum(max(claim.have, grants[claim.job]) for claim in ordered)
    for claim in ordered:
        missing = claim.want - max(claim.have, grants[claim.job])
        more = min(missing, free)
        if more > 0 and (claim.begun or more >= claim.least):
            grants[claim.job] += more
            free -= more
    return grants
