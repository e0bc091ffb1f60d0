"""The sizes that a job may be given, and how fast each would be.

Nodes of one kind and one number of slots form a *group*; a job runs in one group at a time. Within a node the sizes are
powers of two and the whole node, so that small jobs always pack; beyond it whole nodes, so that two spread jobs never share
one. A job whose limits allow none of these gets its smallest size as an option of its own.
Speeds come from the fitted models, all jobs at once; a job without a sane model is taken to speed up linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.batching.goodput import GoodputModel, goodputs
from stretto.scheduling.types import ClusterNode, SchedulableJob

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

BATCHES = 16
"""Batch sizes tried for each size of a job: within 1% of the best of many more."""


@dataclass(frozen=True, slots=True)
class SizeGroup:
    """Nodes of one kind with the same number of slots. A job runs in one group at a time."""

    kind: str
    slots: int
    nodes: tuple[ClusterNode, ...]

    @property
    def capacity(self) -> int:
        return self.slots * len(self.nodes)


@dataclass(frozen=True, slots=True)
class Options:
    """Columns are (group, size); rows are jobs. `speed` is relative to one worker of the first group; 0 where not allowed."""

    groups: tuple[SizeGroup, ...]
    group: Ints
    size: Ints
    speed: Floats
    later: Floats
    """The same with the sizes that a job may be given once it has grown: what a look ahead reckons with."""
    single: Floats
    """Each job's goodput on its smallest option a worker: what `speed` is relative to; 0 without a model."""


def group_nodes(nodes: Sequence[ClusterNode]) -> tuple[SizeGroup, ...]:
    members_of: dict[tuple[str, int], list[ClusterNode]] = {}
    for node in nodes:
        if node.slots > 0:
            members_of.setdefault((node.kind, node.slots), []).append(node)
    return tuple(SizeGroup(kind, slots, tuple(members)) for (kind, slots), members in sorted(members_of.items()))


def sizes(group: SizeGroup, most: int) -> list[int]:
    """1, 2, 4, … within a node, the node, then 2, 3, 4, 6, 8, 12, … nodes."""
    inside = [1 << power for power in range(group.slots.bit_length()) if 1 << power < group.slots] + [group.slots]
    counts: list[int] = []
    count = 2
    while count <= len(group.nodes):
        counts.append(count)
        if count >= 4 and count & (count - 1) == 0 and count * 3 // 2 <= len(group.nodes):
            counts.append(count * 3 // 2)
        elif count == 2 and len(group.nodes) >= 3:
            counts.append(3)
        count *= 2
    if len(group.nodes) > 1 and len(group.nodes) not in counts:
        counts.append(len(group.nodes))
    return [size for size in inside + [count * group.slots for count in counts] if size <= most]


def options(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], *, held: Sequence[int]) -> Options:
    """All options of all jobs. `held` is what each has now, in workers: always an option, so that nothing has to change."""
    groups = group_nodes(nodes)
    least = np.array([max(job.least, 1) for job in jobs], dtype=np.int64)
    most = np.array([max(job.most, job.least, 1) for job in jobs], dtype=np.int64)
    # What a job will be like on sizes that it may not have yet is for its model to say: without one it is not asked.
    reach = np.maximum(most, [job.reach or 0 if job.models else 0 for job in jobs])
    now = np.array(held, dtype=np.int64)
    group_of: list[int] = []
    size_of: list[int] = []
    allowed: list[Bools] = []
    reached: list[Bools] = []
    for place, group in enumerate(groups):
        usual = sizes(group, int(reach.max(initial=1)))
        fits = np.array([(least <= size) & (size <= most) for size in usual]).reshape(len(usual), len(jobs))
        bare = ~fits.any(axis=0)
        extra: dict[int, Bools] = {}
        for size in sorted(set(least[bare].tolist()) | set(now[(now > 0) & ~np.isin(now, usual)].tolist())):
            mine = (bare & (least == size)) | ((now == size) & (least <= size) & (size <= most))
            if size <= group.capacity and mine.any():
                extra[size] = mine
        here = np.array([job.runs_on(group.kind) for job in jobs])
        for size, mask in [*zip(usual, fits, strict=True), *extra.items()]:
            group_of.append(place)
            size_of.append(size)
            allowed.append(mask & here)
            reached.append((mask | ((least <= size) & (most < size) & (size <= reach))) & here)
    size_array, group_array = np.array(size_of, dtype=np.int64), np.array(group_of, dtype=np.int64)
    shape = (len(size_of), len(jobs))
    mask, wider = (np.array(which, dtype=bool).reshape(shape).T for which in (allowed, reached))
    later, single = _speeds(jobs, groups, group_array, size_array, wider)
    return Options(groups, group_array, size_array, np.where(mask, later, 0.0), later, single)


def _speeds(
    jobs: Sequence[SchedulableJob], groups: Sequence[SizeGroup], group: Ints, size: Ints, allowed: Bools
) -> tuple[Floats, Floats]:
    speed = np.where(allowed, size[None, :].astype(np.float64), 0.0)
    single = np.zeros(len(jobs))
    for place in range(len(groups)):
        columns: list[int] = np.flatnonzero(group == place).tolist()
        models: list[GoodputModel] = []
        rows: list[int] = []
        for row, job in enumerate(jobs):
            model = job.model(groups[place].kind)
            if model is not None:
                rows.append(row)
                models.append(model)
        if not models:
            continue
        wanted = size[columns]
        usable = allowed[np.ix_(rows, columns)]
        values = _of_models(models, usable, wanted, groups[place].slots)
        speed[np.ix_(rows, columns)] = values
        first = [row for row in rows if single[row] == 0]
        if first:
            single[first] = (speed[np.ix_(first, columns)] / wanted).max(axis=1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(single[:, None] > 0, speed / single[:, None], speed)
    broken = ~np.isfinite(scaled).all(axis=1) | ((single > 0) & ~(scaled > 0).any(axis=1))
    scaled[broken] = np.where(allowed[broken], size[None, :], 0.0)
    single[broken] = 0.0
    return scaled, single


def _of_models(models: Sequence[GoodputModel], allowed: Bools, size: Ints, slots: int) -> Floats:
    """Goodputs of the allowed options, 0 elsewhere. Jobs with the same options are evaluated together, and nothing beyond them:
    most jobs may not grow far, and large sizes are as dear to evaluate as small ones."""
    table = np.zeros(allowed.shape)
    alike: dict[bytes, list[int]] = {}
    for row, key in enumerate(map(bytes, allowed)):
        alike.setdefault(key, []).append(row)
    for rows in alike.values():
        columns: list[int] = np.flatnonzero(allowed[rows[0]]).tolist()
        across, workers = (size[columns] > slots).tolist(), size[columns].tolist()
        table[np.ix_(rows, columns)] = goodputs([models[row] for row in rows], across=across, workers=workers, count=BATCHES)
    return table
