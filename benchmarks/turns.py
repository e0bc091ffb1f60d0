"""Sides of a comparison take turns: all are started once, and only one of them computes at a time.

A noisy machine then hits all sides alike. The referee opens a gate for one side, that side does its block of steps and says how
long it took, and the next one's gate opens. Gates are files in a folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.process import Process, wait_for

POLL_S = 0.002
LIMIT_S = 600.0


class Player:
    """A side's own view, in each of its processes: call `arrive` at the top of every step."""

    def __init__(self, folder: Path, side: str, *, steps: int) -> None:
        """`steps` is the length of a block."""
        self._folder = folder
        self._side = side
        self._steps = steps
        self._step = 0
        self._begun = 0.0

    def arrive(self, *, speaks: bool) -> None:
        """Closes a block and waits for the next one's gate. `speaks` on the one process that reports the times."""
        block, within = divmod(self._step, self._steps)
        self._step += 1
        if within:
            return
        now = time.monotonic()
        if speaks:
            _write(self._folder / f"done-{self._side}-{block}", {"step_s": (now - self._begun) / self._steps})
        gate = self._folder / f"go-{self._side}-{block}"
        deadline = now + LIMIT_S
        while not gate.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the gate {gate} was not opened within {LIMIT_S:g} s")
            time.sleep(POLL_S)
        self._begun = time.monotonic()


def referee(
    folder: Path, sides: Sequence[str], *, blocks: int, alive: Callable[[], Sequence[Process]], warm: int = 2
) -> dict[str, list[float]]:
    """Opens the gates in turns, every other round in reverse order. Returns seconds per step by side, without warm-up blocks."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for side in sides:
        _await(folder / f"done-{side}-0", alive)
    for block in range(blocks + warm):
        for side in sides if block % 2 else list(reversed(sides)):
            (folder / f"go-{side}-{block}").touch()
            step_s = _await(folder / f"done-{side}-{block + 1}", alive)["step_s"]
            if block >= warm:
                times[side].append(step_s)
    for side in sides:  # whoever trains on does so without waiting, and ends
        (folder / f"go-{side}-{blocks + warm}").touch()
    return times


def _await(path: Path, alive: Callable[[], Sequence[Process]]) -> dict[str, float]:
    def there() -> bool:
        if not path.exists() and any(process.poll() not in (None, 0) for process in alive()):
            raise RuntimeError(f"a process ended before it wrote {path.name}: its log is in {path.parent}")
        return path.exists()

    wait_for(there, what=path.name, limit_s=LIMIT_S, every_s=0.005)
    return json.loads(path.read_text())


def _write(path: Path, document: dict[str, float]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document))
    os.replace(new, path)
