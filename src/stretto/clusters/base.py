"""Where workers run: what a cluster has to give to the job server. The server knows nothing else about it.

`apply` is declarative: it gets everything that should run now, complete, and brings the cluster there; called again
with the same list it does nothing. What really happens is told by `watch`. So a server that was killed applies the
same list again and nothing is started twice, and a cluster with its own control loop (a Kubernetes operator, a Ray
actor) only has to store the list.

Assignments are named by (job, life). A life is one start of a job's processes: the cluster must never run two of one
job at a time, and must never start a life again that has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from stretto.core.journal import Record


class Stop(StrEnum):
    GRACEFUL = "graceful"
    """At the next step boundary, with a checkpoint if the run takes any."""
    NOW = "now"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A place with slots for workers."""

    name: str
    slots: int
    kind: str = "cpu"
    price: float = 0.0
    """Of one slot and hour."""
    spot: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """What a job runs: a script for `stretto run`, a command that is started as it is, or a text for the user's shell."""

    script: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    shell: str = ""
    python: str = ""
    """The interpreter that was named with the script. The cluster's own is used, so another one is refused."""

    @property
    def elastic(self) -> bool:
        return bool(self.script)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One job that should run now."""

    job: str
    life: int
    work: Work
    least: int
    most: int
    nodes: Mapping[str, int]
    """Workers on each node."""
    run: str = ""
    """The name of the run's folder; a life that goes on where another stopped has that one's."""
    resume: bool = False
    """Go on from the run's last checkpoint."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    restarts: int = 3
    """How often lost workers of one life may be replaced, in any few minutes, before the life has failed."""
    offset: int = 0
    """How far the run's journal has been read already."""
    stop: Stop | None = None

    @property
    def workers(self) -> int:
        return sum(self.nodes.values())


class EventKind(StrEnum):
    STARTED = "started"
    ADOPTED = "adopted"
    """It was already there: an earlier server started it."""
    LINES = "lines"
    GONE = "gone"
    TROUBLE = "trouble"
    """Something did not work and will be tried again."""
    NODES = "nodes"
    """The nodes are not what they were."""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something happened to a life of a job."""

    kind: EventKind
    job: str = ""
    life: int = 0
    lines: Sequence[Record] = ()
    """New lines of the run's journal."""
    offset: int = 0
    """Where the journal was read to."""
    code: int | None = None
    """GONE: the exit code; negative for a signal; None if nobody saw the end (its keeper was killed too)."""
    text: str = ""


class Cluster(Protocol):
    name: str

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that are alive now."""
        ...

    async def apply(self, wanted: Sequence[Assignment]) -> None:
        """Brings the cluster to this. Whatever is running and not in the list is stopped now."""
        ...

    def watch(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """What happens, in order for each job, in portions. Ends when the cluster is closed."""
        ...

    def missing(self, work: Work, workdir: str | None, env: Mapping[str, str]) -> str | None:
        """What is not there that a job would need to start: `key of the job file: what is wrong, and the fix`; None if nothing is
        known to be missing."""
        ...

    def log(self, job: str, life: int, run: str) -> Mapping[str, str]:
        """Paths of the logs of a run by source: `console`, `worker-0`, …"""
        ...

    def resumable(self, job: str, run: str) -> bool:
        """Whether this run of a job has a checkpoint that its next life can go on from."""
        ...

    async def forget(self, job: str, runs: Sequence[str]) -> None:
        """Removes what an ended job has left."""
        ...

    async def close(self) -> None:
        """Stops watching. Jobs go on."""
        ...
