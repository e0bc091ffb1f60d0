"""Which option each job takes: a multiple-choice knapsack, solved by prices.

A slot of each group has a price; every job takes the option with the highest value minus price. The lowest prices at which
everybody fits are found by bisection, all jobs at once in numpy. What the prices leave over is dealt out greedily. Where it
is worth its few milliseconds the optimum itself is found: by a dynamic programme over the slots for one group, by HiGHS for
several small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NONE = -1
EXACT_WORK = 60_000
"""Jobs × options × slots up to which the exact programme runs: a few milliseconds."""
EXACT_OPTIONS = 400
"""Jobs × options up to which HiGHS is asked when there are several groups: prices alone may be far off for a few jobs."""
EXACT_NODES = 200
"""Branches after which HiGHS gives its best answer: not a time, so that a busy machine decides the same."""
BISECTIONS = 40
ROUNDS = 6
"""Passes over the groups' prices when there are several groups."""


def choose(value: Floats, size: Ints, group: Ints, capacity: Ints, *, exact: bool | None = None) -> Ints:
    """The option of each job (its column, or −1 for none) with the highest total value within each group's capacity.

    `value` is (jobs, options); options that are not allowed are −inf. Taking none is worth 0.
    """
    if not value.size:
        return np.full(len(value), NONE, dtype=np.int64)
    single_group = len(capacity) == 1
    small = value.size * int(capacity.sum()) <= EXACT_WORK
    if single_group and (small if exact is None else exact):
        return _programme(value, size, int(capacity[0]))
    picks = _fill(_priced(value, size, group, capacity), value, size, group, capacity)
    if not single_group and (value.size <= EXACT_OPTIONS if exact is None else exact):
        refined = _mixed_integer(value, size, group, capacity)
        if refined is not None and total(value, refined) > total(value, picks):
            return refined
    return picks


def total(value: Floats, picks: Ints) -> float:
    taken = picks >= 0
    return float(value[np.flatnonzero(taken), picks[taken]].sum())


def _best(value: Floats, cost: Floats) -> Ints:
    """Every job's best column at these costs of the columns; −1 where nothing is worth its price."""
    net = value - cost
    picks = net.argmax(axis=1)
    return np.where(net[np.arange(len(net)), picks] > 0, picks, NONE)


def _demand(picks: Ints, size: Ints, group: Ints, groups: int) -> Ints:
    taken = picks[picks >= 0]
    return np.bincount(group[taken], weights=size[taken], minlength=groups).astype(np.int64)


def _priced(value: Floats, size: Ints, group: Ints, capacity: Ints) -> Ints:
    groups = len(capacity)
    prices = np.zeros(groups)
    ceiling = float(np.max(value / size, initial=0.0, where=np.isfinite(value))) * 1.01 + 1e-12
    picks = _best(value, prices[group] * size)
    for _ in range(ROUNDS if groups > 1 else 1):
        if (_demand(picks, size, group, groups) <= capacity).all():
            break
        for place in range(groups):
            low, high = 0.0, ceiling
            for _ in range(BISECTIONS):
                prices[place] = (low + high) / 2
                picks = _best(value, prices[group] * size)
                if _demand(picks, size, group, groups)[place] > capacity[place]:
                    low = prices[place]
                else:
                    high = prices[place]
            prices[place] = high
            picks = _best(value, prices[group] * size)
            if groups == 1:
                prices[place] = low
                return _ties(picks, _best(value, prices[group] * size), size, group, capacity)
    return _shed(picks, value, size, group, capacity)


def _ties(picks: Ints, greedier: Ints, size: Ints, group: Ints, capacity: Ints) -> Ints:
    """Equal jobs all jump at one price: let as many of them jump as fit."""
    differ = np.flatnonzero(picks != greedier)
    if not len(differ):
        return picks
    width = np.append(size, 0)
    extra = width[greedier[differ]] - width[picks[differ]]
    left = int(capacity[0] - _demand(picks, size, group, 1)[0])
    jump = differ[np.cumsum(np.maximum(extra, 0)) <= left]
    picks = picks.copy()
    picks[jump] = greedier[jump]
    return picks


def _shed(picks: Ints, value: Floats, size: Ints, group: Ints, capacity: Ints) -> Ints:
    """With several groups the prices may not settle: take away what is worth least a slot until every group fits."""
    picks = picks.copy()
    demand = _demand(picks, size, group, len(capacity))
    for place in np.flatnonzero(demand > capacity):
        members = np.flatnonzero((picks >= 0) & (group[picks] == place))
        worth = value[members, picks[members]] / size[picks[members]]
        for row in members[np.argsort(worth, kind="stable")]:
            if demand[place] <= capacity[place]:
                break
            demand[place] -= size[picks[row]]
            picks[row] = NONE
    return picks


def _fill(picks: Ints, value: Floats, size: Ints, group: Ints, capacity: Ints) -> Ints:
    """Deal out what is left: the change with the highest gain for each slot that it takes, again and again."""
    picks = picks.copy()
    left = capacity - _demand(picks, size, group, len(capacity))
    width = np.append(size, 0)
    rows = np.arange(len(value))
    for _ in range(int(left.sum()) + 1):
        if left.max(initial=0) <= 0:
            break
        worth = np.where(picks >= 0, value[rows, picks], 0.0)
        refund = np.where((picks >= 0)[:, None] & (group[picks][:, None] == group[None, :]), width[picks][:, None], 0)
        extra = size[None, :] - refund
        gain = value - worth[:, None]
        rate = np.where((gain > 1e-12) & (extra <= left[group][None, :]), gain / np.maximum(extra, 1e-3), 0.0)
        place = int(rate.argmax())
        row, column = divmod(place, value.shape[1])
        if rate[row, column] <= 0:
            break
        if picks[row] >= 0:
            left[group[picks[row]]] += size[picks[row]]
        left[group[column]] -= size[column]
        picks[row] = column
    return picks


def _programme(value: Floats, size: Ints, capacity: int) -> Ints:
    """The optimum for one group: best total for every number of slots, job by job."""
    slots = np.arange(capacity + 1)
    # Where each option comes from: that many slots fewer, or a place that is worth −∞ if there are not enough.
    source = np.where(slots[None, :] >= size[:, None], slots[None, :] - size[:, None], capacity + 1)
    best = np.append(np.zeros(capacity + 1), -np.inf)
    taken = np.full((len(value), capacity + 1), NONE, dtype=np.int64)
    for row in range(len(value)):
        offers = best[source] + value[row][:, None]
        choice = offers.argmax(axis=0)
        offer = offers[choice, slots]
        better = offer > best[:-1]
        taken[row, better] = choice[better]
        best[:-1][better] = offer[better]
    picks = np.full(len(value), NONE, dtype=np.int64)
    left = int(best[:-1].argmax())
    for row in range(len(value) - 1, -1, -1):
        picks[row] = taken[row, left]
        if picks[row] >= 0:
            left -= int(size[picks[row]])
    return picks


class Solution(Protocol):
    """What is used of scipy's `OptimizeResult`."""

    x: Floats | None


class Solver(Protocol):
    """What is used of `scipy.optimize`, which has no types."""

    def Bounds(self, lb: float, ub: float) -> object: ...

    def LinearConstraint(self, A: Floats, *, ub: float | Floats) -> object: ...

    def milp(
        self, c: Floats, *, integrality: Floats, bounds: object, options: dict[str, int], constraints: Sequence[object]
    ) -> Solution: ...


def _mixed_integer(value: Floats, size: Ints, group: Ints, capacity: Ints) -> Ints | None:
    """The optimum for several groups by HiGHS; None if it finds nothing in time."""
    from scipy import optimize

    solver = cast("Solver", optimize)
    rows, columns = np.nonzero(value > 0)
    if not len(rows):
        return None
    one_each = np.zeros((len(value), len(rows)))
    one_each[rows, np.arange(len(rows))] = 1.0
    slots = np.zeros((len(capacity), len(rows)))
    slots[group[columns], np.arange(len(rows))] = size[columns]
    solution = solver.milp(
        -value[rows, columns],
        integrality=np.ones(len(rows)),
        bounds=solver.Bounds(0, 1),
        options={"node_limit": EXACT_NODES},
        constraints=[solver.LinearConstraint(one_each, ub=1.0), solver.LinearConstraint(slots, ub=capacity.astype(np.float64))],
    )
    if solution.x is None:
        return None
    picks = np.full(len(value), NONE, dtype=np.int64)
    taken = np.asarray(solution.x, dtype=np.float64) > 0.5
    picks[rows[taken]] = columns[taken]
    return picks if (_demand(picks, size, group, len(capacity)) <= capacity).all() else None
