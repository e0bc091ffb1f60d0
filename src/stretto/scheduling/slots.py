"""Free slots, and putting fixed numbers of workers on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.scheduling.types import Allocation, ClusterNode, Placement, SchedulableJob


def still_valid(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], now: Allocation) -> dict[str, Placement]:
    """The placements of now that can go on: of jobs that still exist, on nodes that still exist and are not overfull."""
    free = {node.name: node.slots for node in nodes}
    kinds = {node.name: node.kind for node in nodes}
    kept: dict[str, Placement] = {}
    for job in sorted(jobs, key=lambda job: (not job.pinned, job.preemptible)):
        placement = now.of(job.name)
        if placement and all(0 < count <= free.get(node, 0) and job.runs_on(kinds[node]) for node, count in placement):
            kept[job.name] = placement
            for node, count in placement:
                free[node] -= count
    return kept


def free_slots(nodes: Sequence[ClusterNode], places: Mapping[str, Placement]) -> dict[str, int]:
    free = {node.name: node.slots for node in nodes}
    for placement in places.values():
        for node, count in placement:
            if node in free:
                free[node] -= count
    return free


def emptiest_first(free: dict[str, int], workers: int) -> Placement:
    """The node with most free slots first, the earlier one on a tie; takes the slots from `free`. Empty if they do not suffice."""
    if sum(count for count in free.values() if count > 0) < workers:
        return ()
    placement: list[tuple[str, int]] = []
    while workers > 0:
        node = max(free, key=lambda name: free[name])
        taken = min(free[node], workers)
        placement.append((node, taken))
        free[node] -= taken
        workers -= taken
    return tuple(placement)


def one_kind(nodes: Sequence[ClusterNode], free: dict[str, int], workers: int, *, kind: str | None = None) -> Placement:
    """As `emptiest_first`, on nodes of one kind: a job cannot be spread over kinds. `kind` is the only one allowed; without it
    the kind with most room is taken."""
    kinds: dict[str, dict[str, int]] = {}
    for node in nodes:
        if kind is None or node.kind == kind:
            kinds.setdefault(node.kind, {})[node.name] = free[node.name]
    if len(kinds) == 1 and kind is None:
        return emptiest_first(free, workers)
    for _, part in sorted(kinds.items(), key=lambda item: (-sum(item[1].values()), item[0])):
        placement = emptiest_first(part, workers)
        if placement:
            free.update(part)
            return placement
    return ()


def slots_for(job: SchedulableJob, nodes: Sequence[ClusterNode]) -> int:
    """The slots of all nodes that the job may run on."""
    return sum(node.slots for node in nodes if job.runs_on(node.kind))


class Quotas:
    """What each owner has left. A job without a quota takes as much as there is."""

    def __init__(self, jobs: Sequence[SchedulableJob]):
        self._left: dict[str, int] = {}
        for job in jobs:
            if job.quota is not None:
                self._left[job.owner] = min(max(job.quota, 0), self._left.get(job.owner, max(job.quota, 0)))

    def left(self, job: SchedulableJob) -> int:
        return self._left.get(job.owner, 1 << 40)

    def take(self, job: SchedulableJob, workers: int) -> None:
        if job.owner in self._left:
            self._left[job.owner] -= workers
