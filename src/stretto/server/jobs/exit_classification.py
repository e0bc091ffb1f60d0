"""How a life that is over has ended, and what follows: pure."""

from __future__ import annotations

from stretto.clusters.base import ClusterEvent
from stretto.core.text import quantity
from stretto.server.jobs.command import note, work_of
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import JobRecord, NewEvent
from stretto.server.models import JobState

MOST_TAIL = 600


def ending(record: JobRecord, progress: RunProgress, event: ClusterEvent, *, resumable: bool) -> NewEvent:
    """The event that a vanished life becomes.

    What the run itself has written counts most; then the exit code; a job whose processes were lost (killed, or nobody saw their
    end) is started again while its budget lasts.
    """
    end = progress.end or {}
    state, code = end.get("state"), event.code
    if state == "finished" or (code == 0 and not work_of(record.spec).elastic):
        steps = end.get("steps")
        text = f"finished after {quantity(steps, 'step')}" if isinstance(steps, int) else "finished"
        if steps is None and (hint := note(record.spec, state=JobState.FINISHED, steps=progress.step)):
            text += f"; {hint}"
        return NewEvent("finished", text, {"digest": end.get("digest"), "steps": steps})
    if record.state is JobState.CANCELLING:
        return NewEvent("cancelled", "cancelled")
    if record.state is JobState.PAUSING:
        where = "from its last checkpoint" if resumable else "from its beginning: it has no checkpoint"
        return NewEvent("paused", f"its workers are gone; it will go on {where}", {"by": record.paused_by})
    if state == "stopped":
        return NewEvent("cancelled", "was stopped by hand, not through this server")
    if state == "failed" or (code is not None and code > 0) or code == 0:
        return _failed(event, end.get("error"))
    return _lost(record, code, resumable)


def _failed(event: ClusterEvent, error: object) -> NewEvent:
    if error:
        text = str(error)
    elif event.code == 0:
        text = "ended without a result: did the script call stretto.join and train?"
    else:
        text = f"ended with exit code {event.code}{_tail(event.text)}"
    kind = "not started" if event.code in (126, 127) else "script"
    return NewEvent("failed", f"failed: {text}", {"error": text[:4000], "class": kind, "code": event.code})


def _lost(record: JobRecord, code: int | None, resumable: bool) -> NewEvent:
    how = "nobody saw them end" if code is None else f"killed by signal {-code}"
    if record.restarts >= record.spec.restarts:
        text = f"its processes were lost ({how}) {quantity(record.restarts + 1, 'time')}, restarts={record.spec.restarts} allowed"
        return NewEvent("failed", f"failed: {text}", {"error": text, "class": "lost", "code": code})
    run = record.run if resumable else next_run(record)
    where = "its last checkpoint" if resumable else "the beginning"
    text = f"its processes were lost ({how}): started again from {where}"
    return NewEvent("restarting", text, {"run": run, "code": code})


def next_run(record: JobRecord) -> str:
    """The folder of a life that begins from nothing."""
    return record.id if record.life == 0 else f"{record.id}-{record.life + 1}"


def _tail(text: str) -> str:
    words = text.strip()[-MOST_TAIL:]
    return f": {words}" if words else ""
