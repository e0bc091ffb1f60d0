"""One attempt of a job on this machine: its shim, its journal, its folder.

The folder is the truth. A held lock means alive, `exit.json` means ended. Neither means that it was never started or that even
the shim was killed; the file `begun` tells these two apart.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from stretto.clusters.base import Assignment, Stop
from stretto.core.errors import SchemaError
from stretto.core.files import replacing
from stretto.core.journal import JOURNAL, Record
from stretto.core.schema import Json, parse

LOG_BYTES = 16 << 20
GRACE_S = 30.0
SHIM = str(Path(__file__).with_name("shim.py"))
INHERITED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME"}
    | {"LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "COVERAGE_PROCESS_START"}
)
"""The variables of the server's environment that a job gets. No others: they may be the server's secrets."""


MAX_JOURNAL_BYTES = 512 * 1024
MAX_JOURNAL_LINE = 256 * 1024
ILLEGIBLE = re.compile("[\x00\ud800-\udfff]")
"""Characters that JSON can spell and no database, stream or terminal accepts: NUL, and halves of surrogate pairs."""


@dataclass(slots=True)
class JobAttempt:
    """The state of one assignment in the local cluster."""

    assignment: Assignment
    folder: Path
    run: Path
    tail: JournalTail
    process: subprocess.Popen[bytes] | None = None
    reported: bool = False
    """Its start was reported."""
    requested: int | None = None
    """The number of workers last requested from its agent."""
    stop_since: dict[Stop, float] = field(default_factory=dict[Stop, float])
    """When each kind of stop was requested first; `stop_sent`: last."""
    stop_sent: dict[Stop, float] = field(default_factory=dict[Stop, float])
    steering: asyncio.Task[None] | None = None
    """The pending request to its agent."""
    gone: bool = False

    def begun(self) -> bool:
        return (self.folder / "begun").exists()

    def locked(self) -> bool:
        """Whether a shim runs. If none does, this takes a shared lock for a moment."""
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
        """Writes the exit of an attempt without a shim, so that a shim that starts late finds it. False if the attempt is alive."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self.folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (self.folder / "exit.json").exists():
                with replacing(self.folder / "exit.json") as exit_file:
                    exit_file.write(json.dumps({"code": None, "t": time.time(), "text": ""}).encode())
                end_strays(self.assignment.job, self.assignment.attempt)
            return True
        except OSError:
            return False
        finally:
            os.close(file)

    def alive(self) -> bool:
        return self.locked() or (self.process is not None and self.process.poll() is None)

    def exit(self) -> dict[str, object] | None:
        try:
            value = json.loads((self.folder / "exit.json").read_text())
            return cast(dict[str, object], value) if isinstance(value, dict) else None
        except (OSError, ValueError):
            return None

    def shim(self) -> int | None:
        """The process id of the shim, if it runs."""
        if not self.locked():
            return None
        try:
            return int(json.loads((self.folder / "keeper.json").read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def launch(self, command: list[str], *, cwd: Path, env: dict[str, str], cpus: set[int]) -> None:
        """Starts the shim in a session of its own: it and the job outlive this server."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "begun").touch()
        inherited = {key: os.environ[key] for key in sorted(INHERITED) if key in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", SHIM, str(self.folder), str(LOG_BYTES), str(GRACE_S), "--", *command],
            cwd=cwd,
            env={**inherited, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=True,
            umask=0o077,
        )
        try:
            os.sched_setaffinity(self.process.pid, cpus)
        except OSError:
            pass

    def signal(self, number: int = signal.SIGTERM) -> None:
        pid = self.shim()
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def bind(self, cpus: set[int]) -> None:
        """Binds every process of the job to these cores. Later workers inherit this from their agent."""
        pid = self.shim()
        for member in members(pid) if pid is not None else ():
            try:
                os.sched_setaffinity(member, cpus)
            except OSError:
                pass


def members(shim: int) -> list[int]:
    """The shim and its descendants."""
    pids = [shim]
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    pids.extend(int(child) for child in file.read().split())
        except OSError:
            continue
    return pids


def attempt_environment(job: str, attempt: int) -> dict[str, str]:
    """Environment variables that mark every process of an attempt."""
    return {"STRETTO_JOB": job, "STRETTO_LIFE": f"{job}/{attempt}"}


def end_strays(job: str, attempt: int) -> int:
    """Kills the processes of an attempt whose shim was killed: they are found by their environment."""
    wanted = f"STRETTO_LIFE={job}/{attempt}".encode()
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


@dataclass(slots=True)
class JournalTail:
    """Reads a journal while it is written: whole lines only, from where it stopped, a bounded amount at a time."""

    path: Path
    offset: int = 0

    def read(self) -> list[Record]:
        """The complete lines since the last call. Skips lines that are too long, are not JSON or do not fit their kind."""
        try:
            size = self.path.stat().st_size
            if size <= self.offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(MAX_JOURNAL_BYTES)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) >= MAX_JOURNAL_LINE:
            end = len(data)
        self.offset += end
        lines = [_parse(line) for line in data[:end].splitlines()]
        return [line for line in lines if line is not None]


def _parse(line: bytes) -> Record | None:
    try:
        document = parse(line)
        if b"\\u" in line or b"\xed" in line:
            document = {key: _legible(value) for key, value in document.items()}
        return JOURNAL.from_dict(document)
    except (SchemaError, RecursionError):
        return None


def _legible(value: Json) -> Json:
    if isinstance(value, str):
        return ILLEGIBLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {ILLEGIBLE.sub("\N{REPLACEMENT CHARACTER}", key): _legible(inner) for key, inner in value.items()}
    return [_legible(inner) for inner in value] if isinstance(value, list) else value
