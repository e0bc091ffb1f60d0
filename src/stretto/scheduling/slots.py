"""Free slots, and which workers go on them.

Policies of fixed sizes place job by job (`emptiest_first`, `one_kind`). Policies that choose sizes place a whole group of nodes
at once (`pack`): jobs stay where they are, small ones are packed, spread ones get whole nodes.
Two spread jobs never share a node. A job that keeps its size keeps its place unless its node has to be emptied for a job that needs
it whole; then the node with the fewest workers on it is emptied. A job that cannot be placed at its size is returned with
the largest size that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.scheduling.candidate_sizes import SizeGroup
from stretto.scheduling.types import Allocation, ClusterNode, Placement, SchedulableJob, size


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

    def reserve(self, job: SchedulableJob, workers: int) -> None:
        if job.owner in self._left:
            self._left[job.owner] -= workers


@dataclass(slots=True)
class NodePacker:
    """The free slots of one group while it is being filled."""

    group: SizeGroup
    free: dict[str, int] = field(init=False)
    where: dict[str, Placement] = field(default_factory=dict[str, Placement])
    residents: dict[str, set[str]] = field(init=False)
    fixed: set[str] = field(default_factory=set[str])
    """Jobs that must stay."""
    settling: frozenset[str] = frozenset()
    """Jobs that changed a moment ago: nobody moves them for another's sake."""
    _shelf: list[list[str]] = field(init=False)
    """Node names by free slots; entries that are out of date are skipped."""

    def __post_init__(self) -> None:
        self.free = {node.name: node.slots for node in self.group.nodes}
        self.residents = {node.name: set() for node in self.group.nodes}
        self._shelf = [[] for _ in range(self.group.slots + 1)]
        for node in reversed(self.group.nodes):
            self._shelf[node.slots].append(node.name)

    def put(self, job: str, placement: Placement) -> None:
        for node, count in placement:
            self._change(node, -count)
            self.residents[node].add(job)
        self.where[job] = placement

    def lift(self, job: str) -> None:
        for node, count in self.where.pop(job):
            self.residents[node].discard(job)
            self._change(node, count)

    def _change(self, node: str, by: int) -> None:
        self.free[node] += by
        self._shelf[self.free[node]].append(node)

    def with_free(self, count: int) -> str | None:
        """A node with exactly `count` free slots."""
        shelf = self._shelf[count]
        while shelf and self.free[shelf[-1]] != count:
            shelf.pop()
        return shelf[-1] if shelf else None

    def best_fit(self, workers: int, *, lone: bool = False) -> str | None:
        """The fullest node with enough free slots; `lone`: only nodes without a spread job."""
        for count in range(workers, self.group.slots + 1):
            node = self.with_free(count)
            if node is None:
                continue
            if not lone or not self._has_spread(node):
                return node
            for other in self._shelf[count]:
                if self.free[other] == count and not self._has_spread(other):
                    return other
        return None

    def _has_spread(self, node: str) -> bool:
        return any(len(self.where[job]) > 1 for job in self.residents[node])

    def whole(self, prefer: Placement = ()) -> str | None:
        """An empty node, one where the job already is if possible."""
        for node, _ in prefer:
            if self.free.get(node) == self.group.slots:
                return node
        return self.with_free(self.group.slots)

    def empty_one(self, wanted: Mapping[str, int]) -> list[str]:
        """Take all jobs off the node that is easiest to empty; their names, or nothing if no node can be emptied."""
        candidates = [
            (self.group.slots - self.free[node.name], node.name)
            for node in self.group.nodes
            if 0 < self.group.slots - self.free[node.name] < self.group.slots
            and not self.residents[node.name] & (self.fixed | self.settling)
            and not self._has_spread(node.name)
        ]
        if not candidates:
            return []
        lifted = sorted(self.residents[min(candidates)[1]], key=lambda job: (-wanted.get(job, 0), job))
        for job in lifted:
            self.lift(job)
        return lifted


def pack(
    group: SizeGroup,
    wanted: Mapping[str, int],
    now: Mapping[str, Placement],
    fixed: set[str],
    settling: frozenset[str] = frozenset(),
) -> dict[str, Placement]:
    """Place jobs at their wanted sizes. Jobs in `fixed` keep their placement of now. What does not fit is left out or smaller."""
    floor = NodePacker(group, fixed=fixed, settling=settling)
    names = set(floor.free)
    waiting: list[str] = []
    for job in sorted(wanted, key=lambda job: (job not in fixed, len(now.get(job, ())) < 2)):
        before = now.get(job, ())
        stays = before and (job in fixed or size(before) == wanted[job])
        if stays and all(node in names and floor.free[node] >= count for node, count in before) and _shape_fits(floor, before):
            floor.put(job, before)
        else:
            waiting.append(job)
    queue = sorted(waiting, key=lambda job: (-wanted[job], not now.get(job), job))
    moves = 2 * len(group.nodes) + len(queue)
    while queue:
        job = queue.pop(0)
        placement = _place(floor, wanted[job], now.get(job, ()))
        if not placement and moves > 0 and sum(floor.free.values()) >= wanted[job]:
            lifted = floor.empty_one(wanted)
            moves -= 1
            if lifted:
                queue = sorted([job, *lifted, *queue], key=lambda job: (-wanted[job], not now.get(job), job))
                continue
        if placement:
            floor.put(job, placement)
    return floor.where


def _shape_fits(floor: NodePacker, placement: Placement) -> bool:
    """A spread placement may stay only on nodes without another spread job."""
    return len(placement) < 2 or not any(floor._has_spread(node) for node, _ in placement)  # pyright: ignore[reportPrivateUsage]


def _place(floor: NodePacker, workers: int, before: Placement) -> Placement:
    slots = floor.group.slots
    if workers <= slots:
        for node, _ in before:
            if floor.free.get(node, 0) >= workers and workers < slots:
                return ((node, workers),)
        node = floor.best_fit(workers) if workers < slots else floor.whole(before)
        return ((node, workers),) if node is not None else ()
    chosen: list[tuple[str, int]] = []
    rest = workers
    while rest >= slots:
        node = floor.whole(before)
        if node is None:
            break
        floor._change(node, -slots)  # pyright: ignore[reportPrivateUsage]
        chosen.append((node, slots))
        rest -= slots
    if 0 < rest < slots:
        last = floor.best_fit(rest, lone=True)
        if last is not None:
            chosen.append((last, rest))
            rest = 0
            for node, count in chosen[:-1]:
                floor._change(node, count)  # pyright: ignore[reportPrivateUsage]
            return tuple(chosen)
    for node, count in chosen:
        floor._change(node, count)  # pyright: ignore[reportPrivateUsage]
    return tuple(chosen) if rest == 0 else ()
