"""TensorBoard event files, with tensorboard's own writer and without torch; nothing where it is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class TensorBoardWriter:
    """Metrics, throughput, workers and pauses by step. A disk that fails ends the board, never the run."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer: Any = EventFileWriter(str(folder))

    def record(self, document: dict[str, Any]) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in _scalars(document)]
        if not values or self._writer is None:
            return
        event = self._event(wall_time=document["t"], step=int(document["step"]), summary=self._summary(value=values))
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


def _scalars(document: dict[str, Any]) -> Iterator[tuple[str, float]]:
    match document["kind"]:
        case "commit":
            yield from _numbers("train", document.get("metrics"))
            yield "stretto/workers", float(document["workers"])
            if document.get("step_s"):
                yield "stretto/steps_per_s", 1.0 / float(document["step_s"])
                yield "stretto/samples_per_s", float(document["count"]) / float(document["step_s"])
        case "eval":
            yield from _numbers(str(document["loader"]), document.get("metrics"))
        case "report":
            yield from _numbers("report", document.get("metrics"))
        case "switch":
            if document["pause_ms"] is not None:
                yield "stretto/pause_ms", float(document["pause_ms"])
        case _:
            pass


def _numbers(prefix: str, metrics: dict[str, Any] | None) -> Iterator[tuple[str, float]]:
    for name, value in (metrics or {}).items():
        if isinstance(value, int | float):
            yield f"{prefix}/{name}", float(value)
