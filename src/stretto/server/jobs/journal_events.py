"""From the lines of a run's journal to events: what happened inside a job, in sentences. Pure, but for `known`, which
it fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.core.text import quantity
from stretto.server.jobs.run_progress import Point, RunProgress, finite
from stretto.server.jobs.state import NewEvent, Record
from stretto.server.models import JobState

FEWEST_POINTS, MOST_POINTS = 8, 512
POINTS_PER_S = 32.0
"""Points that one look may add to a job's curves: so many for each second that its lines cover, between the two bounds.

Of more, evenly spread ones are kept, the first and the last always. A look after a long absence covers minutes and brings their
curve; one of many a second brings a few points."""
MOST_EVENTS = 50
TOLD = frozenset(
    {
        "died",
        "frozen",
        "hung",
        "restarted",
        "warning",
        "refused",
        "straggler",
        "autoscale",
        "stalled",
        "unstalled",
        "stuck",
        "unreplaced",
    }
)
"""What agents tell that is worth an event of the server; the rest stays in the journal."""


@dataclass(slots=True)
class Reading:
    """What a portion of lines has brought."""

    drafts: list[NewEvent] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    model: bool = False
    """The job has reported a model: the policy should hear of it."""
    pauses_s: list[float] = field(default_factory=list)
    lost: int = 0


def read(record: Record, known: RunProgress, lines: Sequence[Mapping[str, Any]]) -> Reading:
    """Folds the lines into `known`."""
    reading = Reading()
    state, workers, lost = record.state, record.workers, known.lost
    for line in lines:
        kind = line["kind"]
        if kind in ("switch", "commit") and state is JobState.STARTING:
            state, workers = JobState.RUNNING, _workers(line)
            reading.drafts.append(_ready(line, workers))
        if kind == "switch" and _workers(line) != workers and state is JobState.RUNNING:
            reading.drafts.append(_resized(line, workers))
            workers = _workers(line)
            reading.pauses_s.append((finite(line.get("pause_ms")) or 0.0) / 1000.0)
        elif kind == "commit":
            _add(reading, known.commit(dict(line)))
            known.stalled = ""
        elif kind == "report":
            before = known.report.get("model")
            _add(reading, known.reported(dict(line)))
            reading.model |= model_changed(before, known.report.get("model"))
        elif kind == "resume":
            known.rewind(dict(line))
        elif kind == "end":
            known.end, known.stalled = _end(line), ""
        elif kind == "event" and str(line.get("what")) in TOLD and len(reading.drafts) < MOST_EVENTS:
            reading.drafts.append(_told(line))
        if kind == "event" and line.get("what") in ("stalled", "unstalled"):
            known.stalled = str(line.get("text") or "")[:1000] if line["what"] == "stalled" else ""
        if kind == "event" and line.get("what") == "unreplaced" and known.workers:
            known.refused_above = known.workers
    reading.points = _spread(reading.points)
    reading.lost = known.lost - lost
    return reading


def model_changed(before: object, after: object) -> bool:
    """Whether a policy should hear of it at once: a first model, or one whose speeds moved by a tenth."""
    if not isinstance(after, dict):
        return False
    if not isinstance(before, dict):
        return True
    old, new = before.get("throughput"), after.get("throughput")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return True
    pairs = [(finite(old.get(name)), finite(value)) for name, value in new.items()]
    return any(a is None or b is None or abs(a - b) > 0.1 * max(abs(a), abs(b), 1e-3) for a, b in pairs)


def _workers(line: Mapping[str, Any]) -> int:
    value = line.get("workers")
    if isinstance(value, list):
        return len(value)
    return int(value) if isinstance(value, int) and 0 <= value < 1 << 20 else 0


def _step(line: Mapping[str, Any]) -> int:
    value = line.get("step")
    return value if isinstance(value, int) else 0


def _ready(line: Mapping[str, Any], workers: int) -> NewEvent:
    return NewEvent("ready", f"trains on {quantity(workers, 'worker')}", {"workers": workers, "step": _step(line)})


def _resized(line: Mapping[str, Any], before: int) -> NewEvent:
    workers, cause, pause = _workers(line), str(line.get("cause", ""))[:40], finite(line.get("pause_ms"))
    words = f", {pause:.0f} ms pause" if pause is not None else ""
    text = f"{before} → {quantity(workers, 'worker')} at step {_step(line)}{words} ({cause})"
    return NewEvent("resized", text, {"workers": workers, "before": before, "step": _step(line), "cause": cause, "pause_ms": pause})


def _end(line: Mapping[str, Any]) -> dict[str, Any]:
    digest, error, steps = line.get("digest"), line.get("error"), line.get("steps")
    return {
        "state": str(line.get("state"))[:40],
        "digest": digest[:128] if isinstance(digest, str) else None,
        "steps": steps if isinstance(steps, int) and not isinstance(steps, bool) and 0 <= steps < 1 << 62 else None,
        "error": str(error)[:4000] if error else None,
    }


def _told(line: Mapping[str, Any]) -> NewEvent:
    what, text = str(line.get("what")), str(line.get("text") or "")[:1000]
    who = str(line.get("worker") or "")[:40]
    sentence = text or f"worker {who} {what}".replace("  ", " ")
    return NewEvent("worker", sentence, {"what": what, "worker": who})


def _add(reading: Reading, point: Point | None) -> None:
    if point is None:
        return
    if reading.points and reading.points[-1].step == point.step:
        last = reading.points.pop()
        point = Point(point.step, point.t, point.workers, {**last.values, **point.values})
    reading.points.append(point)


def _spread(points: list[Point]) -> list[Point]:
    if len(points) <= FEWEST_POINTS:
        return points
    covered_s = max(0.0, points[-1].t - points[0].t)
    most = int(min(MOST_POINTS, max(FEWEST_POINTS, covered_s * POINTS_PER_S)))
    if len(points) <= most:
        return points
    return [points[(len(points) - 1) * place // (most - 1)] for place in range(most)]
