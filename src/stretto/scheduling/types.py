"""What every policy sees and says: jobs, nodes, the allocation now, the time in; an allocation with reasons out.

The values are frozen and hold no clock, socket or random state: the job server and the simulator call the same functions with them.
A *slot* is a place for one worker on a node (a GPU, or a core).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Never

from stretto.batching.goodput import GoodputModel

DEFAULT_KIND = "default"

Placement = tuple[tuple[str, int], ...]
"""((node, workers), …): where a job's workers are. Empty: it has none."""


def nothing() -> Mapping[str, Never]:
    return MappingProxyType(dict[str, Never]())


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine with slots. A job runs on nodes of one kind at a time."""

    name: str
    slots: int
    kind: str = DEFAULT_KIND
    price: float = 0.0
    """For an hour."""
    spot: bool = False
    """May be taken away at short notice."""


@dataclass(frozen=True, slots=True)
class SchedulableJob:
    """A job that has arrived and has not ended, as far as a scheduler can know it."""

    name: str
    arrival_s: float
    least: int = 1
    """It runs on at least this many workers, or not at all."""
    declared_least: int | None = None
    """The same as its user declared it, where a pin or a plan has raised `least`; None: `least`."""
    most: int = 1
    reach: int | None = None
    """How many it may be given later, where `most` is only what may be asked for before it has run on more; None: `most`."""
    wanted: int | None = None
    """The fixed size that its user asked for, for policies that do not choose sizes; None: `least`."""
    profiled: int = 0
    """The largest number of workers that it has run on so far."""
    priority: float = 1.0
    """How much a second of this job's waiting counts; 2 is twice as much as 1."""
    deadline_s: float | None = None
    pinned: bool = False
    """Its placement is not touched while it has one."""
    preemptible: bool = True
    """If not, it is never taken off the cluster once it runs; it may still be resized."""
    owner: str = ""
    quota: int | None = None
    """The most slots that all jobs of this owner may hold together."""
    node_kind: str | None = None
    """It runs on nodes of this kind only; None: of any one kind."""
    attained_s: float = 0.0
    """Slot-seconds held so far."""
    restarts: int = 0
    """Changes of its placement so far, the first start not counted."""
    changed_s: float | None = None
    """When its placement changed last."""
    turn_began_s: float | None = None
    """When it was last taken from the queue and began to train; None: it waits or is starting."""
    pause_s: float = 30.0
    """What a change of its placement costs it, as measured."""
    remaining: float | None = None
    """Work left, in samples of the initial batch (the unit of goodput); None: not declared."""
    done: float | None = None
    """Work done so far, in the same unit; None: not known."""
    finished: tuple[float, ...] = ()
    """The whole work of jobs of the same family (script, application) that have ended well, in the same unit, oldest first."""
    steps_left: float | None = None
    """Optimizer steps left at its fixed batch, where that is known."""
    step_s: tuple[float, ...] | None = None
    """Seconds for a step on 1, 2, … workers at its fixed batch, where that is known (an oracle, in the simulator)."""
    losses: tuple[tuple[float, float], ...] = ()
    """(time, loss), as the application reported it, oldest first."""
    models: Mapping[str, GoodputModel] = field(default_factory=nothing)
    """The fitted model for each kind of node that it has one for."""
    utilisation: float | None = None
    """How busy its slots are, 0 to 1, as reported."""

    def model(self, kind: str) -> GoodputModel | None:
        """The model for this kind of node; any other kind's, if it has not run there yet; None without or with a broken one."""
        model = self.models.get(kind)
        if model is None and self.models:
            model = self.models[min(self.models)]
        return model if model is not None and model.sane else None

    def runs_on(self, kind: str) -> bool:
        """Whether its workers may be placed on nodes of this kind."""
        return self.node_kind is None or self.node_kind == kind


@dataclass(frozen=True, slots=True)
class Allocation:
    """Which job runs where, and why. `memory` is handed back to the policy with its next call; a policy must do without it too."""

    places: Mapping[str, Placement] = field(default_factory=nothing)
    reasons: Mapping[str, str] = field(default_factory=nothing)
    memory: object = None

    def of(self, job: str) -> Placement:
        return self.places.get(job, ())

    def workers(self, job: str) -> int:
        return size(self.of(job))


Policy = Callable[[Sequence[SchedulableJob], Sequence[ClusterNode], Allocation, float], Allocation]
"""(jobs, nodes, allocation now, time) → allocation. Pure: the same input gives the same output."""


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What a policy presupposes. Its file states them in a constant `TRAITS`; server, simulator and what-if read them there."""

    fixed_sizes: bool = False
    """It gives every job the size that its user asked for: no job is made smaller for one that waits."""
    batch: Literal["fixed", "linear", "adaptive"] = "adaptive"
    """How simulated jobs choose their batch under it: as in the trace, each worker's part of that, or by goodput."""
    needs_lengths: bool = False
    """The simulator hands it the true step times and numbers of steps, as its publication presupposes."""


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with its name and traits. It is called like the policy itself."""

    name: str
    function: Policy
    traits: PolicyTraits = PolicyTraits()
    summary: str = ""
    """The first line of its file."""

    def __call__(self, jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], now: Allocation, time_s: float) -> Allocation:
        return self.function(jobs, nodes, now, time_s)


def size(placement: Placement) -> int:
    return sum(workers for _, workers in placement)


def same(left: Placement, right: Placement) -> bool:
    """Whether two placements put the same numbers on the same nodes, in whatever order."""
    return left == right or sorted(left) == sorted(right)
