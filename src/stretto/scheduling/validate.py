"""Whether an allocation is possible at all. Server and simulator ask before they act on a policy's answer."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.errors import PolicyError
from stretto.scheduling.types import Allocation, ClusterNode, SchedulableJob, same, size


def check(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], now: Allocation, answer: Allocation) -> None:
    """Raise `PolicyError` that names the job, the number and the bound if `answer` breaks a limit."""
    known = {job.name: job for job in jobs}
    capacity = {node.name: node.slots for node in nodes}
    kinds = {node.name: node.kind for node in nodes}
    used = dict.fromkeys(capacity, 0)
    owners: dict[str, int] = {}
    for name, placement in answer.places.items():
        job = known.get(name)
        if job is None:
            if placement:
                raise PolicyError(f"{name} was allocated {size(placement)} slots, but it is not a waiting or running job")
            continue
        workers = size(placement)
        if placement and not job.least <= workers <= max(job.most, job.least) and not same(placement, now.of(name)):
            raise PolicyError(f"{name} was allocated {workers} workers, its limits are {job.least} to {job.most}")
        if len({node for node, _ in placement}) != len(placement):
            raise PolicyError(f"{name} is placed twice on one node: {placement}")
        for node, count in placement:
            if node not in capacity:
                raise PolicyError(f"{name} is placed on {node}, which is not a node of the cluster")
            if count < 1:
                raise PolicyError(f"{name} is placed on {node} with {count} workers; leave the node out instead")
            used[node] += count
        if len({kinds[node] for node, _ in placement}) > 1:
            raise PolicyError(f"{name} is spread over several kinds of nodes: {placement}")
        if job.quota is not None:
            owners[job.owner] = owners.get(job.owner, 0) + workers
            if owners[job.owner] > job.quota and not same(placement, now.of(name)):
                raise PolicyError(f"the jobs of {job.owner} were allocated more than their quota of {job.quota} slots")
    for node, count in used.items():
        if count > capacity[node]:
            raise PolicyError(f"{node} has {capacity[node]} slots, {count} were allocated")
    for job in jobs:
        before = now.of(job.name)
        if before and all(node in capacity for node, _ in before):
            if job.pinned and not same(before, answer.of(job.name)):
                raise PolicyError(f"{job.name} is pinned, but was moved from {before} to {answer.of(job.name)}")
            if not job.preemptible and not answer.of(job.name):
                raise PolicyError(f"{job.name} is not preemptible, but was taken off the cluster")
