"""A trail: the moments at which one process finished its steps, so that every system's pauses are measured in one way.

The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path


class Trail:
    """The writing side, inside a training script. Every line is one write."""

    def __init__(self, folder: str | Path, name: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = os.open(Path(folder) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def mark(self, *, world: int = 0) -> None:
        os.write(self._file, f"{time.monotonic():.6f} {world}\n".encode())


@dataclass(frozen=True, slots=True)
class Mark:
    at: float
    world: int


def read(path: Path) -> list[Mark]:
    """The marks so far; a line that is still being written is left out."""
    try:
        lines = path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [Mark(float(at), int(world)) for at, world in (line.split() for line in lines)]


def step_s(marks: list[Mark]) -> float:
    """The median time between marks."""
    return statistics.median(b.at - a.at for a, b in itertools.pairwise(marks))


def pause_s(marks: list[Mark], *, since: float, until: float, usual_s: float) -> float:
    """The longest time without a step in a window, beyond what a step takes anyway."""
    gaps = [b.at - a.at for a, b in itertools.pairwise(marks) if b.at > since and a.at < until]
    if not gaps:
        raise ValueError("no step was finished in the window")
    return max(0.0, max(gaps) - usual_s)
