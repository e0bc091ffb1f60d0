"""What a policy is shown as the present allocation: cut to changed limits, with room for jobs that wait.

A wish, a pin or a plan changes a job's limits at once. Policies that choose sizes follow them by themselves; those
that leave sizes alone would keep the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from stretto.scheduling.slots import Quotas, free_slots
from stretto.scheduling.types import ClusterNode, Placement, SchedulableJob, size


def fit(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], places: Mapping[str, Placement]) -> dict[str, Placement]:
    """The placements inside the jobs' limits, as far as free slots and quotas go."""
    after = {name: tuple(placement) for name, placement in places.items()}
    for job in jobs:
        if size(after.get(job.name, ())) > job.most:
            after[job.name] = cut(after[job.name], job.most)
    short = [job for job in jobs if 0 < size(after.get(job.name, ())) < job.least]
    if not short:
        return after
    free = free_slots(nodes, after)
    kinds = {node.name: node.kind for node in nodes}
    quotas = Quotas(jobs)
    for job in jobs:
        quotas.reserve(job, size(after.get(job.name, ())))
    for job in short:
        placement = after[job.name]
        missing = job.least - size(placement)
        kind = kinds.get(placement[0][0])
        usable = {name: count for name, count in free.items() if kinds[name] == kind and count > 0}
        if missing <= min(sum(usable.values()), quotas.left(job)):
            after[job.name] = _grow(placement, missing, usable)
            free |= usable
            quotas.reserve(job, missing)
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


def make_room(
    jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], places: Mapping[str, Placement]
) -> dict[str, Placement]:
    """The placements with the fewest workers of every waiting job, if all of them fit. The job furthest above its minimum shrinks
    first.

    A policy that chooses sizes may grow every job from there, and cannot take off a job that may not be set back to the queue: so a
    waiting job gets its minimum at the next decision, however little it is worth to the policy. If not all fit, the policy chooses
    which jobs run. A job that fits on no node does not count.
    """
    waits = (job for job in jobs if not places.get(job.name) and job.least <= _largest(job, nodes))
    waiting = sorted(waits, key=lambda job: (-job.priority, job.arrival_s, job.name))
    before = {name: tuple(placement) for name, placement in places.items()}
    if not waiting or any(job.quota is not None for job in jobs):
        return before
    room = Room(jobs, nodes, before)
    if sum(job.least for job in waiting) > room.most():
        return before
    return room.after() if all(room.seat(job) for job in waiting) else before


def _largest(job: SchedulableJob, nodes: Sequence[ClusterNode]) -> int:
    return max((node.slots for node in nodes if job.runs_on(node.kind)), default=0)


class Room:
    """Slots that are free, and slots of jobs with more than their fewest workers. For one decision."""

    def __init__(self, jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], places: Mapping[str, Placement]) -> None:
        self._counts = {name: dict(placement) for name, placement in places.items()}
        self._free = free_slots(nodes, places)
        self._kinds = {node.name: node.kind for node in nodes}
        self._spare = {job.name: size(places[job.name]) - job.least for job in jobs if not job.pinned and places.get(job.name)}

    def most(self) -> int:
        return sum(max(0, count) for count in self._free.values()) + sum(max(0, count) for count in self._spare.values())

    def after(self) -> dict[str, Placement]:
        return {job: tuple((name, count) for name, count in counts.items() if count > 0) for job, counts in self._counts.items()}

    def seat(self, job: SchedulableJob) -> bool:
        """The job's fewest workers on one node. False if no node can be brought to have them."""
        for name in sorted(self._free, key=lambda name: (-self._free[name], name)):
            if not job.runs_on(self._kinds[name]):
                continue
            givers = self._givers(name, job.least - self._free[name])
            if givers is None:
                continue
            for giver, count in givers.items():
                self._counts[giver][name] -= count
                self._spare[giver] -= count
                self._free[name] += count
            self._free[name] -= job.least
            self._counts[job.name] = {name: job.least}
            self._spare[job.name] = 0
            return True
        return False

    def _givers(self, node: str, missing: int) -> dict[str, int] | None:
        """The workers that each job gives on this node, one by one from the job with most to spare; None if they do not suffice."""
        if missing <= 0:
            return {}
        can = {job: min(counts[node], self._spare.get(job, 0)) for job, counts in self._counts.items() if counts.get(node, 0) > 0}
        if sum(max(0, count) for count in can.values()) < missing:
            return None
        heap = [(-self._spare[job], job) for job, count in can.items() if count > 0]
        heapify(heap)
        given: dict[str, int] = {}
        for _ in range(missing):
            spare, job = heappop(heap)
            given[job] = given.get(job, 0) + 1
            if given[job] < can[job]:
                heappush(heap, (spare + 1, job))
        return given
