"""The fork server: imports torch once and forks workers from itself, so a newcomer's start costs its own script.

Run as `python -m stretto.agent.workers.zygote FD SCRIPT ARGS...`. FD is one end of a seqpacket socket pair: requests come in
with the worker's descriptors attached, answers and deaths go out. It has one thread until it forks, and it outlives
nobody: when its agent vanishes the socket ends, it kills every worker and all that they started, and goes. When it is
killed itself, the kernel kills the workers (`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stretto.core import threads
from stretto.core.schema import Schema, Unknown

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
MESSAGE_BYTES = 65536
FDS = 4
"""A worker's descriptors, in this order: link, beat, standard output, standard error."""
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": (-1, 1 << 30), "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TOP_PAD_": (-2, 64 << 20)}
"""What glibc is told for workers (`_keep_memory`): the variable that a user would set, mallopt's number for it, and the value."""
WARM = ("torch", "torch.distributed", "torch.utils.data", "torch._dynamo", "numpy", "stretto.train.entry.script_runner")
"""What workers need anyway. torch._dynamo is here because every optimizer imports it at its first step."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """The agent wants a worker. Its descriptors come with the message."""

    worker: str
    env: Mapping[str, str]
    threads: int = 1


@dataclass(frozen=True, slots=True)
class ForkServerReady:
    """The imports are done."""

    pid: int
    missing: tuple[str, ...] = ()
    """Modules that could not be imported, with the errors."""


@dataclass(frozen=True, slots=True)
class WorkerForked:
    """The process of a worker runs."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True)
class ForkRefused:
    """A worker could not be started. Without its name, the request could not be read."""

    error: str
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """The process of a worker has ended."""

    pid: int
    status: int
    """Its exit code, or the negative number of the signal that ended it."""


ForkReply: TypeAlias = ForkServerReady | WorkerForked | ForkRefused | WorkerDied

FORK_REQUESTS: Schema[ForkRequest] = Schema({"fork": ForkRequest})
FORK_REPLIES: Schema[ForkReply] = Schema(
    {"warm": ForkServerReady, "forked": WorkerForked, "refused": ForkRefused, "died": WorkerDied}
)


def main(arguments: Sequence[str]) -> int:
    """Serves until the agent is gone. The exit code means nothing to anybody."""
    channel = socket.socket(fileno=int(arguments[0]))
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_memory()
    missing = _warm()
    # From here on the end of the socket is the better sign: it leaves time to take the workers' own children along.
    _prctl(_PR_SET_PDEATHSIG, 0)
    if os.getppid() != parent:
        return 1
    server = _Server(channel, script=arguments[1], argv=list(arguments[2:]))
    try:
        server.send(ForkServerReady(os.getpid(), tuple(missing)))
        server.serve()
    except (OSError, EOFError):
        pass
    finally:
        server.sweep()
    return 0


class _Server:
    """The loop: requests in, forks and deaths out. Holds nothing that a forked worker could not drop."""

    def __init__(self, channel: socket.socket, *, script: str, argv: list[str]) -> None:
        self.channel = channel
        self.script = script
        self.argv = argv
        self.pid = os.getpid()
        self.workers: set[int] = set()
        self._wake, self._wake_in = os.pipe()
        for fd in (self._wake, self._wake_in):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)
        # What was imported stays: no collection looks at it again, here or in a worker, and no page of it is copied for that.
        gc.freeze()
        gc.enable()

    def send(self, message: ForkReply) -> None:
        self.channel.send(FORK_REPLIES.encode(message))

    def serve(self) -> None:
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self.reap()
            if self.channel.fileno() in ready:
                self.handle()

    def handle(self) -> None:
        data, fds, flags, _ = socket.recv_fds(self.channel, MESSAGE_BYTES, FDS)
        if not data:
            raise EOFError
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) != FDS:
                self.send(ForkRefused(f"needs {FDS} descriptors and at most {MESSAGE_BYTES} bytes"))
                return
            request = FORK_REQUESTS.decode(data)
            if isinstance(request, Unknown):
                self.send(ForkRefused(f"cannot do {request.kind!r}"))
                return
            try:
                pid = os.fork()
            except OSError as error:
                self.send(ForkRefused(f"fork failed: {error}", request.worker))
                return
            if pid == 0:
                self.become(request, fds)
            self.workers.add(pid)
            self.send(WorkerForked(request.worker, pid))
        finally:
            for fd in fds:
                os.close(fd)

    def become(self, request: ForkRequest, fds: list[int]) -> None:
        """In the child: never returns."""
        code = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.channel.close()
            os.close(self._wake)
            os.close(self._wake_in)
            code = _live(request, fds, server=self.pid, script=self.script, argv=self.argv)
            if code == 0:
                _leave()
        except BaseException as error:  # whatever it is, a worker must not go on as a second fork server
            _complain(f"stretto: the worker could not be started: {type(error).__name__}: {error}\n")
        finally:
            _flush()
            os._exit(code)

    def reap(self) -> None:
        """Collects the dead. What a dead worker leaves behind becomes this process's child, and is killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.workers:
                self.workers.discard(pid)
                _kill_group(pid)
                self._kill_strays()
                self.send(WorkerDied(pid, os.waitstatus_to_exitcode(status)))

    def _kill_strays(self) -> None:
        for pid in _children():
            if pid not in self.workers:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def sweep(self) -> None:
        """Nobody is left behind: workers, their groups, and strays that became ours when the workers died."""
        signal.set_wakeup_fd(-1)
        for pid in list(self.workers):
            _kill_group(pid)
        for _ in range(1000):
            strays = _children()
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)


def _ignore(*_: object) -> None:
    """A handler for SIGCHLD, so that the wakeup descriptor gets a byte."""


def _keep_memory() -> None:
    """Workers keep what they free for the next step.

    By default glibc gives blocks of a gradient's size back to the kernel and asks for them again in every step, and every page
    of them is then cleared anew: a tenth of a convolutional network's step. Whoever has set one of the variables for it has
    decided already; another C library has no mallopt, and stays as it is.
    """
    if any(name in os.environ for name in _MALLOC) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC.values():
            mallopt(parameter, value)


def _warm() -> list[str]:
    """Imports ahead. What is not installed is the worker's to report, in its own words.

    Collections meanwhile would find nothing to free, again and again: a sixth of the time.
    """
    gc.disable()
    missing: list[str] = []
    for name in WARM:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing.append(f"{name}: {error}")
    return missing


def _live(request: ForkRequest, fds: list[int], *, server: int, script: str, argv: list[str]) -> int:
    """The life of a worker: its own group, its descriptors, its environment, the script."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(70)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    link, beat, out, err = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.update(request.env)
    os.environ["STRETTO_LINK"] = str(link)
    os.environ["STRETTO_BEAT"] = str(beat)
    _reopen_streams()
    _set_threads(request.threads)
    from stretto.train.entry.script_runner import run_script

    return run_script(script, argv)


def _leave() -> None:
    """What an interpreter does at its end, for scripts that count on it: threads are joined, exit handlers run."""
    atexit.unregister(threads.finish)  # os._exit comes next and unwinds nothing: a save that hangs need not be waited for
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _set_threads(threads: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _reopen_streams() -> None:
    """Standard streams of its own, flushed by the line: nothing of the fork server's buffers is printed twice."""
    sys.stdin = open(os.devnull)  # noqa: SIM115
    os.dup2(sys.stdin.fileno(), 0)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
