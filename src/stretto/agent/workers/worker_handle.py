"""One worker as its agent sees it: the process, its channel, its heartbeat, its output and its status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from stretto.agent.workers.failure_policy import Crash
from stretto.agent.workers.fork_client import Descriptors
from stretto.agent.workers.liveness import Liveness
from stretto.agent.workers.worker_channel import WorkerChannel, WorkerOutput
from stretto.core.heartbeat import SIZE, HeartbeatReader
from stretto.core.messages import ToAgent
from stretto.core.schema import Unknown
from stretto.membership.worker_status import Phase, WorkerStatus

DRAIN_S = 2.0
"""How long to wait for a dead worker's output; only a stray process that holds its descriptors makes it that long."""


@dataclass(slots=True)
class WorkerHandle:
    """Everything about one process. A replacement is another worker with another name."""

    status: WorkerStatus
    number: int
    link: WorkerChannel
    beat: HeartbeatReader
    outputs: tuple[WorkerOutput, WorkerOutput]
    log: BinaryIO | None
    started: float = field(default_factory=time.monotonic)
    pid: int = 0
    fingerprint: Mapping[str, str] | None = None
    greeted: bool = False
    """It has called stretto.join."""
    crash: Crash | None = None
    verdict: Liveness | None = None
    """Why the agent killed it."""
    dismissed: str = ""
    """Why the agent ended it without a fault of its own, or refused it."""
    left: bool = False
    dead: bool = False

    @property
    def name(self) -> str:
        return self.status.worker

    @property
    def serving(self) -> bool:
        """It counts towards the number of workers."""
        return not self.dead and not self.dismissed and self.verdict is None and self.status.training

    async def drain_output(self) -> None:
        """Waits until everything that it wrote before it died has been read."""
        waits = [self.link.ended.wait(), *(output.ended.wait() for output in self.outputs)]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), DRAIN_S)

    def close(self) -> None:
        self.link.close()
        for output in self.outputs:
            output.close()
        with contextlib.suppress(OSError):
            if self.log is not None:
                self.log.close()
        self.beat.close()


def prepare(
    name: str,
    *,
    agent: str,
    number: int,
    order: int,
    log: Path,
    on_message: Callable[[ToAgent | Unknown], None],
    on_fault: Callable[[str], None],
    show: Callable[[str, bool], None],
) -> tuple[WorkerHandle, Descriptors]:
    """A worker without a process yet, and the descriptors that its process needs."""
    ours, theirs = socket.socketpair()
    beat = os.memfd_create(f"stretto-beat-{name}", os.MFD_CLOEXEC)
    os.ftruncate(beat, SIZE)
    reader = HeartbeatReader(beat)
    out, out_in = os.pipe()
    err, err_in = os.pipe()
    try:
        file = open(log, "ab", buffering=0)  # noqa: SIM115
    except OSError as error:
        file = None
        show(f"(no log: {error.strerror})", True)
    worker = WorkerHandle(
        status=WorkerStatus(worker=name, agent=agent, phase=Phase.STARTING, order=order),
        number=number,
        link=WorkerChannel(ours, on_message=on_message, on_fault=on_fault),
        beat=reader,
        outputs=(
            WorkerOutput(out, log=file, show=lambda line: show(line, False)),
            WorkerOutput(err, log=file, show=lambda line: show(line, True)),
        ),
        log=file,
    )
    return worker, Descriptors(link=theirs.detach(), beat=beat, out=out_in, err=err_in)
