"""Marginal gain in remaining time for each added worker (Peng et al., Optimus, EuroSys'18).

Everybody gets its fewest workers in order of arrival. Then one worker after another goes to the job whose predicted remaining time,
steps left × seconds a step, falls most by it. The published simulation hands Optimus the true step times and the true
number of steps (an oracle); where a job has neither, its fitted model stands in, and a job without any model gets no more
than its fewest workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from stretto.core.text import quantity
from stretto.scheduling.slots import Quotas, free_slots, one_kind, slots_for, still_valid
from stretto.scheduling.types import Allocation, ClusterNode, Placement, PolicyTraits, SchedulableJob, size

TRAITS = PolicyTraits(batch="fixed", needs_lengths=True)


def optimus(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], now: Allocation, time_s: float) -> Allocation:
    kept = still_valid(jobs, nodes, now)
    fixed = {job.name: size(kept[job.name]) for job in jobs if job.pinned and job.name in kept}
    counts, reasons = _sizes(jobs, nodes, fixed, kept)
    places = {name: placement for name, placement in kept.items() if size(placement) == counts[name]}
    # Whoever may not be taken off keeps its slots until it has others: its new size may fit on no kind of node.
    rooted = {job.name: kept[job.name] for job in jobs if not job.preemptible and job.name in kept and job.name not in places}
    free = free_slots(nodes, places | rooted)
    for job in sorted(jobs, key=lambda job: (job.name not in rooted, job.node_kind is None, counts[job.name])):
        before = rooted.get(job.name, ())
        if job.name in places or not (counts[job.name] or before):
            continue
        for node, count in before:
            free[node] += count
        placement = one_kind(nodes, free, counts[job.name], kind=job.node_kind) if counts[job.name] else ()
        if not placement and before:
            placement = _part(before, counts[job.name])
            for node, count in placement:
                free[node] -= count
        if placement:
            places[job.name] = placement
        else:
            reasons[job.name] = f"waits: no kind of node has {counts[job.name]} free slots"
    return Allocation(places, reasons)


def _part(placement: Placement, most: int) -> Placement:
    """At most `most` of these workers; all of them for 0."""
    part: list[tuple[str, int]] = []
    for node, count in placement:
        taken = min(count, most - size(tuple(part))) if most else count
        if taken > 0:
            part.append((node, taken))
    return tuple(part)


def _sizes(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    fixed: dict[str, int],
    kept: dict[str, Placement],
) -> tuple[dict[str, int], dict[str, str]]:
    free = sum(node.slots for node in nodes) - sum(fixed.values())
    of_kind: dict[str | None, int] = {job.node_kind: slots_for(job, nodes) for job in jobs if job.node_kind is not None}
    for job in jobs:
        if job.node_kind is not None:
            of_kind[job.node_kind] -= fixed.get(job.name, 0)
    quotas = Quotas(jobs)
    counts = {job.name: 0 for job in jobs} | fixed
    reasons = dict.fromkeys(fixed, "pinned")
    for job in jobs:
        quotas.reserve(job, fixed.get(job.name, 0))
    ordered = sorted(
        (job for job in jobs if job.name not in fixed),
        key=lambda job: (job.preemptible or job.name not in kept, -job.priority, job.least),
    )
    for job in ordered:
        if job.least <= min(free, quotas.left(job), of_kind.get(job.node_kind, free)):
            counts[job.name] = job.least
            free -= job.least
            if job.node_kind is not None:
                of_kind[job.node_kind] -= job.least
            quotas.reserve(job, job.least)
            reasons[job.name] = "its fewest workers"
        else:
            reasons[job.name] = f"needs {quantity(job.least, 'slot')}, {free} are free"
    predict = {job.name: _predictor(job, nodes) for job in ordered}
    heap: list[tuple[float, int, SchedulableJob]] = []
    for place, job in enumerate(ordered):
        if counts[job.name]:
            _push(heap, place, job, counts[job.name], predict[job.name])
    while free > 0 and heap:
        gain, place, job = heapq.heappop(heap)
        if min(quotas.left(job), of_kind.get(job.node_kind, free)) < 1:
            continue
        counts[job.name] += 1
        free -= 1
        if job.node_kind is not None:
            of_kind[job.node_kind] -= 1
        quotas.reserve(job, 1)
        reasons[job.name] = f"the {counts[job.name]}th worker saves {-gain:.0f} s, more than elsewhere"
        _push(heap, place, job, counts[job.name], predict[job.name])
    return counts, reasons


def _push(
    heap: list[tuple[float, int, SchedulableJob]],
    place: int,
    job: SchedulableJob,
    count: int,
    predict: Callable[[int], float | None],
) -> None:
    here, there = predict(count), predict(count + 1) if count < job.most else None
    if here is not None and there is not None and here > there:
        heapq.heappush(heap, (there - here, place, job))


def _predictor(job: SchedulableJob, nodes: Sequence[ClusterNode]) -> Callable[[int], float | None]:
    """Remaining seconds on `count` workers."""
    oracle, left = job.step_s, job.steps_left
    if oracle is not None and left is not None:
        return lambda count: oracle[count - 1] * left if count <= len(oracle) else None
    kind = job.node_kind or (nodes[0].kind if nodes else "")
    model = job.model(kind)
    if model is None:
        return lambda count: None
    slots = max((node.slots for node in nodes), default=1)
    work = job.remaining if job.remaining is not None else model.batch.initial * 1000.0

    def modelled(count: int) -> float | None:
        speed = model.choose(nodes=-(-count // slots), workers=count).goodput
        return work / speed if speed > 0 else None

    return modelled
