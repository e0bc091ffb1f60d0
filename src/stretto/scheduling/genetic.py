"""The genetic search of Pollux: populations of allocations as arrays (solutions, jobs, nodes) of numbers of workers.

Operators as published (Pollux, OSDI'21, section 4.2): one-point crossover over jobs; mutation that resets rows to the allocation
now, clears elements and raises elements on nodes with room; repair that keeps one spread job a node, the jobs' limits and
the nodes' capacity. Selection, ranking and crowding are those of NSGA-II (Deb et al. 2002) on two objectives.
Rows that an operator does not touch are not computed: this is what makes the search fast enough for simulations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.int16]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Random = np.random.Generator


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What every solution has to respect. Jobs are in the order in which they win when they collide."""

    base: States
    """The allocation now: (jobs, nodes)."""
    capacity: Ints
    least: Ints
    most: Ints
    pinned: NDArray[np.bool_]
    kinds: Ints
    """A number for each node's kind."""
    allowed: NDArray[np.bool_] | None = None
    """(jobs, nodes): whether the job may run there; None: every job everywhere."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Bounds of the search: time and memory grow with `population` times `generations`."""

    population: int = 100
    generations: int = 100
    patience: int = 100
    """Generations without a better solution after which the search stops."""
    crossover: float = 0.9


def search(
    start: States, limits: SearchLimits, evaluate: Callable[[States], Floats], random: Random, effort: Effort
) -> tuple[States, Floats]:
    """The last population's best front: solutions and their objectives (both smaller is better)."""
    states = _distinct(repair(start, limits, random), set())
    values = evaluate(states)
    rank, crowd = _rank(values)
    best, since = float(values[:, 0].min()), 0
    for _ in range(effort.generations - 1):
        known = {row.tobytes() for row in states}
        children = _children(states, crowd, values, limits, random, effort, known)
        if not len(children):
            break
        states = np.concatenate([states, children])
        values = np.concatenate([values, evaluate(children)])
        rank, crowd = _rank(values)
        order = np.lexsort((-crowd, rank))[: effort.population]
        states, values, rank, crowd = states[order], values[order], rank[order], crowd[order]
        now = float(values[:, 0].min())
        since = 0 if now < best - 1e-9 else since + 1
        best = min(best, now)
        if since >= effort.patience:
            break
    front = rank == 0
    return states[front], values[front]


def _children(
    states: States,
    crowd: Floats,
    values: Floats,
    limits: SearchLimits,
    random: Random,
    effort: Effort,
    known: set[bytes],
) -> States:
    """A population of new solutions; a second attempt replaces those that were there already."""
    batches: list[States] = []
    count = 0
    for _ in range(3):
        pairs = (effort.population - count + 1) // 2
        parents = _tournament(values, crowd, 2 * pairs, random).reshape(2, pairs)
        fresh = repair(mutate(_crossover(states, parents, random, effort.crossover), limits, random), limits, random)
        fresh = _distinct(fresh, known)[: effort.population - count]
        batches.append(fresh)
        count += len(fresh)
        if count >= effort.population:
            break
    return np.concatenate(batches)


def _distinct(states: States, known: set[bytes]) -> States:
    keep: list[int] = []
    for place, row in enumerate(states):
        key = row.tobytes()
        if key not in known:
            known.add(key)
            keep.append(place)
    return states[keep] if len(keep) < len(states) else states


def _tournament(values: Floats, crowd: Floats, count: int, random: Random) -> Ints:
    """Of two random solutions the one that dominates, else the less crowded one."""
    drawn: Ints = random.integers(len(values), size=(2, count))
    first: Ints = drawn[0]
    second: Ints = drawn[1]
    wins = (values[first] <= values[second]).all(axis=1) & (values[first] < values[second]).any(axis=1)
    loses = (values[second] <= values[first]).all(axis=1) & (values[second] < values[first]).any(axis=1)
    return np.where(wins | (~loses & (crowd[first] >= crowd[second])), first, second)


def _crossover(states: States, parents: Ints, random: Random, chance: float) -> States:
    jobs, pairs = int(states.shape[1]), int(parents.shape[1])
    points = np.where(random.random(pairs) < chance, random.integers(jobs, size=pairs), jobs)
    swap = np.arange(jobs)[None, :] >= points[:, None]
    rows = np.arange(jobs)[None, :]
    left: Ints = parents[0]
    right: Ints = parents[1]
    first = np.where(swap, right[:, None], left[:, None])
    second = np.where(swap, left[:, None], right[:, None])
    return np.concatenate([states[first, rows], states[second, rows]])


def mutate(states: States, limits: SearchLimits, random: Random) -> States:
    solutions, jobs, nodes = map(int, states.shape)
    reset = random.random((solutions, jobs), dtype=np.float32) < 0.1
    which = np.nonzero(reset)
    states[which] = limits.base[which[1]]
    rows = np.nonzero(random.random((solutions, jobs), dtype=np.float32) < 0.1)
    states[rows] = np.where(random.random((len(rows[0]), nodes), dtype=np.float32) < 0.1, 0, states[rows])
    room = states.sum(axis=1) < limits.capacity  # (solutions, nodes)
    # On a node with room, each job is raised with probability 1/jobs, ...
    count = int(random.binomial(states.size, 1.0 / jobs))
    drawn = np.unravel_index(random.integers(states.size, size=count), states.shape)
    # ... and each of those already there with one over their number.
    occupied = np.nonzero(states)
    crowd = (states > 0).sum(axis=1)
    lucky = random.random(len(occupied[0]), dtype=np.float32) * crowd[occupied[0], occupied[2]] < 1.0
    picked = tuple(np.concatenate([a, b[lucky]]) for a, b in zip(drawn, occupied, strict=True))
    open_ = room[picked[0], picked[2]]
    picked = tuple(axis[open_] for axis in picked)
    now = states[picked]
    states[picked] = random.integers(now, limits.capacity[picked[2]] + 1)
    return states


def repair(states: States, limits: SearchLimits, random: Random) -> States:
    if limits.allowed is not None:
        states[:, ~limits.allowed] = 0
    _one_spread_job_a_node(states)
    if limits.kinds.any():
        _one_kind_a_job(states, limits.kinds)
    total = states.sum(axis=2)
    over = np.nonzero(total > limits.most)
    if len(over[0]):
        states[over] = _cut(states[over], limits.most[over[1]], random)
    if limits.pinned.any():
        states[:, limits.pinned] = limits.base[limits.pinned]
    full = np.nonzero(states.sum(axis=1) > limits.capacity)
    if len(full[0]):
        columns = np.minimum(np.cumsum(states[full[0], :, full[1]], axis=1), limits.capacity[full[1]][:, None])
        states[full[0], :, full[1]] = np.diff(columns, axis=1, prepend=0)
    if (limits.least > 1).any():
        states[(states.sum(axis=2) < limits.least) & ~limits.pinned] = 0
    return states


def _one_spread_job_a_node(states: States) -> None:
    occupied = states > 0
    spread = occupied.sum(axis=2) > 1
    occupied &= spread[:, :, None]
    crowded = np.nonzero(occupied.sum(axis=1) > 1)
    if len(crowded[0]):
        columns = occupied[crowded[0], :, crowded[1]]
        later = columns & (np.cumsum(columns, axis=1) > 1)
        part = states[crowded[0], :, crowded[1]]
        part[later] = 0
        states[crowded[0], :, crowded[1]] = part


def _one_kind_a_job(states: States, kinds: Ints) -> None:
    totals = np.stack([states[:, :, kinds == kind].sum(axis=2) for kind in range(int(kinds.max()) + 1)], axis=2)
    chosen = totals.argmax(axis=2)
    states[kinds[None, None, :] != chosen[:, :, None]] = 0


def _cut(rows: States, most: Ints, random: Random) -> States:
    """Remove workers from random nodes until the row has no more than its job's most."""
    shuffle = np.argsort(random.random(rows.shape, dtype=np.float32), axis=1)
    mixed = np.take_along_axis(rows, shuffle, axis=1)
    mixed = np.diff(np.minimum(np.cumsum(mixed, axis=1), most[:, None]), axis=1, prepend=0)
    result = np.empty_like(rows)
    np.put_along_axis(result, shuffle, mixed.astype(rows.dtype), axis=1)
    return result


def _rank(values: Floats) -> tuple[Ints, Floats]:
    """The front of every solution (0 is not dominated) and its crowding distance in it, for two objectives."""
    order = np.lexsort((values[:, 1], values[:, 0]))
    rank = np.zeros(len(values), dtype=np.int64)
    tails: list[float] = []  # each front's last second objective; they grow from front to front
    second = values[:, 1].tolist()
    first = values[:, 0].tolist()
    previous: tuple[float, float] | None = None
    level = 0
    for place in order.tolist():
        if (first[place], second[place]) != previous:
            level = bisect_right(tails, second[place])  # the first front whose last member does not dominate this one
            if level == len(tails):
                tails.append(second[place])
            else:
                tails[level] = second[place]
        previous = (first[place], second[place])
        rank[place] = level
    return rank, _crowding(values, rank)


def _crowding(values: Floats, rank: Ints) -> Floats:
    """Sorted by the first objective, a front of two objectives is sorted by the second as well: neighbours are the same in both."""
    order = np.lexsort((-values[:, 1], values[:, 0], rank))
    level, ordered = rank[order], values[order]
    starts = np.flatnonzero(np.diff(level, prepend=-1))
    ends = np.append(starts[1:], len(level)) - 1
    width = np.abs(ordered[ends] - ordered[starts])
    width = np.where(width > 0, width, 1.0)[level]
    distance = np.full(len(values), np.inf)
    inner = np.ones(len(values), dtype=bool)
    inner[starts] = inner[ends] = False
    places = np.flatnonzero(inner)
    distance[order[places]] = (np.abs(ordered[places + 1] - ordered[places - 1]) / width[places]).sum(axis=1)
    return distance
