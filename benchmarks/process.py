"""Processes that a benchmark starts: each in a session of its own, so that all of it ends with the benchmark."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.report import ROOT


def _stop(*_: object) -> None:
    """Unwinds a benchmark that is stopped, so that everything that it started ends with it. A second signal (`timeout` sends one,
    and so does make, which `timeout` stops too) must not interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


signal.signal(signal.SIGTERM, _stop)

PYTHON = sys.executable
Process = subprocess.Popen[bytes]
BIN = Path(sys.executable).parent


def launch(command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None) -> Process:
    """Starts a command in the repository's root, with one thread (as in all benchmarks) and its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | dict(env or {})
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=ROOT,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(processes: Sequence[Process], *, grace_s: float = 0.0) -> None:
    """Ends these processes and whatever they have started, gracefully if there is time to wait, then by SIGKILL.

    Sessions alone are not enough: torchrun gives each of its workers a session of its own.
    """
    offspring = [pid for process in processes for pid in descendants(process.pid)]
    for process in processes:
        _signal(process, signal.SIGCONT)
        if grace_s:
            _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        offspring += descendants(process.pid)
        _signal(process, signal.SIGKILL)
        process.wait(10)
    for pid in offspring:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def wait_for(condition: Callable[[], bool], *, what: str, limit_s: float = 120.0, every_s: float = 0.05) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(every_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(pid: int) -> list[int]:
    """The children of a process."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it may end at any moment
            pids += [int(child) for child in task.read_text().split()]
    return pids


def descendants(pid: int) -> list[int]:
    pids = children(pid)
    return pids + [younger for child in pids for younger in descendants(child)]
