"""When each process finished its steps: all systems write the same log, so their gaps are measured in the same way.

The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class StepLog:
    """The writing side, inside a training script. Every line is one write."""

    def __init__(self, folder: str | Path, name: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = os.open(Path(folder) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def mark(self, *, world: int = 0, pause_s: float = 0.0) -> None:
        """A step has ended. `pause_s` is how long this worker waited for a change of membership since the last one."""
        os.write(self._file, f"{time.monotonic():.6f} {world} {pause_s:.6f}\n".encode())


@dataclass(frozen=True, slots=True)
class StepMark:
    """The end of one step on one worker."""

    at: float
    world: int
    pause_s: float = 0.0


def read_marks(path: Path) -> list[StepMark]:
    """The marks so far, without a line that is still being written."""
    try:
        lines = path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    fields = [line.split() for line in lines]
    return [StepMark(float(at), int(world), float(pause_s)) for at, world, pause_s in fields]


def median_step_s(marks: Sequence[StepMark]) -> float:
    return statistics.median(after.at - before.at for before, after in itertools.pairwise(marks))


def longest_gap_s(marks: Sequence[StepMark], *, since: float, until: float, recent: int = 30) -> float:
    """The longest time without a step in a window, beyond the usual step of the membership in which the gap ended.

    What is usual is taken from the window and the last `recent` steps before it: on a busy machine older steps mislead.
    """
    earlier = [mark for mark in marks if mark.at <= since][-recent:]
    pairs = list(itertools.pairwise([*earlier, *(mark for mark in marks if since < mark.at <= until)]))
    usual_s = _usual_step_s(pairs)
    gaps_s = [after.at - before.at - usual_s.get(after.world, min(usual_s.values())) for before, after in pairs if after.at > since]
    if not gaps_s:
        raise ValueError("no step was finished in the window")
    return max(0.0, *gaps_s)


def _usual_step_s(pairs: Sequence[tuple[StepMark, StepMark]]) -> dict[int, float]:
    """The median step by world size, over steps at whose ends it was the same."""
    steps_s: dict[int, list[float]] = {}
    for before, after in pairs:
        if before.world == after.world:
            steps_s.setdefault(after.world, []).append(after.at - before.at)
    return {world: statistics.median(durations) for world, durations in steps_s.items()}
