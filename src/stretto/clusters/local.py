"""This machine as a cluster: nodes are groups of slots, jobs are `stretto run` processes in sessions of their own.

The folders under `home` are the truth, not this process's memory: `jobs/ID/life-N/` has the shim's lock and the exit code of
attempt N, `runs/NAME/` is the run's own. A server that comes back finds every attempt by them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import join

from stretto.clusters.agent_client import AgentRefused, AgentUnreachable, ask
from stretto.clusters.attempt import GRACE_S, JobAttempt, JournalTail, attempt_environment
from stretto.clusters.base import (
    STRETTO,
    Assignment,
    ClusterContext,
    ClusterEvent,
    EventKind,
    LogPage,
    NodeInfo,
    RunRef,
    Stop,
    Workload,
)
from stretto.clusters.file_checks import find_missing, uses_restart_mode
from stretto.clusters.local_nodes import Bindings, NodeSource, bind_slots, cores, describe_change, node_source
from stretto.core.errors import StrettoError, UsageError
from stretto.train.checkpoint.catalog import entries
from stretto.train.checkpoint.storage import open_storage

POLL_S = 0.25
MANY = 16
"""Above this many attempts, poll every `POLL_MANY_S`."""
POLL_MANY_S = 0.5
NODES_S = 1.0
"""How often the nodes are read again."""
STOP_AGAIN_S = 5.0
KILL_AFTER_S = {Stop.GRACEFUL: GRACE_S + 15.0, Stop.NOW: 10.0}
"""An attempt that still runs after this is killed; a graceful stop may take the agent's own grace."""
MAX_LOGS = 4096

CHECKPOINT_EVERY = "30s"
"""What a job of the server loses at most when all of its processes are lost at once."""


def open_cluster(context: ClusterContext, options: Mapping[str, str]) -> LocalCluster:
    """The factory that the registry names (`ClusterFactory`)."""
    return LocalCluster(context.home, node_source(options), launcher=context.launcher)


@dataclass(slots=True)
class LocalCluster:
    """Implements `Cluster` on this machine."""

    home: Path
    source: NodeSource
    launcher: tuple[str, ...] = STRETTO
    name: str = "local"
    attempts: dict[tuple[str, int], JobAttempt] = field(default_factory=dict[tuple[str, int], JobAttempt])
    _nodes: tuple[NodeInfo, ...] = ()
    _nodes_read_at: float = 0.0
    _nodes_error: str = ""
    _bindings: Bindings = field(default_factory=dict[str, dict[str, tuple[int, ...]]])
    _cpus: list[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False
    _events: list[ClusterEvent] = field(default_factory=list[ClusterEvent])
    _scanned: bool = False

    def __post_init__(self) -> None:
        try:
            self._nodes = self.source.read()
        except OSError as error:
            raise UsageError(f"the nodes file cannot be read: {error}") from error

    async def start(self) -> None:
        for name in ("runs", "jobs"):
            (self.home / name).mkdir(exist_ok=True, mode=0o700)

    def nodes(self) -> Sequence[NodeInfo]:
        return self._nodes

    # -- bringing about ------------------------------------------------------------------------------------------

    async def apply(self, assignments: Sequence[Assignment]) -> None:
        wanted = {(assignment.job, assignment.attempt): assignment for assignment in assignments}
        if not self._scanned:
            self._scanned = True
            await asyncio.to_thread(self._find_strays, wanted)
        for key, attempt in list(self.attempts.items()):
            if key not in wanted and attempt.gone:
                del self.attempts[key]
            elif key not in wanted:
                attempt.assignment = replace(attempt.assignment, stop=Stop.NOW)
        for key, assignment in wanted.items():
            if key in self.attempts:
                self.attempts[key].assignment = assignment
            else:
                self.attempts[key] = self._attempt(assignment)
        self._bind()
        self._wake.set()

    def _find_strays(self, wanted: Mapping[tuple[str, int], Assignment]) -> None:
        """Finds attempts that an earlier server was about to stop when it was killed: nobody wants them, so they are stopped."""
        for path in self.home.glob("jobs/*/life-*/keeper.lock"):
            name, _, number = path.parent.name.partition("-")
            job = path.parent.parent.name
            if name == "life" and number.isdigit() and (job, int(number)) not in wanted:
                stray = self._attempt(Assignment(job, int(number), Workload(), 1, 1, {}, stop=Stop.NOW))
                if stray.locked():
                    self.attempts[job, int(number)] = stray

    def _attempt(self, assignment: Assignment) -> JobAttempt:
        run = self.home / "runs" / (assignment.run or assignment.job)
        folder = self.home / "jobs" / assignment.job / f"life-{assignment.attempt}"
        return JobAttempt(assignment, folder, run, JournalTail(run / "journal.jsonl", assignment.journal_offset))

    def _bind(self, *, everybody: bool = False) -> None:
        running = [attempt for attempt in self.attempts.values() if not attempt.gone]
        wanted = {attempt.assignment.job: attempt.assignment.nodes for attempt in running}
        before, self._bindings = self._bindings, bind_slots(self._nodes, wanted, self._bindings)
        for attempt in running:
            job = attempt.assignment.job
            if attempt.reported and (everybody or before.get(job) != self._bindings.get(job)):
                attempt.bind(self._cores(job))

    def _cores(self, job: str) -> set[int]:
        return cores(self._nodes, self._bindings.get(job, {}), available=self._cpus)

    def _start(self, attempt: JobAttempt) -> None:
        """Starts an attempt that has never begun."""
        assignment = attempt.assignment
        cwd = Path(assignment.workdir) if assignment.workdir else self.home / "jobs" / assignment.job / "work"
        attempt.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not assignment.workdir:
            cwd.mkdir(exist_ok=True)
        if not cwd.is_dir():
            self._end(attempt, code=126, text=f"workdir {assignment.workdir} is not a folder here: make it, or change workdir")
            return
        try:
            env = {**assignment.env, **attempt_environment(assignment.job, assignment.attempt)}
            attempt.launch(self._command(assignment), cwd=cwd, env=env, cpus=self._cores(assignment.job))
            attempt.requested = assignment.workers
        except OSError as error:
            self._trouble(attempt, f"cannot be started yet: {error}")

    def _command(self, assignment: Assignment) -> list[str]:
        runs, workload = str(self.home / "runs"), assignment.workload
        run = assignment.run or assignment.job
        start = max(assignment.min_workers, min(assignment.max_workers, assignment.workers))
        limits = ["--workers", f"{assignment.min_workers}:{assignment.max_workers}", "--start", str(start)]
        if assignment.resume:
            return [*self.launcher, "resume", run, "--runs", runs, *limits]
        flags = ["--runs", runs, "--name", run, *limits]
        if not uses_restart_mode(workload):
            folder = self._checkpoints(assignment.job, assignment.run)
            flags += ["--checkpoint", str(folder), "--checkpoint-every", CHECKPOINT_EVERY]
        flags += ["--max-restarts", str(assignment.restarts)]
        if workload.elastic:
            return [*self.launcher, "run", *flags, *workload.script]
        if workload.command:
            return list(workload.command)
        shell = os.environ.get("SHELL") or "/bin/sh"
        return [shell, "-c", _prelude([*self.launcher, "run", *flags]) + workload.shell]

    def _checkpoints(self, job: str, run: str) -> Path:
        """Each run has a folder of its own: one that begins from nothing must not find another one's checkpoints."""
        return self.home / "jobs" / job / "checkpoints" / (run or job)

    # -- watching ------------------------------------------------------------------------------------------------

    async def watch(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        while not self._closed:
            await self._read_nodes()
            polled = await asyncio.to_thread(self._poll)
            self._steer_all()
            events, self._events = polled + self._events, []
            if events:
                yield events
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), POLL_S if len(self.attempts) <= MANY else POLL_MANY_S)
            except TimeoutError:
                pass

    async def _read_nodes(self) -> None:
        """Reports nodes that have changed, and binds running jobs to the cores that there are now."""
        now = time.monotonic()
        if now - self._nodes_read_at < NODES_S:
            return
        self._nodes_read_at = now
        try:
            nodes = await asyncio.to_thread(self.source.read)
        except (OSError, UsageError) as error:
            if str(error) != self._nodes_error:
                self._nodes_error = str(error)
                self._events.append(ClusterEvent(EventKind.TROUBLE, text=f"the old nodes are kept: {error}"))
            return
        if self._nodes_error:
            self._nodes_error = ""
            self._events.append(ClusterEvent(EventKind.NODES, text="the nodes can be read again"))
        cpus = sorted(os.sched_getaffinity(0))
        change = describe_change(self._nodes, nodes)
        if not change and cpus == self._cpus:
            return
        self._nodes, self._cpus = nodes, cpus
        self._bind(everybody=True)
        if change:
            self._events.append(ClusterEvent(EventKind.NODES, text=change))

    def _poll(self) -> list[ClusterEvent]:
        events: list[ClusterEvent] = []
        for attempt in list(self.attempts.values()):
            if attempt.gone:
                continue
            try:
                self._poll_attempt(attempt, events)
            except OSError as error:
                self._trouble(attempt, f"cannot be looked at: {error}")
        return events

    def _poll_attempt(self, attempt: JobAttempt, events: list[ClusterEvent]) -> None:
        assignment = attempt.assignment
        alive = attempt.alive()
        if not attempt.reported:
            if not alive and attempt.exit() is None and not attempt.begun():
                if assignment.stop is None:
                    self._start(attempt)
                else:
                    self._end(attempt, code=-15, text="stopped before it was started")
                return
            attempt.reported = True
            kind = EventKind.STARTED if attempt.process is not None else EventKind.ADOPTED
            events.append(ClusterEvent(kind, assignment.job, assignment.attempt))
        lines = attempt.tail.read()
        if lines:
            offset = attempt.tail.offset
            events.append(ClusterEvent(EventKind.LINES, assignment.job, assignment.attempt, lines=lines, offset=offset))
        if not alive and not lines:
            if attempt.exit() is None and not attempt.seal():
                return
            exit_record = attempt.exit() or {}
            code = exit_record.get("code")
            self._end(attempt, code=code if isinstance(code, int) else None, text=str(exit_record.get("text", ""))[-4000:])

    def _end(self, attempt: JobAttempt, *, code: int | None, text: str) -> None:
        attempt.gone = True
        job, number = attempt.assignment.job, attempt.assignment.attempt
        self._events.append(ClusterEvent(EventKind.GONE, job, number, offset=attempt.tail.offset, code=code, text=text))

    def _trouble(self, attempt: JobAttempt, text: str) -> None:
        self._events.append(ClusterEvent(EventKind.TROUBLE, attempt.assignment.job, attempt.assignment.attempt, text=text))

    # -- steering ------------------------------------------------------------------------------------------------

    def _steer_all(self) -> None:
        """Each attempt by itself: an agent that does not answer delays no other job's events."""
        for attempt in self.attempts.values():
            idle = attempt.steering is None or attempt.steering.done()
            changed = attempt.assignment.stop is not None or attempt.requested != attempt.assignment.workers
            if idle and changed and attempt.reported and not attempt.gone:
                attempt.steering = asyncio.create_task(self._steer(attempt))

    async def _steer(self, attempt: JobAttempt) -> None:
        """Brings one running attempt to its assignment. What does not work is tried again at the next poll."""
        assignment = attempt.assignment
        try:
            if assignment.stop is not None:
                await self._stop(attempt, assignment.stop)
            elif attempt.requested != assignment.workers and (attempt.run / "control.json").exists():
                await ask(attempt.run, "scale", workers=assignment.workers)
                attempt.requested = assignment.workers
        except AgentUnreachable:
            pass
        except OSError as error:
            self._trouble(attempt, f"cannot be steered: {error}")
        except AgentRefused as error:
            attempt.requested = assignment.workers
            self._trouble(attempt, str(error))

    async def _stop(self, attempt: JobAttempt, stop: Stop) -> None:
        now = time.monotonic()
        if now - attempt.stop_since.setdefault(stop, now) > KILL_AFTER_S[stop]:
            self._kill(attempt)
            return
        if now - attempt.stop_sent.get(stop, -STOP_AGAIN_S) < STOP_AGAIN_S:
            return
        again = stop in attempt.stop_sent
        attempt.stop_sent[stop] = now
        try:
            if stop is Stop.GRACEFUL:
                await ask(attempt.run, "drain")
            else:
                await ask(attempt.run, "stop", now=True)
        except (AgentUnreachable, AgentRefused):
            # No agent to ask: a plain command, or one that has not opened its port yet. The shim passes a signal on.
            attempt.signal()
            if stop is Stop.NOW and again:
                attempt.signal()

    def _kill(self, attempt: JobAttempt) -> None:
        """The last resort: the shim's second signal kills the job and everything that it has left."""
        attempt.signal()
        attempt.signal()

    # -- files ---------------------------------------------------------------------------------------------------

    async def check(self, workload: Workload, *, workdir: str | None, env: Mapping[str, str]) -> str | None:
        # Another launcher knows by itself what its scripts are.
        return await asyncio.to_thread(find_missing, workload, workdir, env=env, scripts=self.launcher == STRETTO)

    async def logs(self, run: RunRef, source: str, *, after: int | None, limit: int) -> LogPage:
        return await asyncio.to_thread(self._log_page, run, source, after, limit)

    def _log_page(self, run: RunRef, source: str, after: int | None, limit: int) -> LogPage:
        paths = {"console": self.home / "jobs" / run.job / f"life-{run.attempt}" / "console.log"}
        folder = self.home / "runs" / run.run / "logs"
        if run.run and folder.is_dir():
            paths.update({path.stem: path for path in sorted(folder.glob("*.log"))[:MAX_LOGS]})
        sources = tuple(paths)
        if source not in paths:
            return LogPage(sources)
        try:
            with paths[source].open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = max(0, size - limit) if after is None else min(after, size)
                file.seek(begin)
                return LogPage(sources, file.read(limit), begin, size)
        except OSError:
            return LogPage(sources)

    async def resumable(self, run: RunRef) -> bool:
        return await asyncio.to_thread(self._resumable, run)

    def _resumable(self, run: RunRef) -> bool:
        try:
            checkpoints = entries(open_storage(str(self._checkpoints(run.job, run.run))))
            return any(entry.complete and not entry.final for entry in checkpoints)
        except (StrettoError, OSError):
            return False

    async def delete(self, job: str, runs: Sequence[str]) -> None:
        for path in [self.home / "jobs" / job, *(self.home / "runs" / run for run in runs)]:
            await asyncio.to_thread(shutil.rmtree, path, True)
        for key in [key for key in self.attempts if key[0] == job]:
            del self.attempts[key]

    async def close(self) -> None:
        self._closed = True
        self._wake.set()
        for attempt in self.attempts.values():
            if attempt.steering is not None:
                attempt.steering.cancel()


def _prelude(run: Sequence[str]) -> str:
    """Defines `stretto` in a shell job: `stretto run script.py` there gets this job's name, folder and limits."""
    return f'stretto() {{ if [ "$1" = run ]; then shift; {join(run)} "$@"; else {join(STRETTO)} "$@"; fi; }}\n'
