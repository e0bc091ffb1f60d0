"""One generation of a restart-mode job: its processes, with the environment that torchrun would give them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from stretto.agent.workers.worker_channel import WorkerOutput

_PR_SET_PDEATHSIG = 1
SITE = Path(__file__).parent / "site"


@dataclass(frozen=True, slots=True)
class RankLaunch:
    """What is started, `world` times."""

    script: str
    args: tuple[str, ...]
    world: int
    generation: int
    """How many generations there were before."""
    restarts: int
    max_restarts: int
    run: str
    saves: Path
    steps: Path
    """Where the first rank notes when its optimizers step (site/sitecustomize.py)."""
    threads: int = 1

    def environment(self, rank: int, *, port: int) -> dict[str, str]:
        """The variables of torchrun 2.x on one node, and ours. The number of threads is fixed: it must not follow the world."""
        world, place = str(self.world), str(rank)
        ours = {"saves": str(self.saves), "steps": str(self.steps), "generation": self.generation}
        path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
        return {
            **os.environ,
            "RANK": place,
            "LOCAL_RANK": place,
            "ROLE_RANK": place,
            "GROUP_RANK": "0",
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "ROLE_WORLD_SIZE": world,
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_RUN_ID": self.run,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self.threads)),
            "STRETTO_RESTART": json.dumps(ours),
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
        }


@dataclass(slots=True)
class Rank:
    """One process of a restarted script, with its output."""

    number: int
    process: asyncio.subprocess.Process
    outputs: tuple[WorkerOutput, WorkerOutput]
    log: BinaryIO
    ended: asyncio.Task[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = asyncio.create_task(self.process.wait())

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """With everything that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(output.ended.wait() for output in self.outputs)), 2.0)
        for output in self.outputs:
            output.close()
        self.log.close()


async def start(launch: RankLaunch, *, logs: Callable[[int], Path], show: Callable[[int, str, bool], None]) -> list[Rank]:
    """All ranks of a generation."""
    port = _free_port()
    ranks: list[Rank] = []
    try:
        for number in range(launch.world):
            ranks.append(await _start(launch, number, launch.environment(number, port=port), logs(number), show))
    except OSError:
        for rank in ranks:
            rank.kill()
        raise
    return ranks


async def _start(
    launch: RankLaunch, number: int, env: Mapping[str, str], log: Path, show: Callable[[int, str, bool], None]
) -> Rank:
    out, out_in = os.pipe()
    err, err_in = os.pipe()
    file = open(log, "ab", buffering=0)  # noqa: SIM115
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-u",
            launch.script,
            *launch.args,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out_in,
            stderr=err_in,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    finally:
        os.close(out_in)
        os.close(err_in)
    outputs = (
        WorkerOutput(out, log=file, show=lambda line: show(number, line, False)),
        WorkerOutput(err, log=file, show=lambda line: show(number, line, True)),
    )
    return Rank(number, process, outputs, file)


def _die_with_parent() -> None:
    """No rank outlives an agent that was killed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    """Free at this moment. A new one for every generation: the last one's may still be held by a process that is being killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
