"""How many nodes to have: a wanted number for each offer (kind of node and way of paying), with reasons, for an autoscaler
to act on.

Two rules. By utilisation: as many nodes as keep the jobs' modelled scaling efficiency (speed-up over slots, the utility of
Pollux and AdaptDL) inside a band. By worth: another node as long as what it adds is worth more than its price, where an
hour of one worker at full efficiency is worth `worth` (the utility-against-cost rule of the AutoScaling Engine, MLSys'20).
Spot nodes cost less and are taken away: each reclaim costs the jobs on the node a pause, which is part of the price
compared here. A minimum of on-demand nodes stays. Hysteresis: small differences and shrinking soon after a change are not acted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.core.errors import UsageError
from stretto.scheduling.candidate_sizes import options
from stretto.scheduling.knapsack import choose, total
from stretto.scheduling.types import ClusterNode, SchedulableJob

MOST_NODES = 512
"""Nodes that are considered at most, all offers together."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Nodes that can be had."""

    name: str
    slots: int
    price: float
    """For an hour of one node."""
    kind: str = "default"
    spot: bool = False
    reclaims_per_hour: float = 0.0
    """How often one such node is taken away."""
    most: int = 16

    def node(self, number: int) -> ClusterNode:
        return ClusterNode(f"{self.name}-{number}", self.slots, self.kind, self.price, self.spot)


@dataclass(frozen=True, slots=True)
class Aims:
    """What the cluster is sized for: a band of scaling efficiency or the worth of the work, and how steady the size should be."""

    low: float = 0.5
    high: float = 0.8
    """The band that the scaling efficiency should be in; ignored with `worth`."""
    worth: float | None = None
    """What an hour of one worker at full efficiency is worth, in the currency of the prices."""
    least_on_demand: int = 0
    margin: int = 1
    """Differences of up to this many nodes are ignored, unless jobs have no slot at all."""
    hold_s: float = 900.0
    """No shrinking sooner than this after the last change."""


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """How many nodes of each offer to have, why, and what they bring and cost."""

    nodes: Mapping[str, int]
    reasons: tuple[str, ...]
    efficiency: float
    """Modelled speed-up over slots on the wanted nodes."""
    price: float
    """For an hour, without preemptions."""
    preemptions: float
    """Expected cost of preemptions in an hour, in worker-hours lost."""


def wanted(
    jobs: Sequence[SchedulableJob],
    offers: Sequence[Offer],
    have: Mapping[str, int],
    aims: Aims,
    *,
    time_s: float,
    changed_s: float | None = None,
) -> WantedNodes:
    """How many nodes of each offer to have. `have` is what there is now, `changed_s` when that changed last."""
    _check(offers, aims)
    order = _order(jobs, offers, aims)
    speeds = _speeds(jobs, order)
    least = min(aims.least_on_demand, sum(not offer.spot for offer in order))
    reasons: list[str] = []
    count = (
        _by_worth(order, speeds, jobs, aims, least, reasons)
        if aims.worth is not None
        else _by_band(order, speeds, aims, least, reasons)
    )
    counts = {offer.name: 0 for offer in offers}
    for offer in order[:count]:
        counts[offer.name] += 1
    counts = _steady(counts, have, jobs, aims, time_s, changed_s, reasons)
    return _answer(counts, offers, jobs, speeds, reasons)


def preemption_cost(offer: Offer, jobs: Sequence[SchedulableJob]) -> float:
    """Worker-hours that an hour of one such node loses to reclaims: its slots stand still for a pause each time."""
    pause = float(np.mean([job.pause_s for job in jobs])) if jobs else 0.0
    return offer.reclaims_per_hour * offer.slots * pause / 3600.0 if offer.spot else 0.0


def _check(offers: Sequence[Offer], aims: Aims) -> None:
    if not offers:
        raise UsageError("cluster sizing needs at least one offer of nodes")
    if not 0 < aims.low < aims.high <= 1:
        raise UsageError(f"the band of efficiency is {aims.low} to {aims.high}: it has to satisfy 0 < low < high <= 1")
    for offer in offers:
        if offer.slots < 1 or offer.price < 0 or offer.most < 0:
            raise UsageError(
                f"offer {offer.name}: slots {offer.slots}, price {offer.price}, most {offer.most}: none may be negative or no slots"
            )
    if sum(offer.most for offer in offers) > MOST_NODES:
        raise UsageError(
            f"the offers have {sum(offer.most for offer in offers)} nodes together, {MOST_NODES} are considered: lower `most`"
        )


def _effective_price(offer: Offer, jobs: Sequence[SchedulableJob]) -> float:
    """Price of a slot-hour with what preemptions lose on it."""
    lost = preemption_cost(offer, jobs) / offer.slots
    return offer.price / offer.slots / max(1.0 - lost, 1e-6)


def _order(jobs: Sequence[SchedulableJob], offers: Sequence[Offer], aims: Aims) -> list[Offer]:
    """Nodes in the order in which to have them: the minimum of on-demand first, then the cheapest slot, preemptions included."""
    cheap = sorted(offers, key=lambda offer: (_effective_price(offer, jobs), offer.name))
    steady = [offer for offer in cheap if not offer.spot for _ in range(offer.most)]
    first = steady[: aims.least_on_demand]
    left = {offer.name: offer.most - first.count(offer) for offer in offers}
    return first + [offer for offer in cheap for _ in range(left[offer.name])]


def _speeds(jobs: Sequence[SchedulableJob], order: Sequence[Offer]) -> list[float]:
    """The jobs' total speed-up on the first 0, 1, 2, … nodes."""
    speeds = [0.0]
    for count in range(1, len(order) + 1):
        if not jobs:
            speeds.append(0.0)
            continue
        nodes = [offer.node(place) for place, offer in enumerate(order[:count])]
        table = options(jobs, nodes, held=[0] * len(jobs))
        value = np.where(table.speed > 0, table.speed, -np.inf)
        capacity = np.array([group.capacity for group in table.groups])
        picks = choose(value, table.size, table.group, capacity)
        speeds.append(max(total(value, picks), speeds[-1]))
        if count > 4 and speeds[-1] <= speeds[-3] * (1 + 1e-9):
            # Nobody gains from further nodes: the curve stays flat.
            return speeds + [speeds[-1]] * (len(order) - count)
    return speeds


def _by_worth(
    order: Sequence[Offer], speeds: Sequence[float], jobs: Sequence[SchedulableJob], aims: Aims, least: int, reasons: list[str]
) -> int:
    worth = aims.worth or 0.0
    profit = [0.0]
    for count, offer in enumerate(order, start=1):
        lost = preemption_cost(offer, jobs)
        profit.append(profit[-1] + (speeds[count] - speeds[count - 1] - lost) * worth - offer.price)
    best = max(range(least, len(profit)), key=lambda count: (round(profit[count], 9), -count))
    reasons.append(
        f"{best} nodes: their work is worth {speeds[best] * worth:.2f} an hour at {worth:g} for a worker-hour, "
        f"{profit[best]:.2f} more than they cost"
    )
    return best


def _by_band(order: Sequence[Offer], speeds: Sequence[float], aims: Aims, least: int, reasons: list[str]) -> int:
    slots = np.cumsum([0] + [offer.slots for offer in order])
    ratio = [speeds[count] / slots[count] if slots[count] else 1.0 for count in range(len(speeds))]
    inside = [count for count in range(max(least, 1), len(ratio)) if ratio[count] >= aims.low]
    if speeds[-1] <= 0:
        reasons.append(f"{least} nodes: there is nothing to run")
        return least
    middle = (aims.low + aims.high) / 2
    band = [count for count in inside if ratio[count] <= aims.high]
    if band:
        best = min(band, key=lambda count: (abs(ratio[count] - middle), count))
        reasons.append(f"{best} nodes: a scaling efficiency of {ratio[best]:.0%}, in the band of {aims.low:.0%} to {aims.high:.0%}")
    else:
        best = max(inside, default=max(least, 1))
        reasons.append(f"{best} nodes: a scaling efficiency of {ratio[best]:.0%}, none is in {aims.low:.0%} to {aims.high:.0%}")
    return best


def _steady(
    counts: dict[str, int],
    have: Mapping[str, int],
    jobs: Sequence[SchedulableJob],
    aims: Aims,
    time_s: float,
    changed_s: float | None,
    reasons: list[str],
) -> dict[str, int]:
    """Hysteresis: what there is stays, if the difference is small or it is too soon to shrink."""
    now = {name: have.get(name, 0) for name in counts}
    if counts == now:
        return counts
    before, after = sum(now.values()), sum(counts.values())
    starved = before == 0 and bool(jobs)
    if not starved and max(abs(counts[name] - now[name]) for name in counts) <= aims.margin and after > 0:
        reasons.append(f"{before} are kept: the difference is within the margin of {aims.margin}")
        return now
    if after < before and changed_s is not None and time_s - changed_s < aims.hold_s:
        reasons.append(
            f"{before} are kept: the last change was {time_s - changed_s:.0f} s ago, shrinking waits {aims.hold_s:.0f} s"
        )
        return now
    return counts


def _answer(
    counts: dict[str, int], offers: Sequence[Offer], jobs: Sequence[SchedulableJob], speeds: Sequence[float], reasons: list[str]
) -> WantedNodes:
    slots = sum(offer.slots * counts[offer.name] for offer in offers)
    number = min(sum(counts.values()), len(speeds) - 1)
    return WantedNodes(
        nodes=counts,
        reasons=tuple(reasons),
        efficiency=speeds[number] / slots if slots else 0.0,
        price=sum(offer.price * counts[offer.name] for offer in offers),
        preemptions=sum(preemption_cost(offer, jobs) * counts[offer.name] for offer in offers),
    )
