"""A batch plan that was written down: read from a journal's commits, looked up by step.

A commit says which batch its step really had, so a run can be repeated even where its `plan` lines are gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto.core.errors import UsageError
from stretto.core.journal import Commit, Record, lives


@dataclass(frozen=True, slots=True)
class BatchLine:
    """From `step` on, steps of the loader have this batch, each slice computed in `parts` parts."""

    step: int
    loader: int
    batch: int
    parts: int


class Replay:
    """The lines of a plan, by loader."""

    def __init__(self, lines: Iterable[BatchLine]) -> None:
        self._lines: dict[int, list[BatchLine]] = {}
        for line in sorted(lines, key=lambda line: line.step):
            self._lines.setdefault(line.loader, []).append(line)

    def at(self, step: int, *, loader: int) -> BatchLine | None:
        """The line in effect; the last one goes on after the plan's end. None for a loader that it does not know."""
        lines = self._lines.get(loader, [])
        place = bisect_right(lines, step, key=lambda line: line.step)
        return lines[max(place - 1, 0)] if lines else None

    @staticmethod
    def read(document: Iterable[Sequence[int]]) -> Replay:
        return Replay(BatchLine(*map(int, entry)) for entry in document)


def plan_of(records: Iterable[Record]) -> list[list[int]]:
    """The plan of a run from its journal, as JSON. Raises `UsageError` where it has none."""
    lines: list[BatchLine] = []
    last: dict[int, BatchLine] = {}
    for record in lives(records):
        if not isinstance(record, Commit):
            continue
        line = BatchLine(record.step, record.loader, record.batch, record.parts)
        before = last.get(line.loader)
        if before is None or (before.batch, before.parts) != (line.batch, line.parts):
            last[line.loader] = line
            lines.append(line)
    if not lines:
        raise UsageError("the run to be replayed has no committed step in its journal: there is no batch plan to repeat")
    return [[line.step, line.loader, line.batch, line.parts] for line in lines]
