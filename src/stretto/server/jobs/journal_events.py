"""From the lines of a run's journal to events: what happened inside a job, in sentences. Pure, except for `progress`, which
it fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.core.journal import Commit, End, JournalEvent, JournalReport, Resume, Switch
from stretto.core.journal import Record as JournalRecord
from stretto.core.schema import Json, JsonObject
from stretto.core.text import quantity
from stretto.server.jobs.run_progress import Point, RunProgress, finite, whole
from stretto.server.jobs.state import JobRecord, NewEvent
from stretto.server.models import JobState

FEWEST_POINTS, MOST_POINTS = 8, 512
POINTS_PER_S = 32.0
"""Points that one read may add to a job's curves, for each second that its lines cover, between the two bounds.

More are downsampled evenly; the first and the last stay. A read after a long absence covers minutes and brings their curve; one
of many per second brings a few points."""
MOST_EVENTS = 50
FORWARDED = frozenset(
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
"""Agents' events that become events of the server; the rest stays in the journal."""


@dataclass(slots=True)
class Reading:
    """The results of reading some lines."""

    drafts: list[NewEvent] = field(default_factory=list[NewEvent])
    points: list[Point] = field(default_factory=list[Point])
    model: bool = False
    """The job has reported a model that the policy should see."""
    pauses_s: list[float] = field(default_factory=list[float])
    lost: int = 0


def read(record: JobRecord, progress: RunProgress, lines: Sequence[JournalRecord]) -> Reading:
    """Folds the lines into `progress`."""
    reading = Reading()
    state, workers, lost = record.state, record.workers, progress.lost
    for line in lines:
        if isinstance(line, Switch | Commit) and state is JobState.STARTING:
            state, workers = JobState.RUNNING, _workers(line)
            reading.drafts.append(_ready(line, workers))
        match line:
            case Switch() if _workers(line) != workers and state is JobState.RUNNING:
                reading.drafts.append(_resized(line, workers))
                workers = _workers(line)
                reading.pauses_s.append((finite(line.pause_ms) or 0.0) / 1000.0)
            case Commit():
                _add(reading, progress.commit(line))
                progress.stalled = ""
            case JournalReport():
                before = progress.report.get("model")
                _add(reading, progress.reported(line))
                reading.model |= model_changed(before, progress.report.get("model"))
            case Resume():
                progress.rewind(line)
            case End():
                progress.end, progress.stalled = _end(line), ""
            case JournalEvent():
                _event(reading, progress, line)
            case _:
                pass
    reading.points = _spread(reading.points)
    reading.lost = progress.lost - lost
    return reading


def _event(reading: Reading, progress: RunProgress, line: JournalEvent) -> None:
    if line.what in FORWARDED and len(reading.drafts) < MOST_EVENTS:
        reading.drafts.append(_forwarded(line))
    if line.what in ("stalled", "unstalled"):
        progress.stalled = line.text[:1000] if line.what == "stalled" else ""
    if line.what == "unreplaced" and progress.workers:
        progress.refused_above = progress.workers


def model_changed(before: Json, after: Json) -> bool:
    """Whether a policy should see a model at once: the first one, or one whose speeds changed by a tenth."""
    if not isinstance(after, dict):
        return False
    if not isinstance(before, dict):
        return True
    old, new = before.get("throughput"), after.get("throughput")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return True
    pairs = [(finite(old.get(name)), finite(value)) for name, value in new.items()]
    return any(a is None or b is None or abs(a - b) > 0.1 * max(abs(a), abs(b), 1e-3) for a, b in pairs)


def _workers(line: Switch | Commit) -> int:
    return line.workers if 0 <= line.workers < 1 << 20 else 0


def _ready(line: Switch | Commit, workers: int) -> NewEvent:
    return NewEvent("ready", f"trains on {quantity(workers, 'worker')}", {"workers": workers, "step": whole(line.step) or 0})


def _resized(line: Switch, before: int) -> NewEvent:
    workers, step, cause, pause = _workers(line), whole(line.step) or 0, line.cause[:40], finite(line.pause_ms)
    words = f", {pause:.0f} ms pause" if pause is not None else ""
    text = f"{before} → {quantity(workers, 'worker')} at step {step}{words} ({cause})"
    return NewEvent("resized", text, {"workers": workers, "before": before, "step": step, "cause": cause, "pause_ms": pause})


def _end(line: End) -> JsonObject:
    return {
        "state": line.state[:40],
        "digest": line.digest[:128] if line.digest is not None else None,
        "steps": whole(line.steps),
        "error": line.error[:4000] if line.error else None,
    }


def _forwarded(line: JournalEvent) -> NewEvent:
    who = (line.worker or "")[:40]
    sentence = line.text[:1000] or f"worker {who} {line.what}".replace("  ", " ")
    return NewEvent("worker", sentence, {"what": line.what, "worker": who})


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
