"""TensorBoard event files, with tensorboard's own writer and without torch; nothing where it is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from stretto.core.journal import Commit, Evaluation, JournalReport, KnownRecord, Switch


class TensorBoardWriter:
    """Metrics, throughput, workers and pauses by step. A disk that fails ends the board, never the run."""

    def __init__(self, folder: Path) -> None:
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(str(folder))

    def record(self, line: KnownRecord) -> None:
        if self._writer is None or not isinstance(line, Commit | Evaluation | JournalReport | Switch):
            return
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in _scalars(line)]
        if not values:
            return
        event = self._event(wall_time=line.t, step=line.step, summary=self._summary(value=values))
        try:
            self._writer.add_event(event)
        except Exception:  # its writing thread raises whatever it met, here and later
            self._writer = None

    def close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            except Exception:
                self._writer = None


def open_board(folder: Path) -> TensorBoardWriter | None:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    try:
        return TensorBoardWriter(folder)
    except Exception:  # a tensorboard that does not fit its own dependencies is as good as none
        return None


def _scalars(line: Commit | Evaluation | JournalReport | Switch) -> Iterator[tuple[str, float]]:
    match line:
        case Commit():
            yield from _numbers("train", line.metrics)
            yield "stretto/workers", float(line.workers)
            if line.step_s:
                yield "stretto/steps_per_s", 1.0 / line.step_s
                yield "stretto/samples_per_s", line.count / line.step_s
        case Evaluation():
            yield from _numbers(str(line.loader), line.metrics)
        case JournalReport():
            yield from _numbers("report", line.metrics)
        case Switch():
            if line.pause_ms is not None:
                yield "stretto/pause_ms", line.pause_ms


def _numbers(prefix: str, metrics: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, int | float):
            yield f"{prefix}/{name}", float(value)
