"""Discretised two-queue least attained service on fixed sizes (Gu et al., Tiresias, NSDI'19).

Jobs that have held fewer than `threshold_s` slot-seconds form the first queue, in order of arrival; the others the second,
in order of demotion. Slots are dealt along the first queue, then the second; whoever is not dealt any is preempted. Nobody
is promoted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from stretto.core.text import quantity
from stretto.scheduling.slots import Quotas, free_slots, one_kind, slots_for, still_valid
from stretto.scheduling.types import Allocation, ClusterNode, PolicyTraits, SchedulableJob, size

TRAITS = PolicyTraits(fixed_sizes=True, batch="fixed")
THRESHOLD_S = 16 * 3600.0
"""Slot-seconds: the published simulation's single threshold."""


def tiresias(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    now: Allocation,
    time_s: float,
    *,
    threshold_s: float = THRESHOLD_S,
) -> Allocation:
    order, demoted = _queues(jobs, now, threshold_s)
    kept = still_valid(jobs, nodes, now)
    total = sum(node.slots for node in nodes)
    of_kind: dict[str | None, int] = {job.node_kind: slots_for(job, nodes) for job in jobs if job.node_kind is not None}
    quotas = Quotas(jobs)
    running: list[SchedulableJob] = []
    reasons: dict[str, str] = {}
    for job in sorted(order, key=lambda job: not (job.name in kept and (job.pinned or not job.preemptible))):
        count = _size(job)
        if job.name in kept and (job.pinned or not job.preemptible):
            count = size(kept[job.name])
        if count <= min(total, of_kind.get(job.node_kind, total)) and count <= quotas.left(job):
            running.append(job)
            total -= count
            if job.node_kind is not None:
                of_kind[job.node_kind] -= count
            quotas.reserve(job, count)
        else:
            kept.pop(job.name, None)
            reasons[job.name] = f"waits: no room for its {quantity(count, 'slot')} after those before it in the queues"
    free = free_slots(nodes, kept)
    position = {job.name: place for place, job in enumerate(order)}
    for job in sorted(running, key=lambda job: (job.node_kind is None, position[job.name])):
        if job.name not in kept:
            placement = one_kind(nodes, free, _size(job), kind=job.node_kind)
            if not placement:
                reasons[job.name] = f"waits: no kind of node has {_size(job)} free slots"
                continue
            kept[job.name] = placement
        queue = "second" if job.name in demoted else "first"
        reasons[job.name] = f"in the {queue} queue with {job.attained_s:.0f} slot-seconds attained"
    return Allocation(kept, reasons, memory=tuple(demoted))


def _queues(jobs: Sequence[SchedulableJob], now: Allocation, threshold_s: float) -> tuple[list[SchedulableJob], list[str]]:
    """All jobs in the order of service, and the names of the demoted ones in the order of their demotion."""
    arrivals = sorted(jobs, key=lambda job: (-job.priority, job.arrival_s))
    by_name = {job.name: job for job in jobs}
    memory = cast("tuple[str, ...] | None", now.memory)
    before = memory if isinstance(memory, tuple) else ()
    demoted = [name for name in before if name in by_name]
    demoted += [job.name for job in arrivals if job.attained_s >= threshold_s and job.name not in set(demoted)]
    late = set(demoted)
    return [job for job in arrivals if job.name not in late] + [by_name[name] for name in demoted], demoted


def _size(job: SchedulableJob) -> int:
    return min(max(job.wanted or job.least, job.least), job.most)
