"""When a job is expected to start and to finish, and which jobs' ends it waits for: pure.

Both follow from the present speeds and sizes; waiting jobs start by priority and arrival. A job that has never
trained is taken to last as long as others of its family did; if the length of a job before it is unknown, there is no
expected start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from stretto.server.jobs.state import JobRecord
from stretto.server.models import JobState


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected start and end of a job, in seconds since the epoch. None where it cannot be known."""

    start: float | None = None
    finish: float | None = None
    after: tuple[str, ...] = ()
    """Ids of the jobs that have to end first."""


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """What a forecast is computed from."""

    slots: int
    now: float
    resizes: bool
    """Whether the policy shrinks running jobs for waiting ones."""
    least: Callable[[JobRecord], int]
    """The fewest workers that a job runs with."""
    lasts: Callable[[JobRecord], float | None]
    """Seconds that a job still has to train; None if unknown."""


def forecast(record: JobRecord, *, held: Sequence[JobRecord], ahead: Sequence[JobRecord], request: ForecastRequest) -> Forecast:
    """`held` are the other jobs with slots, `ahead` the waiting jobs before this one, in order."""
    if record.state.ended:
        return Forecast(record.started_at, record.ended_at)
    lasts = request.lasts(record)
    if record.state is JobState.RUNNING:
        return Forecast(record.started_at, None if lasts is None else request.now + lasts)
    if record.state is not JobState.QUEUED or request.least(record) > request.slots:
        return Forecast(record.started_at)
    start, after = _start([*ahead, record], held, request)
    return Forecast(start, None if start is None or lasts is None else start + lasts, after)


def before(record: JobRecord, others: Sequence[JobRecord]) -> list[JobRecord]:
    """The waiting jobs before this one: higher priority first, then by arrival."""

    def turn(job: JobRecord) -> tuple[int, float, str]:
        return -job.spec.priority, job.submitted_at, job.id

    return sorted((job for job in others if job.state is JobState.QUEUED and turn(job) < turn(record)), key=turn)


def _start(queue: Sequence[JobRecord], held: Sequence[JobRecord], request: ForecastRequest) -> tuple[float | None, tuple[str, ...]]:
    """When the last job of the queue gets its minimum: jobs start in order, each as soon as ended jobs have freed enough slots."""
    kept = {job.id: min(job.wanted, request.least(job)) if request.resizes else job.wanted for job in held}
    room = request.slots - sum(kept.values())
    ends = [(left, job.id) for job in held if (left := request.lasts(job)) is not None]
    heapify(ends)
    passed, after = 0.0, list[str]()
    for job in queue:
        least = request.least(job)
        if least > request.slots:
            continue
        while room < least:
            if not ends:
                return None, ()
            passed, ended = heappop(ends)
            room += kept[ended]
            after.append(ended)
        room -= least
        kept[job.id] = least
        if (lasts := request.lasts(job)) is not None:
            heappush(ends, (passed + lasts, job.id))
    return request.now + passed, tuple(after)
