"""Limits that have changed since the last decision, applied before a policy is asked: pure.

A wish, a pin or a plan changes a job's limits at once. Policies that choose sizes follow them by themselves; those
that leave sizes alone would keep what is. So what a policy is shown as the present allocation is already cut to the
new limits, and grown where slots are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.scheduling.words import Job, Node, Placement, size


def fit(jobs: Sequence[Job], nodes: Sequence[Node], places: Mapping[str, Placement]) -> dict[str, Placement]:
    """The placements inside the jobs' limits, as far as free slots go."""
    after = {name: tuple(placement) for name, placement in places.items()}
    for job in jobs:
        if size(after.get(job.name, ())) > job.most:
            after[job.name] = cut(after[job.name], job.most)
    free = {node.name: node.slots for node in nodes}
    for placement in after.values():
        for name, count in placement:
            free[name] = free.get(name, 0) - count
    for job in jobs:
        held = after.get(job.name, ())
        missing = job.least - size(held)
        if held and 0 < missing <= sum(count for count in free.values() if count > 0):
            after[job.name] = _grow(held, missing, free)
    return after


def cut(placement: Placement, workers: int) -> Placement:
    """The first workers of a placement."""
    kept: list[tuple[str, int]] = []
    for name, count in placement:
        taken = min(count, workers)
        if taken > 0:
            kept.append((name, taken))
            workers -= taken
    return tuple(kept)


def _grow(placement: Placement, more: int, free: dict[str, int]) -> Placement:
    """Where the job already is first."""
    counts = dict(placement)
    for name in sorted(free, key=lambda name: (name not in counts, -free[name], name)):
        taken = max(0, min(more, free[name]))
        if taken:
            counts[name] = counts.get(name, 0) + taken
            free[name] -= taken
            more -= taken
    return tuple(counts.items())
