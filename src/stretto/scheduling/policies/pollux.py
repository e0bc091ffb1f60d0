"""Pollux as published (Qiao et al., OSDI'21): a genetic search for the allocation with the highest fitness.

Fitness is the power mean (exponent −1) over jobs of their speed-up relative to an equal share of the cluster; a job whose placement
would change counts only max(age − restarts·30, 0)/(age + 30) of it. Two spread jobs never share a node (interference). A second
objective, the cluster's utility, keeps the population diverse. The last front is remembered and starts the next search.

It is here to be compared with. The search is random: its seed and the time give the stream, so the same input gives the
same output.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.batching.goodput import GoodputModel, goodputs
from stretto.core.text import quantity
from stretto.scheduling.genetic import Effort, Floats, SearchLimits, States, search
from stretto.scheduling.slots import Quotas, still_valid
from stretto.scheduling.types import Allocation, ClusterNode, Placement, PolicyTraits, SchedulableJob, size

TRAITS = PolicyTraits()
RESTART_S = 30.0
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Front:
    """What the last search found, to start the next one from."""

    jobs: tuple[str, ...]
    nodes: tuple[str, ...]
    states: States


def pollux(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    now: Allocation,
    time_s: float,
    *,
    seed: int = 0,
    effort: Effort | None = None,
) -> Allocation:
    if not jobs or not nodes:
        return Allocation()
    kept = still_valid(jobs, nodes, now)
    held = {job.name for job in jobs if job.name in kept and (job.pinned or not job.preemptible)}
    ordered = sorted(jobs, key=lambda job: (job.name not in held, job.attained_s, job.arrival_s))
    machines = sorted(nodes, key=lambda node: (node.spot, node.name))
    base = _state(ordered, machines, kept)
    limits = _limits(ordered, machines, base, held)
    random = np.random.default_rng([seed, int(time_s), zlib.crc32("".join(job.name for job in ordered).encode())])
    start = _start(now.memory, ordered, machines, base)
    states, values = search(start, limits, _Fitness(ordered, machines, base, time_s), random, effort or Effort())
    best = states[int(np.argmin(values[:, 0]))]
    memory = Front(tuple(job.name for job in ordered), tuple(node.name for node in machines), states)
    places = _within_quotas(ordered, _places(ordered, machines, best), held)
    reasons = {
        job.name: f"fittest of {len(states)} allocations: {quantity(size(places.get(job.name, ())), 'worker')}" for job in ordered
    }
    return Allocation(places, reasons, memory)


def _state(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], places: dict[str, Placement]) -> States:
    column = {node.name: place for place, node in enumerate(nodes)}
    state = np.zeros((len(jobs), len(nodes)), dtype=np.int16)
    for row, job in enumerate(jobs):
        for node, count in places.get(job.name, ()):
            state[row, column[node]] = count
    return state


def _places(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], state: NDArray[np.int16]) -> dict[str, Placement]:
    return {
        job.name: tuple((nodes[column].name, int(row[column])) for column in np.flatnonzero(row).tolist())
        for job, row in zip(jobs, state, strict=True)
        if row.any()
    }


def _limits(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], base: States, held: set[str]) -> SearchLimits:
    kinds = sorted({node.kind for node in nodes})
    return SearchLimits(
        base=base,
        capacity=np.array([node.slots for node in nodes]),
        least=np.array([job.least for job in jobs]),
        most=np.array([max(job.most, job.least) for job in jobs]),
        pinned=np.array([job.name in held for job in jobs]),
        kinds=np.array([kinds.index(node.kind) for node in nodes]),
        allowed=_allowed(jobs, nodes),
    )


def _allowed(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode]) -> NDArray[np.bool_] | None:
    if all(job.node_kind is None for job in jobs):
        return None
    return np.array([[job.runs_on(node.kind) for node in nodes] for job in jobs])


def _start(memory: object, jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], base: States) -> States:
    if not isinstance(memory, Front):
        return base[None].copy()
    rows = {name: place for place, name in enumerate(memory.jobs)}
    columns = {name: place for place, name in enumerate(memory.nodes)}
    states = np.zeros((len(memory.states), len(jobs), len(nodes)), dtype=np.int16)
    to_rows = [place for place, job in enumerate(jobs) if job.name in rows]
    to_columns = [place for place, node in enumerate(nodes) if node.name in columns]
    from_rows = [rows[jobs[place].name] for place in to_rows]
    from_columns = [columns[nodes[place].name] for place in to_columns]
    states[np.ix_(range(len(states)), to_rows, to_columns)] = memory.states[np.ix_(range(len(states)), from_rows, from_columns)]
    return states


def _within_quotas(jobs: Sequence[SchedulableJob], places: dict[str, Placement], held: set[str]) -> dict[str, Placement]:
    """The search knows no quotas: a job beyond its owner's is cut to what is left, or waits."""
    quotas = Quotas(jobs)
    for job in jobs:
        placement = places.get(job.name)
        if placement is None:
            continue
        left = quotas.left(job)
        if size(placement) > left and job.name not in held:
            cut: list[tuple[str, int]] = []
            for node, count in placement:
                if left > 0:
                    cut.append((node, min(count, left)))
                    left -= cut[-1][1]
            if size(tuple(cut)) < job.least:
                cut = []
            placement = tuple(cut)
        quotas.reserve(job, size(placement))
        places[job.name] = placement
    return {name: placement for name, placement in places.items() if placement}


class _Fitness:
    """Both objectives of many solutions at once, from one table of speed-ups: (job, spread or not, workers)."""

    def __init__(self, jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], base: States, time_s: float):
        slots = sum(node.slots for node in nodes)
        self.capacity = np.array([node.slots for node in nodes])
        self.base = base
        self.share = len(nodes) / slots
        most = max(max(max(job.most, job.least) for job in jobs), int(base.sum(axis=1).max()), 1)
        fair = -(-slots // len(jobs))
        self.table = np.stack(
            [_speedups(job, job.node_kind or nodes[0].kind, most, fair, int(self.capacity.max())) for job in jobs]
        )
        self.stride = most + 1
        self.flat = self.table.reshape(-1)
        self.rows = np.arange(len(jobs)) * 2 * self.stride
        age = np.array([max(time_s - job.arrival_s, 0.0) for job in jobs])
        restarts = np.array([job.restarts for job in jobs])
        self.factor = np.maximum(age - restarts * RESTART_S, 0.0) / (age + RESTART_S)

    def __call__(self, states: States) -> Floats:
        workers = states.sum(axis=2)
        spread = (states > 0).sum(axis=2) > 1
        speedups = self.flat[self.rows + spread * self.stride + workers]
        moved = (states != self.base).any(axis=2)
        scaled = speedups * self.share * np.where(moved, self.factor, 1.0) + 1e-3
        fitness = states.shape[1] / (1.0 / scaled).sum(axis=1)
        active = ((states.sum(axis=1) > 0) * self.capacity).sum(axis=1)
        utility = speedups.sum(axis=1) / np.maximum(active, 1)
        return np.column_stack([-fitness, -utility])


_tables: dict[tuple[GoodputModel, int, int], Floats] = {}
_fair: dict[tuple[GoodputModel, int], float] = {}


def _speedups(job: SchedulableJob, kind: str, most: int, fair: int, slots: int) -> Floats:
    """(within a node or across, 0…most workers) relative to a fair share; linear for a job that has never been measured."""
    model = job.model(kind)
    if model is None:
        return np.broadcast_to(np.arange(most + 1) / fair, (2, most + 1)).astype(np.float64)
    reach = max(job.most, job.least)
    key = (model, reach, slots)
    table = _tables.get(key)
    if table is None:
        if len(_tables) > REMEMBERED:
            _tables.clear()
        inside = list(range(1, min(slots, reach) + 1))
        outside = list(range(2, reach + 1))
        values = goodputs([model], across=[False] * len(inside) + [True] * len(outside), workers=inside + outside)[0]
        table = np.zeros((2, reach + 1))
        table[0, 1 : len(inside) + 1] = values[: len(inside)]
        table[1, 2:] = values[len(inside) :]
        _tables[key] = table
    base_key = (model, min(fair, model.batch.most_workers))
    base = _fair.get(base_key)
    if base is None:
        if len(_fair) > REMEMBERED:
            _fair.clear()
        base = _fair[base_key] = model.choose(nodes=1, workers=base_key[1]).goodput
    wide = np.zeros((2, most + 1))
    wide[:, : reach + 1] = table / base if base > 0 else 0.0
    return wide
