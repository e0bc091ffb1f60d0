"""First in, first out, with back-filling: fixed sizes in order of arrival, nobody is moved.

The usual baseline. The first job that does not fit keeps its turn: later ones are started in the gaps (back-filling)
only while they leave it no fewer free slots than it would otherwise have, which without known lengths means: anything that
fits now. A job that has waited longer than `patience_s` stops the back-filling behind it, so that no large job starves.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.text import quantity
from stretto.scheduling.slots import Quotas, free_slots, one_kind, still_valid
from stretto.scheduling.types import Allocation, ClusterNode, PolicyTraits, SchedulableJob, size

TRAITS = PolicyTraits(fixed_sizes=True, batch="fixed")
PATIENCE_S = 4 * 3600.0


def fifo(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    now: Allocation,
    time_s: float,
    *,
    patience_s: float = PATIENCE_S,
) -> Allocation:
    places = still_valid(jobs, nodes, now)
    free = free_slots(nodes, places)
    quotas = Quotas(jobs)
    reasons: dict[str, str] = {}
    for job in jobs:
        if job.name in places:
            quotas.reserve(job, size(places[job.name]))
            reasons[job.name] = "runs at the size it asked for"
    blocked = False
    for job in sorted(jobs, key=lambda job: (-job.priority, job.arrival_s, job.name)):
        if job.name in places:
            continue
        wanted = min(max(job.wanted or job.least, job.least), job.most)
        if wanted > quotas.left(job):
            reasons[job.name] = f"needs {quantity(wanted, 'slot')}, {max(quotas.left(job), 0)} are left of its owner's quota"
            continue
        if blocked:
            reasons[job.name] = "waits behind a job that has waited too long to be passed again"
            continue
        placement = one_kind(nodes, free, wanted, kind=job.node_kind)
        if placement:
            places[job.name] = placement
            quotas.reserve(job, wanted)
            reasons[job.name] = f"started on {quantity(wanted, 'worker')}: it was next, or it fits into a gap"
        else:
            room = sum(free[node.name] for node in nodes if job.runs_on(node.kind))
            kind = "" if job.node_kind is None else f" on nodes of kind {job.node_kind}"
            reasons[job.name] = f"needs {quantity(wanted, 'slot')}, {room} are free{kind}"
            blocked = time_s - job.arrival_s > patience_s
    return Allocation(places, reasons)
