"""One life of a job on this machine: its keeper, its journal, its control port.

The folder is the truth. A held lock means alive, `exit.json` means ended, neither means that it was never started or
that even the keeper was killed; `begun` tells these two apart.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.clusters.base import Assignment, Stop
from stretto.clusters.journal_tail import Tail

LOG_BYTES = 16 << 20
GRACE_S = 30.0
KEEPER = str(Path(__file__).with_name("shim.py"))
INHERITED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME"}
    | {"LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "COVERAGE_PROCESS_START"}
)
"""What a job gets of the server's environment. Nothing else: the server's own secrets are not the jobs'."""


@dataclass(slots=True)
class JobAttempt:
    """What the local cluster knows of one assignment."""

    assignment: Assignment
    folder: Path
    run: Path
    tail: Tail
    process: subprocess.Popen[bytes] | None = None
    launched_at: float = 0.0
    seen: bool = False
    """Its start was reported."""
    asked: int | None = None
    """The number of workers that its agent was told last."""
    stop_since: dict[Stop, float] = field(default_factory=dict)
    """When each kind of stop was asked for first, and when last: `stop_sent`."""
    stop_sent: dict[Stop, float] = field(default_factory=dict)
    steering: asyncio.Task[None] | None = None
    """A request to its agent that is under way."""
    gone: bool = False
    tries: int = 0

    def begun(self) -> bool:
        return (self.folder / "begun").exists()

    def locked(self) -> bool:
        """Whether a keeper lives. Takes and gives back a shared lock if not."""
        try:
            file = os.open(self.folder / "keeper.lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError:
            return True
        finally:
            os.close(file)

    def seal(self) -> bool:
        """Makes sure that a life that nobody keeps stays over: a keeper that comes late finds an exit. False if it lives."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self.folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (self.folder / "exit.json").exists():
                (self.folder / "exit.new").write_text(json.dumps({"code": None, "t": time.time(), "text": ""}))
                os.replace(self.folder / "exit.new", self.folder / "exit.json")
                end_strays(self.assignment.job, self.assignment.life)
            return True
        except OSError:
            return False
        finally:
            os.close(file)

    def alive(self) -> bool:
        return self.locked() or (self.process is not None and self.process.poll() is None)

    def exit(self) -> dict[str, Any] | None:
        try:
            value = json.loads((self.folder / "exit.json").read_text())
            return value if isinstance(value, dict) else None
        except (OSError, ValueError):
            return None

    def keeper(self) -> int | None:
        """The living keeper's process id."""
        if not self.locked():
            return None
        try:
            return int(json.loads((self.folder / "keeper.json").read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def launch(self, command: list[str], *, cwd: Path, env: dict[str, str], cpus: set[int]) -> None:
        """Starts the keeper in a session of its own: it and the job outlive this server."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "begun").touch()
        inherited = {key: os.environ[key] for key in sorted(INHERITED) if key in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", KEEPER, str(self.folder), str(LOG_BYTES), str(GRACE_S), "--", *command],
            cwd=cwd,
            env={**inherited, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=True,
            umask=0o077,
        )
        self.launched_at = time.monotonic()
        try:
            os.sched_setaffinity(self.process.pid, cpus)
        except OSError:
            pass

    def signal(self, number: int = signal.SIGTERM) -> None:
        pid = self.keeper()
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def bind(self, cpus: set[int]) -> None:
        """Puts every process of the job on these cores. Workers that come later inherit it from their agent."""
        pid = self.keeper()
        for one in members(pid) if pid is not None else ():
            try:
                os.sched_setaffinity(one, cpus)
            except OSError:
                pass


def members(keeper: int) -> list[int]:
    """The processes below a keeper, itself included."""
    found = [keeper]
    for pid in found:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    found.extend(int(child) for child in file.read().split())
        except OSError:
            continue
    return found


def mark(job: str, life: int) -> dict[str, str]:
    """What every process of a life has in its environment."""
    return {"STRETTO_JOB": job, "STRETTO_LIFE": f"{job}/{life}"}


def end_strays(job: str, life: int) -> int:
    """Kills what a life has left when even its keeper was killed: its processes are known by their environment."""
    wanted = f"STRETTO_LIFE={job}/{life}".encode()
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read(1 << 20).split(b"\0"):
                        os.kill(int(name), signal.SIGKILL)
                        count += 1
            except OSError:
                continue
    return count
