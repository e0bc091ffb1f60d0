"""Writes the journal: one file, only ever appended to, one write a line.

A full disk does not end a job. Lines then wait in memory, are tried again, and are lost only when there are too many:
the run's result says so, and `audit` shows the gap.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stretto.core.journal import JOURNAL, KnownRecord

PENDING_BYTES = 16 << 20
RETRY_S = 1.0


class Journal:
    """Append-only. `warn` is called once when writing fails and once when it works again."""

    def __init__(self, path: Path, *, warn: Callable[[str], None]) -> None:
        self.path = path
        self.lost = 0
        self._warn = warn
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._pending: deque[bytes] = deque()
        self._bytes = 0
        self._tried = 0.0
        self._failing = False
        if _torn(path):
            self._append(b"\n")

    def write(self, line: KnownRecord) -> KnownRecord:
        """Writes the line with the present time, and returns it so. Never raises because of the disk."""
        line = replace(line, t=round(time.time(), 6))
        self._append(JOURNAL.encode(line))
        return line

    def close(self) -> str | None:
        """What was lost, if anything was."""
        self._tried = 0.0
        self._flush()
        os.close(self._fd)
        missing = self.lost + len(self._pending)
        return f"{missing} lines could not be written to {self.path}" if missing else None

    def _append(self, line: bytes) -> None:
        if self._bytes + len(line) > PENDING_BYTES:
            self.lost += 1
            return
        self._pending.append(line)
        self._bytes += len(line)
        self._flush()

    def _flush(self) -> None:
        if self._failing and time.monotonic() - self._tried < RETRY_S:
            return
        while self._pending:
            line = self._pending[0]
            try:
                written = os.write(self._fd, line)
            except OSError as error:
                self._fail(error)
                return
            self._bytes -= written
            if written < len(line):
                self._pending[0] = line[written:]
            else:
                self._pending.popleft()
        if self._failing:
            self._failing = False
            self._warn(f"the journal {self.path} can be written again")

    def _fail(self, error: OSError) -> None:
        self._tried = time.monotonic()
        if not self._failing:
            self._failing = True
            self._warn(
                f"the journal {self.path} cannot be written ({error.strerror}): the job goes on and keeps up to "
                f"{PENDING_BYTES >> 20} MB of lines in memory; make room on the disk"
            )


def _torn(path: Path) -> bool:
    """Whether the last line has no end: an agent died in the middle of a write."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
