"""The decision pipeline: the steps around a policy, the same for the job server, the simulator and what-if.

1. Placements on nodes that are gone are left out.
2. Placements are cut to changed limits, or grown into free slots up to the fewest workers (`room.fit`).
3. Jobs that have not had their turn are not preemptible (`with_turns`).
4. Jobs that wait get their fewest workers, if all of them fit (`room.make_room`); not under a policy of fixed sizes.
5. The policy is asked.
6. Growths that a guard objects to are taken back (`guards.guard`).
7. The answer is checked: capacity, limits, kinds, quotas, pins, preemptibility (`validate.check`).

Pure: the same input gives the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stretto.scheduling.guards import GuardLimits, guard
from stretto.scheduling.room import fit, make_room
from stretto.scheduling.slots import slots_for
from stretto.scheduling.types import Allocation, ClusterNode, LoadedPolicy, Policy, PolicyTraits, SchedulableJob
from stretto.scheduling.validate import check

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
