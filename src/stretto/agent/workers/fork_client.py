"""The agent's side of the fork server: requests workers and receives their deaths."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.agent.workers.zygote import (
    FORK_REPLIES,
    FORK_REQUESTS,
    MESSAGE_BYTES,
    ForkRefused,
    ForkRequest,
    ForkServerReady,
    WorkerDied,
    WorkerForked,
)
from stretto.core.errors import JobFailed

WARM_S = 120.0
"""How long the import of torch may take, on a cold and busy disk."""
FORK_S = 30.0
"""How long a fork may take: it copies page tables only, so this means a machine that thrashes."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What a worker is given; the agent closes its copies once the fork is made."""

    link: int
    beat: int
    out: int
    err: int

    def close(self) -> None:
        for fd in (self.link, self.beat, self.out, self.err):
            with contextlib.suppress(OSError):
                os.close(fd)


class ForkServer:
    """One fork server process. `died(worker, code)` is called once for every worker; `gone(code)` if it ends."""

    def __init__(self, *, died: Callable[[str, int], None], gone: Callable[[int], None]) -> None:
        self._died = died
        self._gone = gone
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._forks: dict[str, asyncio.Future[int]] = {}
        self._warm: asyncio.Future[None] | None = None
        self._closing = False
        self._watcher: asyncio.Task[None] | None = None
        self.pids: dict[int, str] = {}

    async def start(self, script: str, argv: Sequence[str], *, threads: int, env: Mapping[str, str], cwd: str) -> None:
        """Starts the process; its imports go on while this returns."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._channel = ours
        loop = asyncio.get_running_loop()
        self._warm = loop.create_future()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "stretto.agent.workers.zygote",
                str(theirs.fileno()),
                script,
                *argv,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                cwd=cwd,
                env=_environment(env, threads=threads),
            )
        loop.add_reader(ours, self._readable)
        self._watcher = asyncio.create_task(self._watch())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def fork(self, worker: str, fds: Descriptors, *, env: Mapping[str, str], threads: int) -> int:
        """The pid of a new worker. Closes the descriptors whatever happens."""
        assert self._channel is not None
        assert self._warm is not None
        try:
            await asyncio.wait_for(asyncio.shield(self._warm), WARM_S)
            request = FORK_REQUESTS.encode(ForkRequest(worker, env, threads))
            if len(request) > MESSAGE_BYTES:
                raise JobFailed(f"the environment of {worker} has {len(request)} bytes, at most {MESSAGE_BYTES} go in")
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._forks[worker] = done
            socket.send_fds(self._channel, [request], [fds.link, fds.beat, fds.out, fds.err])
            return await asyncio.wait_for(done, FORK_S)
        except (TimeoutError, OSError) as error:
            raise JobFailed(f"the fork server (pid {self.pid}) did not start {worker}: {error!r}") from error
        finally:
            self._forks.pop(worker, None)
            fds.close()

    def kill(self, pid: int) -> None:
        """Kills a worker and its process group, if it is still ours."""
        if pid not in self.pids:
            return
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        """Ends the server and everything under it."""
        self._closing = True
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), 10.0)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._watcher is not None:
            await self._watcher

    async def _watch(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        if self._closing:
            return
        self._drain()
        error = JobFailed(f"the fork server ended with {describe_exit(code)}")
        for future in [self._warm, *self._forks.values()]:
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()
        for pid in list(self.pids):
            self.kill(pid)
        self._gone(code)

    def _readable(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(MESSAGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._channel)
            return
        self._handle(data)

    def _drain(self) -> None:
        """Handles the replies that the server sent before it ended."""
        assert self._channel is not None
        with contextlib.suppress(OSError):
            while data := self._channel.recv(MESSAGE_BYTES):
                self._handle(data)

    def _handle(self, data: bytes) -> None:
        match FORK_REPLIES.decode(data):
            case ForkServerReady():
                if self._warm is not None and not self._warm.done():
                    self._warm.set_result(None)
            case WorkerForked(worker, pid):
                self.pids[pid] = worker
                future = self._forks.get(worker)
                if future is not None and not future.done():
                    future.set_result(pid)
            case ForkRefused(error, worker):
                for future in self._forks.values() if worker is None else [self._forks[worker]]:
                    if not future.done():
                        future.set_exception(JobFailed(f"the fork server refused: {error}"))
            case WorkerDied(pid, status):
                worker = self.pids.pop(pid, None)
                if worker is not None:
                    self._died(worker, status)
            case _:
                pass


def describe_exit(code: int) -> str:
    """`exit code 3`, or `signal 9 (SIGKILL)`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _environment(env: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """Thread counts are read when libraries load, so they are the fork server's; a pool would not survive a fork."""
    count = str(threads)
    return {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, **env}
