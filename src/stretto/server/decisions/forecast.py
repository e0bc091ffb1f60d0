"""When a job is expected to start and to finish, and whose end it waits for: pure.

Both are what today's speeds and sizes say, with those who wait taking their turns by priority and arrival. A job that has never
trained is taken to last as long as others of its family did; where nobody knows how long somebody in the way will take, there is no
expected start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from stretto.server.jobs.state import Record
from stretto.server.models import JobState


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected start and end of a job, in seconds since the epoch. None where it cannot be known."""

    start: float | None = None
    finish: float | None = None
    after: tuple[str, ...] = ()
    """Ids of the jobs whose ends make room; empty if nobody has to end."""


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """What a forecast goes by."""

    slots: int
    now: float
    resizes: bool
    """Whether the policy makes jobs smaller for somebody who waits."""
    least: Callable[[Record], int]
    """The fewest workers that a job runs with."""
    lasts: Callable[[Record], float | None]
    """The seconds that a job still has to train, where that can be known."""


def forecast(record: Record, *, held: Sequence[Record], ahead: Sequence[Record], asked: ForecastRequest) -> Forecast:
    """`held` are the others that have slots, `ahead` those that wait and come before this one, in order."""
    if record.state.ended:
        return Forecast(record.started_at, record.ended_at)
    lasts = asked.lasts(record)
    if record.state is JobState.RUNNING:
        return Forecast(record.started_at, None if lasts is None else asked.now + lasts)
    if record.state is not JobState.QUEUED or asked.least(record) > asked.slots:
        return Forecast(record.started_at)
    start, after = _start([*ahead, record], held, asked)
    return Forecast(start, None if start is None or lasts is None else start + lasts, after)


def before(record: Record, others: Sequence[Record]) -> list[Record]:
    """Those who wait and come before this one: higher priority first, then who came first."""

    def turn(one: Record) -> tuple[int, float, str]:
        return -one.spec.priority, one.submitted_at, one.id

    return sorted((one for one in others if one.state is JobState.QUEUED and turn(one) < turn(record)), key=turn)


def _start(queue: Sequence[Record], held: Sequence[Record], asked: ForecastRequest) -> tuple[float | None, tuple[str, ...]]:
    """When the last of the queue gets its fewest workers: each as soon as there is room, in order; ends make room."""
    kept = {one.id: min(one.wanted, asked.least(one)) if asked.resizes else one.wanted for one in held}
    room = asked.slots - sum(kept.values())
    ends = [(left, one.id) for one in held if (left := asked.lasts(one)) is not None]
    heapify(ends)
    passed, after = 0.0, list[str]()
    for one in queue:
        least = asked.least(one)
        if least > asked.slots:
            continue
        while room < least:
            if not ends:
                return None, ()
            passed, job = heappop(ends)
            room += kept[job]
            after.append(job)
        room -= least
        kept[one.id] = least
        if (lasts := asked.lasts(one)) is not None:
            heappush(ends, (passed + lasts, one.id))
    return asked.now + passed, tuple(after)
