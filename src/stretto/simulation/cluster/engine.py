"""The simulator's loop: virtual time, from event to event.

Events are decisions, node outages and their ends; with `on_events` also arrivals and foreseeable ends of jobs, which then ask for a
decision at once. Between two events every running job advances by itself. Decisions are those of the job server's pipeline
(scheduling/pipeline.py); `SimulationSettings.pipeline` says which of its steps surround the policy.
Deterministic for a seed; the only measured number in the result is the CPU time that decisions took.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stretto.core.errors import UsageError
from stretto.scheduling.pipeline import POLICY_ALONE, PipelineSettings, decide
from stretto.scheduling.types import Allocation, ClusterNode, Placement, Policy, SchedulableJob, same, size
from stretto.simulation.cluster.faults import FaultModel, Noise, Outage, outages
from stretto.simulation.cluster.job import Costs, RestartCost, SimJob, stay

EPSILON = 1e-9
MOST_FINISHED = 16
"""Finished jobs of one application that policies see: the latest."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """How the cluster behaves."""

    period_s: float = 60.0
    """Between two decisions."""
    on_events: bool = False
    """Decide also when a job arrives or ends and when a node comes or goes."""
    history: bool = False
    """Whether policies see how much work finished jobs of the same application took."""
    costs: Costs = field(default_factory=RestartCost)
    weather: FaultModel = field(default_factory=FaultModel)
    interference: float = 0.0
    """Share of speed that jobs spread over nodes lose when they share one."""
    checkpoint_s: float = 600.0
    """A restart-based job that loses a node loses the progress since its last checkpoint."""
    most_s: float = 60 * 86400.0
    """A simulation that runs longer than this has jobs that never end."""
    speeds: tuple[tuple[str, float], ...] = ()
    """Relative speed of kinds of nodes; 1 where not named."""
    pipeline: PipelineSettings = POLICY_ALONE
    """The steps around the policy: none of them as published; `PipelineSettings()` are the job server's."""


@dataclass(frozen=True, slots=True)
class AllocationChange:
    """A line of the Gantt chart: from this time on, the job is placed so."""

    time_s: float
    job: str
    placement: Placement


@dataclass(slots=True)
class SimulationResult:
    """What happened."""

    jobs: list[SimJob]
    nodes: tuple[ClusterNode, ...]
    end_s: float = 0.0
    changes: list[AllocationChange] = field(default_factory=list[AllocationChange])
    decision_s: list[float] = field(default_factory=list[float])
    held_slot_s: float = 0.0
    up_slot_s: float = 0.0
    cost: float = 0.0
    outages: int = 0
    active_s: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(time, jobs in the system) at every event."""


Watch = Callable[[float, int, int], None]
"""(virtual time, jobs finished, jobs in all): for a progress bar."""


class Simulation:
    """One run of a policy over a workload. Equal jobs, nodes and settings give equal results; only decision times are measured."""

    def __init__(self, jobs: Sequence[SimJob], nodes: Sequence[ClusterNode], policy: Policy, settings: SimulationSettings):
        if not jobs or not nodes:
            raise UsageError(f"a simulation needs jobs and nodes: {len(jobs)} jobs, {len(nodes)} nodes were given")
        self.settings = settings
        self.policy = policy
        self.waiting = sorted(jobs, key=lambda job: (job.arrival_s,))[::-1]
        self.active: list[SimJob] = []
        self.nodes = {node.name: node for node in nodes}
        self.kinds = {node.name: node.kind for node in nodes}
        self.speeds = dict(settings.speeds)
        self.up = dict(self.nodes)
        self.now = 0.0
        self.allocation = Allocation()
        self.finished: dict[str, tuple[float, ...]] = {}
        self.outcome = SimulationResult(list(jobs), tuple(nodes))
        self.noise = Noise(settings.weather, [job.name for job in jobs])
        self._streams: dict[str, Iterator[Outage]] = {name: outages(node, settings.weather) for name, node in self.nodes.items()}
        self._events: list[tuple[float, str, Outage]] = []
        for name in self.nodes:
            self._plan_outage(name)

    def run(self, watch: Watch | None = None) -> SimulationResult:
        tick = self.settings.period_s
        total = len(self.outcome.jobs)
        while self.waiting or self.active:
            target = min(tick, *self._early(), self._events[0][0] if self._events else tick)
            if target > self.settings.most_s:
                raise UsageError(self._stuck())
            self._advance(max(target, self.now))
            decide = self._weather() and self.settings.on_events
            decide |= self._arrive() and self.settings.on_events
            decide |= self._depart() and self.settings.on_events
            if self.now >= tick - EPSILON:
                tick += self.settings.period_s
                decide = True
            if decide and self.active:
                self._decide()
            if watch is not None:
                watch(self.now, total - len(self.active) - len(self.waiting), total)
        self.outcome.end_s = max(job.end_s or 0.0 for job in self.outcome.jobs)
        return self.outcome

    def _early(self) -> list[float]:
        """Times before the next decision at which something is due anyway."""
        if not self.settings.on_events:
            return []
        ends = [self.now + eta for job in self.active if (eta := job.eta_s()) is not None]
        return [job.arrival_s for job in self.waiting[-1:]] + [end_s for end_s in ends if end_s > self.now + EPSILON]

    def _advance(self, target: float) -> None:
        seconds = target - self.now
        if seconds > 0:
            crowded = self._crowded() if self.settings.interference else set[str]()
            slots_held = 0
            for job in self.active:
                if job.placement:
                    slots_held += size(job.placement)
                    shared = len(job.placement) > 1 and any(node in crowded for node, _ in job.placement)
                    job.advance(
                        self.now,
                        seconds,
                        noise=self.noise,
                        slowdown=self.settings.interference if shared else 0.0,
                        speed=self.speeds.get(job.kind, 1.0),
                    )
            if self.active:
                self.outcome.held_slot_s += slots_held * seconds
                self.outcome.up_slot_s += sum(node.slots for node in self.up.values()) * seconds
            self.outcome.cost += sum(node.price for node in self.up.values()) * seconds / 3600.0
        self.now = target
        self.outcome.active_s.append((self.now, len(self.active)))

    def _crowded(self) -> set[str]:
        spread = [node for job in self.active if len(job.placement) > 1 for node, _ in job.placement]
        return {node for node in spread if spread.count(node) > 1}

    def _arrive(self) -> bool:
        arrived = False
        while self.waiting and self.waiting[-1].arrival_s <= self.now + EPSILON:
            self.active.append(self.waiting.pop())
            arrived = True
        return arrived

    def _depart(self) -> bool:
        ended = [job for job in self.active if job.end_s is not None]
        for job in ended:
            family = job.application.name
            self.finished[family] = (*self.finished.get(family, ()), job.whole)[-MOST_FINISHED:]
            self.outcome.changes.append(AllocationChange(job.end_s or self.now, job.name, ()))
        if ended:
            self.active = [job for job in self.active if job.end_s is None]
            gone = {job.name for job in ended}
            places = {name: place for name, place in self.allocation.places.items() if name not in gone}
            self.allocation = Allocation(places, self.allocation.reasons, self.allocation.memory)
        return bool(ended)

    def _decide(self) -> None:
        jobs = [seen(job, self.finished.get(job.application.name, ()) if self.settings.history else ()) for job in self.active]
        nodes = list(self.up.values())
        started = time.thread_time()
        answer = decide(self.policy, jobs, nodes, self.allocation, self.now, settings=self.settings.pipeline).answer
        self.outcome.decision_s.append(time.thread_time() - started)
        for job in self.active:
            placement = answer.of(job.name)
            if not same(placement, job.placement):
                kind = self.kinds[placement[0][0]] if placement else job.kind
                job.place(placement, kind=kind, time_s=self.now, costs=self.settings.costs)
                self.outcome.changes.append(AllocationChange(self.now, job.name, placement))
        self.allocation = Allocation(
            {job.name: job.placement for job in self.active if job.placement}, answer.reasons, answer.memory
        )

    def _plan_outage(self, node: str) -> None:
        outage = next(self._streams[node], None)
        if outage is not None:
            heapq.heappush(self._events, (outage.start_s, "down", outage))

    def _weather(self) -> bool:
        changed = False
        while self._events and self._events[0][0] <= self.now + EPSILON:
            _, what, outage = heapq.heappop(self._events)
            changed = True
            if what == "down":
                self.up.pop(outage.node, None)
                self.outcome.outages += 1
                self._lose(outage)
                heapq.heappush(self._events, (outage.end_s, "up", outage))
            else:
                self.up = {name: node for name, node in self.nodes.items() if name in self.up or name == outage.node}
                self._plan_outage(outage.node)
        return changed

    def _lose(self, outage: Outage) -> None:
        """The node's workers are gone. A stop-free job goes on with the others; one that restarts goes back to its checkpoint."""
        for job in self.active:
            if not any(node == outage.node for node, _ in job.placement):
                continue
            rest = tuple((node, count) for node, count in job.placement if node != outage.node)
            survives = not isinstance(self.settings.costs, RestartCost) and size(rest) >= job.template.least
            if not survives and not outage.reclaimed:
                job.roll_back(self.settings.checkpoint_s)
            job.place(rest if survives else (), kind=job.kind, time_s=self.now, costs=self.settings.costs)
            self.outcome.changes.append(AllocationChange(self.now, job.name, job.placement))
        places = {job.name: job.placement for job in self.active if job.placement}
        self.allocation = Allocation(places, self.allocation.reasons, self.allocation.memory)

    def _stuck(self) -> str:
        names = ", ".join(job.name for job in self.active[:5])
        return (
            f"after {self.settings.most_s / 86400:.0f} simulated days {len(self.active)} jobs have not ended ({names}…): "
            f"their fewest workers may not fit {sum(n.slots for n in self.nodes.values())} slots, or the policy starves them"
        )


def seen(job: SimJob, finished: tuple[float, ...] = ()) -> SchedulableJob:
    """What a scheduler may know of a simulated job."""
    declared = job.template
    reach = most = min(declared.most, job.batch.most_workers)
    if not job.fixed_growth:
        most = min(most, max(2 * job.profiled, declared.least, 1))
    batch = job.batch.fixed or job.batch.initial
    kind_models = {kind: model for kind in job.throughput if (model := job.model(kind)) is not None}
    return replace(
        declared,
        name=job.name,
        arrival_s=job.arrival_s,
        most=max(most, declared.least),
        reach=reach,
        profiled=job.profiled,
        attained_s=job.attained_s,
        restarts=max(job.changes, 0),
        changed_s=job.changed_s,
        turn_began_s=job.turn_began_s,
        remaining=job.whole - job.done if job.declares else None,
        done=job.done,
        finished=finished,
        steps_left=job.application.steps_left(batch, job.epoch) if job.oracle else None,
        step_s=job.oracle_steps() if job.oracle else None,
        losses=tuple(job.losses),
        models=kind_models,
    )


__all__ = ["AllocationChange", "Simulation", "SimulationResult", "SimulationSettings", "seen", "stay"]
