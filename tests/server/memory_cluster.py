"""A cluster without processes, files or run folders: each attempt is an asyncio task, everything else is in memory.

It shows that the server knows nothing about `local`, and how little a cluster needs. `stretto serve --cluster
memory_cluster:open_cluster --cluster-option nodes=a:2,b:2`. SIGUSR1 takes the last node away, SIGUSR2 brings all nodes back.

A job's script arguments say what it does: `--steps N`, `--step-s S`, `--pending TEXT` (never placed, for this reason).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.clusters.base import (
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
from stretto.core.errors import UsageError
from stretto.core.journal import JOURNAL

BATCH = 64


@dataclass
class Attempt:
    assignment: Assignment
    task: asyncio.Task[None] | None = None
    lines: int = 0
    gone: bool = False


def open_cluster(context: ClusterContext, options: Mapping[str, str]) -> MemoryCluster:
    unknown = set(options) - {"nodes"}
    if unknown:
        raise UsageError(f"--cluster-option {min(unknown)}: the cluster `memory` has only `nodes`, as in nodes=a:2,b:2")
    pairs = [text.partition(":") for text in options.get("nodes", "a:2").split(",")]
    return MemoryCluster([NodeInfo(name, int(slots)) for name, _, slots in pairs])


@dataclass
class MemoryCluster:
    all_nodes: list[NodeInfo]
    name: str = "memory"
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    output: dict[tuple[str, int], bytearray] = field(default_factory=dict)
    checkpoints: dict[tuple[str, str], int] = field(default_factory=dict)
    """(job, run) → the number of finished steps."""
    alive: list[NodeInfo] = field(default_factory=list)
    events: asyncio.Queue[ClusterEvent | None] = field(default_factory=asyncio.Queue)
    applied: bool = False

    async def start(self) -> None:
        self.alive = list(self.all_nodes)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self.lose_node)
        loop.add_signal_handler(signal.SIGUSR2, self.restore_nodes)

    def nodes(self) -> Sequence[NodeInfo]:
        return self.alive

    def lose_node(self) -> None:
        lost = self.alive.pop()
        self.events.put_nowait(ClusterEvent(EventKind.NODES, text=f"{lost.name} is gone"))
        for attempt in self.attempts.values():
            if attempt.task is not None and not attempt.gone and lost.name in attempt.assignment.nodes:
                attempt.task.cancel()
                self.end(attempt, None, f"{lost.name} is gone")

    def restore_nodes(self) -> None:
        self.alive = list(self.all_nodes)
        self.events.put_nowait(ClusterEvent(EventKind.NODES, text="all nodes are back"))

    async def apply(self, assignments: Sequence[Assignment]) -> None:
        wanted = {(one.job, one.attempt): one for one in assignments}
        for key, attempt in self.attempts.items():
            if key not in wanted and not attempt.gone:
                self.stop(attempt)
        for key, assignment in wanted.items():
            if key in self.attempts:
                self.attempts[key].assignment = assignment
                if assignment.stop is not None:
                    self.stop(self.attempts[key])
                continue
            attempt = self.attempts[key] = Attempt(assignment)
            if not self.applied:
                self.end(attempt, None, "lost with the server that it ran in")
            elif assignment.stop is not None:
                self.end(attempt, -15, "stopped before it was started")
            else:
                attempt.task = asyncio.create_task(self.run(attempt))
        self.applied = True

    def stop(self, attempt: Attempt) -> None:
        if attempt.gone:
            return
        if attempt.task is not None:
            attempt.task.cancel()
        if attempt.assignment.stop is Stop.GRACEFUL and attempt.lines:
            self.write(attempt, "end", state="stopped", steps=0, digest=None, error=None)
        self.end(attempt, -15, "stopped")

    def end(self, attempt: Attempt, code: int | None, text: str) -> None:
        attempt.gone = True
        self.emit(attempt, EventKind.GONE, code=code, text=text)

    def emit(self, attempt: Attempt, kind: EventKind, **fields: object) -> None:
        event = ClusterEvent(kind, attempt.assignment.job, attempt.assignment.attempt, **fields)  # type: ignore[arg-type]
        self.events.put_nowait(event)

    def write(self, attempt: Attempt, kind: str, **fields: object) -> None:
        attempt.lines += 1
        line = JOURNAL.from_dict({"t": time.time(), "kind": kind, **fields})  # type: ignore[dict-item]
        self.emit(attempt, EventKind.LINES, lines=[line], offset=attempt.lines)

    def log(self, attempt: Attempt, text: str) -> None:
        key = attempt.assignment.job, attempt.assignment.attempt
        self.output.setdefault(key, bytearray()).extend(f"{text}\n".encode())

    async def run(self, attempt: Attempt) -> None:
        words = attempt.assignment.workload.script
        options = dict(zip(words[1::2], words[2::2], strict=True))
        if "--pending" in options:
            self.emit(attempt, EventKind.PENDING, text=options["--pending"])
            return
        key = attempt.assignment.job, attempt.assignment.run
        first = self.checkpoints.get(key, 0) if attempt.assignment.resume else 0
        self.emit(attempt, EventKind.STARTED)
        self.log(attempt, f"begins at step {first}")
        workers = attempt.assignment.workers
        self.switch(attempt, workers, first, "start")
        for step in range(first, int(options["--steps"])):
            if attempt.assignment.workers != workers:
                workers = attempt.assignment.workers
                self.switch(attempt, workers, step, "resize")
            await asyncio.sleep(float(options["--step-s"]) / workers)
            place = {"epoch": 0, "loader": 0, "roster": 1, "first": step * BATCH, "count": BATCH, "batch": BATCH}
            self.write(attempt, "commit", step=step, tick=step + 1, workers=workers, metrics={"loss": 1.0 / (step + 1)}, **place)
            self.log(attempt, f"step {step}")
            self.checkpoints[key] = step + 1
        self.write(attempt, "end", state="finished", digest="0" * 64, steps=int(options["--steps"]), error=None)
        self.end(attempt, 0, "")

    def switch(self, attempt: Attempt, workers: int, step: int, cause: str) -> None:
        self.write(attempt, "switch", number=1, step=step, workers=workers, joined=[], left=[], cause=cause, pause_ms=1.0)

    async def watch(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        while (event := await self.events.get()) is not None:
            yield [event]

    async def check(self, workload: Workload, *, workdir: str | None, env: Mapping[str, str]) -> str | None:
        return None if workload.script else "run: the cluster `memory` runs scripts only: name one"

    async def logs(self, run: RunRef, source: str, *, after: int | None, limit: int) -> LogPage:
        output = bytes(self.output.get((run.job, run.attempt), b""))
        begin = max(0, len(output) - limit) if after is None else min(after, len(output))
        return LogPage(("console",), output[begin : begin + limit] if source == "console" else b"", begin, len(output))

    async def resumable(self, run: RunRef) -> bool:
        return (run.job, run.run) in self.checkpoints

    async def delete(self, job: str, runs: Sequence[str]) -> None:
        self.output = {key: output for key, output in self.output.items() if key[0] != job}
        self.checkpoints = {key: step for key, step in self.checkpoints.items() if key[0] != job}

    async def close(self) -> None:
        self.events.put_nowait(None)
