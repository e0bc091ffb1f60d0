"""A run that outlives the terminal that started it: its output goes to a file, and whoever wants to see it follows that.

The exit code is laid beside the file when the run has ended, so a follower that was not its parent knows it too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stretto.core.errors import UsageError

POLL_S = 0.1
CHUNK = 1 << 16
WRAPPER = '"$@"; echo $? > "$0.exit.part"; mv "$0.exit.part" "$0.exit"'


def start(command: Sequence[str], console: Path) -> int:
    """Starts it in a session of its own; the pid of what waits for it."""
    try:
        console.parent.mkdir(parents=True, exist_ok=True)
        with open(console, "xb") as out:
            process = subprocess.Popen(
                ["sh", "-c", WRAPPER, str(console), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise UsageError(f"{console} cannot be written: {error.strerror}") from None
    return process.pid


def follow(console: Path, pid: int, *, show: Callable[[bytes], None], tail: int | None = None) -> int:
    """Shows what is written, from the last `tail` bytes or the beginning on, until the run ends; its exit code."""
    try:
        with open(console, "rb") as file:
            if tail is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            while True:
                ended = exit_code(console)
                gone = not _alive(pid)
                while data := file.read(CHUNK):
                    show(data)
                if ended is not None:
                    return ended
                if gone and exit_code(console) is None:
                    show(b"the agent was killed, with whoever waited for it\n")
                    return 137
                time.sleep(POLL_S)
    except FileNotFoundError:
        raise UsageError(f"there is no {console}: was the run started on this host?") from None


def exit_code(console: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"{console}.exit").read_text())
    return None


def to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
