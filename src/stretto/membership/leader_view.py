"""What the leader decides from, and what it can decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.roster import Roster
from stretto.membership.worker_status import WorkerStatus

Cuts = frozenset[frozenset[str]]


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Everything the leader decides from."""

    roster: Roster | None
    """The last roster published; None before the first one and at the beginning of a new life of the job."""
    broken: int
    """Everything up to this number is broken."""
    workers: Mapping[str, WorkerStatus]
    wanted: int
    least: int
    most: int
    slices: int
    """The job's; 0 to take it from the first worker that is ready."""
    term: int
    awaited: frozenset[str] = field(default=frozenset())
    """Agents that this leader has not seen yet but that may only be late: their absence alone breaks nothing."""
    unfenced: frozenset[str] = field(default=frozenset())
    """Agents that are absent, but not for so long that they must have stopped their workers. Includes `awaited`."""
    cuts: Cuts = field(default=frozenset())
    """Pairs of agents that are here, both in touch with the store, and do not reach each other. It may be late."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Make this roster the one that the workers change over to."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class Break:
    """Mark everything up to `number` as broken."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """This worker has to go; its agent may start another one in its place."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Nobody who has the state is left: begin again from a checkpoint, or give up."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The job cannot go on, and starting it again would not help."""

    reason: str


Action = Publish | Break | Dismiss | Lost | Fail
