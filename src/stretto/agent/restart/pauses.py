"""How long a change has kept a script in restart mode from training: from its last step before to its first step after.

The first rank notes the times of its optimizers' steps in a small mapped file of its generation (site/sitecustomize.py), on the
clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import replace
from pathlib import Path

from stretto.agent.records.recorder import Recorder
from stretto.core.journal import Switch

POLL_S = 0.1
"""How often the first step of a generation is looked for."""


class Pauses:
    """Writes the journal's `switch` lines, each when its pause is known or will never be."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self._folder = folder.absolute()
        self._steps = self._folder / "steps-0"
        """The file of the present generation."""
        self._recorder = recorder
        self._last: float | None = None
        """When the job's last step ended, in earlier generations."""
        self._line: Switch | None = None
        self._waiting: asyncio.Task[None] | None = None

    def prepare(self, generation: int) -> Path:
        """The file for a generation that is about to be started. Never the one before: somebody may still have that mapped."""
        self._steps.unlink(missing_ok=True)
        self._steps = self._folder / f"steps-{generation}"
        self._steps.write_bytes(bytes(16))
        return self._steps

    def generation_began(self, line: Switch) -> None:
        """All ranks are started. Without a step before there is no pause to wait for."""
        if self._last is None:
            self._recorder.write(replace(line, pause_ms=0.0 if line.cause == "start" else None))
            return
        self._line = line
        self._waiting = asyncio.create_task(self._wait_for_first_step())

    def generation_ended(self) -> None:
        """Takes down the last step, and the line that still waits for a first one."""
        first, last = self._times()
        self._write(first)
        self._last = last or self._last

    def close(self) -> None:
        self.generation_ended()
        self._steps.unlink(missing_ok=True)

    async def _wait_for_first_step(self) -> None:
        while not self._times()[0]:
            await asyncio.sleep(POLL_S)
        self._write(self._times()[0])

    def _write(self, first: float) -> None:
        line, self._line = self._line, None
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting is not asyncio.current_task():
            waiting.cancel()
        if line is not None and self._last is not None:
            pause_ms = round((first - self._last) * 1e3, 3) if first else None
            self._recorder.write(replace(line, pause_ms=pause_ms))

    def _times(self) -> tuple[float, float]:
        """Of the first and the last step of this generation; 0 before there was one."""
        with contextlib.suppress(OSError, struct.error):
            return struct.unpack("dd", self._steps.read_bytes())
        return 0.0, 0.0
