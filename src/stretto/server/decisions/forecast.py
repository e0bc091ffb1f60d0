"""When a job is expected to start and to finish, and whose end it waits for: pure.

Both are what today's speeds and sizes say. A job that has never trained and whose length nobody knows has no expected finish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stretto.server.jobs.known import Known
from stretto.server.jobs.state import Record
from stretto.server.models import JobState


@dataclass(frozen=True, slots=True)
class Forecast:
    start: float | None = None
    finish: float | None = None
    after: tuple[str, ...] = ()
    """Ids of the jobs whose ends make room; empty if nobody has to end."""


def forecast(
    record: Record,
    known: Known,
    *,
    held: Sequence[Record],
    knowns: Mapping[str, Known],
    least: int,
    slots: int,
    now: float,
    resizes: bool,
) -> Forecast:
    """`held` are the others that have slots; `resizes` is whether the policy makes them smaller for somebody who waits."""
    if record.state.ended:
        return Forecast(record.started_at, record.ended_at)
    remaining = known.remaining_s(steps=record.spec.steps)
    if record.state is JobState.RUNNING:
        return Forecast(record.started_at, None if remaining is None else now + remaining)
    if record.state is not JobState.QUEUED or least > slots:
        return Forecast(record.started_at)
    start, after = _start(held, knowns, least, slots, now, resizes=resizes)
    return Forecast(start, None if start is None or remaining is None else start + remaining, after)


def _start(
    held: Sequence[Record], knowns: Mapping[str, Known], least: int, slots: int, now: float, *, resizes: bool
) -> tuple[float | None, tuple[str, ...]]:
    """When enough slots are free: at the next decision, or when enough of the others have finished."""
    free = slots - sum(other.wanted for other in held)
    spare = sum(max(0, other.wanted - other.spec.elastic.min) for other in held) if resizes else 0
    if free + spare >= least:
        return now, ()
    ends = sorted(
        (left, other.id, other.wanted)
        for other in held
        if (left := knowns[other.id].remaining_s(steps=other.spec.steps)) is not None
    )
    after: list[str] = []
    for left, job, workers in ends:
        free += workers
        after.append(job)
        if free >= least:
            return now + left, tuple(after)
    return None, ()
