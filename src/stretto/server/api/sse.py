"""Server-sent events: many readers, one encoding.

Changes are gathered and handed out together every `TICK_S`: fifty dashboards cost one encoding and fifty writes, and
a burst of events wakes each of them once. Events carry their number as `id:`; a reader that comes back with
`Last-Event-ID` gets everything since, from memory or from the database.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from stretto.core.errors import StrettoError
from stretto.server.jobs.run_progress import Point
from stretto.server.storage.repository import Stored

TICK_S = 0.2
PROGRESS_S = 1.0
"""A job whose progress alone has changed is sent at most this often."""
FEW = 16
"""This many are sent in any tick."""
KEEPALIVE_S = 10.0
"""Silence of a stream after which a comment is sent: a client that receives nothing for longer has lost the connection."""
HERE = b": here\n\n"
MOST_FRAMES = 1000
MOST_SENT = 10_000
"""Jobs for which the time of the last progress message is kept."""
MOST_STREAMS = 256
MOST_RECENT = 1_000
"""Events in memory for readers who come back. Older ones are in the database."""
MOST_RESUMED = 2_000
"""Missed events that one reader gets when it comes back: with more it is cheaper to load everything again."""


class TooMany(StrettoError):
    """The maximum number of streams is open."""


@dataclass(slots=True, eq=False)
class Reader:
    """One open stream."""

    tenant: str | None
    """None for an administrator, who sees all tenants."""
    job: str | None
    frames: deque[bytes] = field(default_factory=deque[bytes])
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    handed_at: float = 0.0
    slow: bool = False


def frame(event: str, data: str, *, number: int | None = None) -> bytes:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def dump(value: object) -> str:
    return _ENCODER.encode(value)


@dataclass(slots=True)
class EventBroadcaster:
    """Gathers messages, encodes them once per tenant with open streams, and hands them out."""

    summary: Callable[[str, str | None], str | None]
    """(job, tenant) → the line of the list of jobs as JSON, or None if this tenant must not see it."""
    allocation: Callable[[str | None], str]
    event: Callable[[Stored], str]
    last: int = 0
    readers: set[Reader] = field(default_factory=set[Reader])
    _events: list[Stored] = field(default_factory=list[Stored])
    _recent: deque[Stored] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    _jobs: set[str] = field(default_factory=set[str])
    _progressed: set[str] = field(default_factory=set[str])
    _sent: dict[str, float] = field(default_factory=dict[str, float])
    _points: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    _allocated: bool = False

    def publish(self, stored: Sequence[Stored]) -> None:
        """Events that are in the database now."""
        self._events.extend(stored)
        self._recent.extend(stored)
        for event in stored:
            self.last = max(self.last, event.id)
            if event.job is not None:
                self._jobs.add(event.job)

    def progressed(self, job: str, points: Sequence[Point]) -> None:
        self._progressed.add(job)
        if points and any(reader.job == job for reader in self.readers):
            self._points.setdefault(job, []).extend(points)

    def allocated(self) -> None:
        self._allocated = True

    def reader(self, *, tenant: str | None, job: str | None) -> Reader:
        if len(self.readers) >= MOST_STREAMS:
            raise TooMany(f"{len(self.readers)} streams are open, at most {MOST_STREAMS}: close some, or poll instead")
        reader = Reader(tenant, job, handed_at=asyncio.get_running_loop().time())
        self.readers.add(reader)
        return reader

    def since(self, number: int) -> list[Stored] | None:
        """Events above this number that are still in memory; None if some of them are not."""
        if number >= self.last:
            return []
        if not self._recent or self._recent[0].id > number + 1:
            return None
        return [event for event in self._recent if event.id > number]

    async def run(self) -> None:
        """Hands out messages until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            self.tick(now=loop.time())

    def tick(self, *, now: float) -> None:
        events, self._events = self._events, []
        jobs, self._jobs = self._jobs, set()
        jobs |= self._due(now)
        self._progressed -= jobs
        self._sent.update(dict.fromkeys(jobs, now))
        if len(self._sent) > MOST_SENT:
            self._sent.clear()
        points, self._points = self._points, {}
        allocated, self._allocated = self._allocated, False
        if events or jobs or points or allocated:
            self._hand_out(events, jobs, points, allocated, now)
        for reader in self.readers:
            if now - reader.handed_at >= KEEPALIVE_S:
                self._hand(reader, [HERE], now)

    def _hand_out(
        self, events: Sequence[Stored], jobs: set[str], points: dict[str, list[Point]], allocated: bool, now: float
    ) -> None:
        by_tenant: dict[str | None, list[bytes]] = {}
        for reader in list(self.readers):
            if reader.tenant not in by_tenant:
                by_tenant[reader.tenant] = self._frames(reader.tenant, events, jobs, allocated)
            frames = by_tenant[reader.tenant]
            if reader.job is not None and reader.job in points:
                frames = [*frames, frame("points", dump(columns(reader.job, points[reader.job])))]
            self._hand(reader, frames, now)

    def _due(self, now: float) -> set[str]:
        """Jobs whose progress is to be sent now: those who wait longest, a part of them in each tick, so that none is a burst."""
        waiting = sorted((at, job) for job in self._progressed if now - (at := self._sent.get(job, 0.0)) >= PROGRESS_S)
        return {job for _, job in waiting[: max(FEW, int(len(self._progressed) * TICK_S / PROGRESS_S) + 1)]}

    def _frames(self, tenant: str | None, events: Sequence[Stored], jobs: set[str], allocated: bool) -> list[bytes]:
        frames = [frame("event", self.event(event), number=event.id) for event in events if visible(event, tenant)]
        lines = [line for job in jobs if (line := self.summary(job, tenant)) is not None]
        if lines:
            frames.append(frame("jobs", '{"items":[' + ",".join(lines) + "]}"))
        if allocated:
            frames.append(frame("allocation", self.allocation(tenant)))
        return frames

    def _hand(self, reader: Reader, frames: Sequence[bytes], now: float) -> None:
        if not frames:
            return
        reader.handed_at = now
        if len(reader.frames) + len(frames) > MOST_FRAMES:
            reader.slow = True
            reader.frames.clear()
        else:
            reader.frames.append(b"".join(frames))
        reader.awake.set()

    async def stream(self, reader: Reader, *, opening: Sequence[bytes], stop: asyncio.Event) -> AsyncIterator[bytes]:
        """The messages for one client, until it disconnects, falls behind or the server stops."""
        try:
            for frame in opening:
                yield frame
            while not stop.is_set() and not reader.slow:
                await reader.awake.wait()
                reader.awake.clear()
                if reader.frames:
                    body = b"".join(reader.frames)
                    reader.frames.clear()
                    yield body
        finally:
            self.readers.discard(reader)


def visible(event: Stored, tenant: str | None) -> bool:
    return tenant is None or event.tenant is None or event.tenant == tenant


def columns(job: str, points: Sequence[Point]) -> dict[str, object]:
    """Points as columns, as plotting libraries expect them."""
    names = sorted({name for point in points for name in point.values})
    return {
        "job": job,
        "step": [point.step for point in points],
        "t": [point.t for point in points],
        "workers": [point.workers for point in points],
        "series": {name: [point.values.get(name) for point in points] for name in names},
        "next": points[-1].step if points else None,
    }
