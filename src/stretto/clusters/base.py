"""The cluster interface: everything that the job server knows about the place where workers run.

A cluster is one module with a class that implements `Cluster` and a function that makes it (`ClusterFactory`), named in the
entry-point group `stretto.clusters` (`clusters/registry.py`). Nothing in the server, in the API or in the command line has to
change for a new one.

**Level-triggered.** `apply` gets the complete list of what should run now and brings the cluster there; called again with the
same list it does nothing. `watch` reports what really happens. A server that was killed applies its list again and nothing
starts twice. A cluster with its own control loop (a Kubernetes operator, a Ray actor) only has to store the list.

**Attempts.** Assignments are named by (job, attempt). An attempt is one start of a job's processes. A cluster must never run two
attempts of one job at the same time, and must never start an attempt again that has ended.

**The event loop.** Every method runs on the server's event loop, so none may block: files, sockets and subprocesses belong on a
thread or in asyncio. `nodes` is the one synchronous method: it returns a list that the cluster keeps in memory.

**Files.** The server never opens a file of a job. Logs, the journal, checkpoints and run folders are the cluster's, wherever they
are: on this disk, on a shared file system, behind an agent's port, in a bucket.

**Failures.** A method that cannot reach its cluster raises `StrettoError`, or repeats in the background and reports a `TROUBLE`
event. The server raises an alarm, keeps the old allocation and tries again at the next decision.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from stretto.core.journal import Record

STRETTO = (sys.executable, "-c", "from stretto.cli.main import main; main()")
"""The command `stretto`, run by the server's own Python."""


class Stop(StrEnum):
    """How an attempt is asked to end."""

    GRACEFUL = "graceful"
    """At the next step boundary, with a checkpoint if the run takes any."""
    NOW = "now"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A place with slots for workers. Names are unique in a cluster and stay the same as long as the node lives."""

    name: str
    slots: int
    kind: str = "cpu"
    """The node's type, such as `cpu`, `a100` or a provider's machine type."""
    price: float = 0.0
    """Price per slot and hour."""
    spot: bool = False
    """Its provider may take it back."""
    draining: str = ""
    """Why it will go away soon (a preemption notice, `kubectl drain`); empty if it stays. It gets no workers, and the next
    decision moves those that it has, as if an administrator had cordoned it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a job runs: a script for `stretto run`, a command that is started as it is, or a text for the user's shell."""

    script: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    shell: str = ""
    python: str = ""
    """The interpreter that the job file names before the script."""

    @property
    def elastic(self) -> bool:
        """Whether stretto starts it, so that its number of workers can change."""
        return bool(self.script)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One job that should run now."""

    job: str
    attempt: int
    workload: Workload
    min_workers: int
    max_workers: int
    nodes: Mapping[str, int]
    """Workers per node."""
    run: str = ""
    """The name of the run. An attempt that resumes has the name of the run that it continues."""
    resume: bool = False
    """Continue from the run's last checkpoint."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables of the job. They may be secrets: never put them on a command line or into a log."""
    workdir: str | None = None
    restarts: int = 3
    """How many lost workers of an attempt may be replaced within a few minutes before the attempt has failed."""
    journal_offset: int = 0
    """Where the server stopped reading the run's journal: `LINES` events begin here."""
    stop: Stop | None = None

    @property
    def workers(self) -> int:
        """The number of workers on all nodes."""
        return sum(self.nodes.values())

    @property
    def ref(self) -> RunRef:
        """The name of this attempt's run."""
        return RunRef(self.job, self.attempt, self.run)


@dataclass(frozen=True, slots=True)
class RunRef:
    """Names one run of a job: what logs and checkpoints belong to."""

    job: str
    attempt: int
    run: str


class EventKind(StrEnum):
    """What happened."""

    STARTED = "started"
    """The attempt's processes were started."""
    ADOPTED = "adopted"
    """The attempt was already running: an earlier server started it."""
    PENDING = "pending"
    """The attempt was requested and does not run yet; `text` quotes the cluster's reason, as in `Insufficient nvidia.com/gpu`.
    Repeat it when the reason changes. The job's explanation shows it."""
    LINES = "lines"
    """New lines of the run's journal."""
    GONE = "gone"
    """All processes of the attempt have ended. Its last LINES come before."""
    TROUBLE = "trouble"
    """Something did not work and will be tried again."""
    NODES = "nodes"
    """The set of nodes, or something about one of them, has changed: `nodes()` returns the new list already. The server decides
    again at once. Processes that died with a node are reported as GONE, with code None, as well."""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened to an attempt of a job, or to the nodes."""

    kind: EventKind
    job: str = ""
    attempt: int = 0
    lines: Sequence[Record] = ()
    """LINES: new lines of the run's journal, decoded by `stretto.core.journal`."""
    offset: int = 0
    """LINES: where the journal was read to. It comes back as `Assignment.journal_offset`."""
    code: int | None = None
    """GONE: the exit code; negative for a signal; None if nobody saw the end (a lost node, a killed shim). With None or a signal
    the server starts the job again while its restart budget lasts."""
    text: str = ""
    """For people: the end of the output (GONE), the reason (PENDING, TROUBLE), which nodes changed (NODES)."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A part of one log. Positions count bytes from the beginning of the log."""

    sources: Sequence[str]
    """The logs that the run has: `console`, `agent`, `worker-0`, … A page of a source that is not among them is empty."""
    data: bytes = b""
    begin: int = 0
    """The position of the first byte of `data`: above what was asked for if older bytes are gone, below if the log is shorter."""
    size: int = 0
    """The length of the log so far."""


class Cluster(Protocol):
    """A place where jobs run. See the module's docstring for what holds for all methods."""

    name: str

    async def start(self) -> None:
        """Connects. Called once, first, on the server's event loop. After it `nodes` must be complete. Raises `StrettoError`
        with the fix if the cluster cannot be used; the server then does not start."""
        ...

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that are alive now, from memory."""
        ...

    async def apply(self, assignments: Sequence[Assignment]) -> None:
        """Brings the cluster to this complete list: starts, resizes and stops. What runs and is not in the list is stopped now.

        It may return before anything has happened, and it must not wait for processes: the events of `watch` tell the outcome.
        """
        ...

    def watch(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """What happens, in batches, in order for each job. Has one reader. Ends when the cluster is closed."""
        ...

    async def check(self, workload: Workload, *, workdir: str | None, env: Mapping[str, str]) -> str | None:
        """Whether a job could start, asked when it is submitted. Returns `key of the job file: what is wrong and the fix`, such as
        `workdir: /data does not exist: make it`; None if nothing is known to be missing."""
        ...

    async def logs(self, run: RunRef, source: str, *, after: int | None, limit: int) -> LogPage:
        """At most `limit` bytes of a log from position `after` on; the last `limit` bytes if `after` is None. Also for ended
        jobs, until `delete`."""
        ...

    async def resumable(self, run: RunRef) -> bool:
        """Whether this run has a complete checkpoint that the job's next attempt can continue from. False if it cannot be known:
        the job then starts from the beginning."""
        ...

    async def delete(self, job: str, runs: Sequence[str]) -> None:
        """Removes what an ended job has left: logs, run folders, checkpoints."""
        ...

    async def close(self) -> None:
        """Stops watching. Jobs keep running."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """What the server gives to a cluster when it makes one."""

    home: Path
    """A folder of the server's own. A cluster may keep files in it."""
    launcher: tuple[str, ...] = STRETTO
    """The command `stretto` as jobs are started with it. Tests put simulated agents here."""


class ClusterFactory(Protocol):
    """Makes a cluster. This is what an entry point of the group `stretto.clusters` names."""

    def __call__(self, context: ClusterContext, options: Mapping[str, str], /) -> Cluster:
        """Validates the options of `stretto serve --cluster-option KEY=VALUE` and makes the cluster, without connecting to it.
        Raises `UsageError` for an option that does not exist or has a wrong value."""
        ...
