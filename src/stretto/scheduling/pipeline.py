"""The decision pipeline: the steps around a policy, the same for the job server, the simulator and what-if.

1. Placements on nodes that are gone are left out.
2. Placements are cut to changed limits, or grown into free slots up to the fewest workers (`room.fit`).
3. Jobs that have not had their turn are not preemptible (`with_turns`).
4. Jobs that wait get their fewest workers, if all of them fit (`room.make_room`); not under a policy of fixed sizes.
5. The policy is asked.
6. Growths that a guard objects to are taken back (`guards.guard`).
7. The answer is checked: capacity, limits, kinds, quotas, pins, preemptibility (`check`).

Pure: the same input gives the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stretto.core.errors import PolicyError
from stretto.scheduling.guards import GuardLimits, guard
from stretto.scheduling.room import fit, make_room
from stretto.scheduling.slots import slots_for, still_valid
from stretto.scheduling.types import (
    Allocation,
    ClusterNode,
    LoadedPolicy,
    Placement,
    Policy,
    PolicyTraits,
    SchedulableJob,
    same,
    size,
)

COOLDOWN_S = 5.0
TURN_S = 120.0


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The steps around the policy. The defaults are those of the job server."""

    make_room: bool = True
    turn_s: float | None = TURN_S
    """A job is not set back to the queue before it has trained this long; None: whenever it is preemptible."""
    guards: GuardLimits | None = field(default_factory=lambda: GuardLimits(cooldown_s=COOLDOWN_S))


POLICY_ALONE = PipelineSettings(make_room=False, turn_s=None, guards=None)
"""Only the policy decides, between changed limits and the check: how policies were published, and are compared."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A checked answer, and the allocation that the policy was shown as the present one."""

    answer: Allocation
    shown: Allocation


def decide(
    policy: Policy,
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    current: Allocation,
    time_s: float,
    *,
    settings: PipelineSettings,
) -> Decision:
    """What runs where from now on. `PolicyError` if the policy's answer breaks a limit."""
    traits = policy.traits if isinstance(policy, LoadedPolicy) else PolicyTraits()
    shown = prepare(jobs, nodes, current, room=settings.make_room and not traits.fixed_sizes)
    if settings.turn_s is not None:
        jobs = with_turns(jobs, nodes, current, time_s, turn_s=settings.turn_s)
    answer = policy(jobs, nodes, shown, time_s)
    if settings.guards is not None:
        answer = guard(jobs, nodes, shown, answer, time_s, limits=settings.guards)
    verify(jobs, nodes, current, shown, answer)
    return Decision(answer, shown)


def prepare(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], current: Allocation, *, room: bool) -> Allocation:
    """The present allocation on present nodes, inside the jobs' limits; with `room`, with the waiting jobs' fewest workers."""
    names = {node.name for node in nodes}
    present = {job: tuple(part for part in placement if part[0] in names) for job, placement in current.places.items()}
    places = fit(jobs, nodes, {job: placement for job, placement in present.items() if placement})
    return Allocation(make_room(jobs, nodes, places) if room else places, current.reasons, current.memory)


def verify(
    jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], current: Allocation, shown: Allocation, answer: Allocation
) -> None:
    """`check`, where a job that only `make_room` has placed may be left waiting."""
    running = Allocation({job: placement for job, placement in shown.places.items() if current.of(job)})
    check(jobs, nodes, running, answer)


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


def with_turns(
    jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], current: Allocation, time_s: float, *, turn_s: float
) -> list[SchedulableJob]:
    """The jobs, of which only those stay preemptible that this decision may set back to the queue.

    Taking a job off costs it a checkpoint and a start. So no job is taken off while the fewest workers of all fit, or before it
    has had its turn; a waiting job of a higher priority does not wait for that.
    """
    scarce = _scarce(jobs, nodes)
    highest = max((job.priority for job in jobs if not current.of(job.name)), default=float("-inf"))

    def may_be_taken_off(job: SchedulableJob) -> bool:
        if not job.preemptible or not current.of(job.name) or not (None in scarce or job.node_kind in scarce):
            return False
        return job.priority < highest or (job.turn_began_s is not None and time_s - job.turn_began_s >= turn_s)

    return [job if job.preemptible == (free := may_be_taken_off(job)) else replace(job, preemptible=free) for job in jobs]


def _scarce(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode]) -> set[str | None]:
    """Kinds of nodes with too few slots for the fewest workers of the jobs that run there only; None: the whole cluster."""
    fewest: dict[str | None, int] = {}
    room: dict[str | None, int] = {}
    for job in jobs:
        least = job.least if job.declared_least is None else job.declared_least
        room.setdefault(job.node_kind, slots_for(job, nodes))
        for kind in {job.node_kind, None}:
            fewest[kind] = fewest.get(kind, 0) + least
    room[None] = sum(node.slots for node in nodes)
    return {kind for kind, least in fewest.items() if least > room[kind]}
