"""The check of an allocation: capacity, limits, kinds, quotas, pins, preemptibility. The pipeline applies it to every answer."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.errors import PolicyError
from stretto.scheduling.slots import still_valid
from stretto.scheduling.types import Allocation, ClusterNode, Placement, SchedulableJob, same, size


def check(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], now: Allocation, answer: Allocation) -> None:
    """Raise `PolicyError` that names the job, the number and the bound if `answer` breaks a limit.

    A placement that exceeds a job's limits or its owner's quota already is no error while it does not grow.
    """
    by_name = {job.name: job for job in jobs}
    machines = {node.name: node for node in nodes}
    used = dict.fromkeys(machines, 0)
    for name, placement in answer.places.items():
        job = by_name.get(name)
        if job is None:
            if placement:
                raise PolicyError(f"{name} was allocated {size(placement)} slots, but it is not a waiting or running job")
            continue
        _check_size(job, now.of(name), placement)
        _check_nodes(job, placement, machines)
        for node, count in placement:
            used[node] += count
    for node, count in used.items():
        if count > machines[node].slots:
            raise PolicyError(f"{node} has {machines[node].slots} slots, {count} were allocated")
    _check_quotas(jobs, now, answer)
    valid = still_valid(jobs, nodes, now)
    for job in jobs:
        before, after = valid.get(job.name), answer.of(job.name)
        if before and job.pinned and not same(before, after):
            raise PolicyError(f"{job.name} is pinned, but was moved from {before} to {after}")
        if before and not job.preemptible and not after:
            raise PolicyError(f"{job.name} is not preemptible, but was taken off the cluster")


def _check_size(job: SchedulableJob, before: Placement, placement: Placement) -> None:
    workers = size(placement)
    if placement and not job.least <= workers <= max(job.most, job.least) and workers != size(before):
        raise PolicyError(f"{job.name} was allocated {workers} workers, its limits are {job.least} to {job.most}")


def _check_nodes(job: SchedulableJob, placement: Placement, machines: dict[str, ClusterNode]) -> None:
    if len({node for node, _ in placement}) != len(placement):
        raise PolicyError(f"{job.name} is placed twice on one node: {placement}")
    for node, count in placement:
        if node not in machines:
            raise PolicyError(f"{job.name} is placed on {node}, which is not a node of the cluster")
        if count < 1:
            raise PolicyError(f"{job.name} is placed on {node} with {count} workers; leave the node out instead")
        if not job.runs_on(machines[node].kind):
            kind = machines[node].kind
            raise PolicyError(f"{job.name} is placed on {node} of kind {kind}, it runs on nodes of kind {job.node_kind} only")
    if len({machines[node].kind for node, _ in placement}) > 1:
        raise PolicyError(f"{job.name} is spread over several kinds of nodes: {placement}")


def _check_quotas(jobs: Sequence[SchedulableJob], now: Allocation, answer: Allocation) -> None:
    limits: dict[str, int] = {}
    totals: dict[str, int] = {}
    growing: set[str] = set()
    for job in jobs:
        if job.quota is None:
            continue
        workers = answer.workers(job.name)
        limits[job.owner] = min(job.quota, limits.get(job.owner, job.quota))
        totals[job.owner] = totals.get(job.owner, 0) + workers
        if workers > now.workers(job.name):
            growing.add(job.owner)
    for owner in sorted(growing):
        if totals[owner] > limits[owner]:
            raise PolicyError(f"the jobs of {owner} were allocated more than their quota of {limits[owner]} slots")
