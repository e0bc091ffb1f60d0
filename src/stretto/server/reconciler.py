"""Keeps jobs, decisions and the cluster in step with each other.

Three loops: what the cluster shows becomes events; decisions are made at intervals and at once when something has
changed; what is known of running jobs is written down now and then. Each loop survives its own errors: they become
alarms, never an end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from stretto.clusters.base import Assignment, Cluster, ClusterEvent, EventKind, RunRef, Stop
from stretto.core.errors import StrettoError
from stretto.server.api.sse import EventBroadcaster
from stretto.server.decisions.slot_handover import Claim, admit
from stretto.server.decisions.snapshot import SCHEDULED, limits
from stretto.server.jobs import journal_events
from stretto.server.jobs.command import loader_environment, work_of
from stretto.server.jobs.exit_classification import ending
from stretto.server.jobs.job_store import JobStore
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import Conflict, JobRecord, NewEvent
from stretto.server.models import ACTIVE, JobState
from stretto.server.observability import Alarms, PrometheusMetrics
from stretto.server.settings import ServerSettings
from stretto.server.storage.repository import StorageDown

log = logging.getLogger("stretto.server")

KEEP_S = 0.5
FLUSH_TURNS = 2
"""A job's progress is written this many turns of `KEEP_S` after it has changed,"""
MANY = 16
MANY_TURNS = 10
"""and with many jobs, a part of them in each turn: one large write would delay every request."""
AT_ONCE = 16
"""Events that are handled before waiting requests get their turn."""
AGAIN_S = 1.0
TRIES = 5


class Written(Enum):
    """Outcomes of events."""

    DONE = 1
    OWED = 2
    LATE = 3


@dataclass(slots=True)
class Reconciler:
    """Drives the cluster to what the jobs' records say should run, and turns what the cluster shows into events.

    An event is never lost: while the database is down it is owed, and is written before anything else of its job.
    """

    settings: ServerSettings
    book: JobStore
    hub: EventBroadcaster
    cluster: Cluster
    alarms: Alarms = field(default_factory=Alarms)
    measures: PrometheusMetrics = field(default_factory=PrometheusMetrics)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    triggers: list[str] = field(default_factory=list[str])
    pending: dict[str, str] = field(default_factory=dict[str, str])
    """Jobs whose processes the cluster has not placed yet, and its reasons."""
    _granted: dict[str, int] = field(default_factory=dict[str, int])
    _begun: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    _lingering: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Jobs whose records have ended but whose processes still exist: (life, workers)."""
    _owed: dict[str, list[NewEvent]] = field(default_factory=dict[str, list[NewEvent]])
    """Events that could not be written: they come before everything else of their job."""
    _starting: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    _dirty: dict[str, None] = field(default_factory=dict[str, None])
    """Jobs with progress that is not in the database yet, the longest waiting first."""
    _limits: dict[str, tuple[int, int, str]] = field(default_factory=dict[str, tuple[int, int, str]])

    def trigger(self, why: str) -> None:
        """Asks for a decision now."""
        if len(self.triggers) < 100:
            self.triggers.append(why)
        self.wake.set()

    def adopt(self) -> None:
        """Takes over after a start: jobs with active records may be running already."""
        for record in self.book.with_state(*ACTIVE):
            self._granted[record.id] = max(record.workers, record.wanted)
            self._begun.add((record.id, record.life))

    # -- what should run -----------------------------------------------------------------------------------------

    def assignments(self) -> list[Assignment]:
        """Everything that should run now. Jobs that wait for slots which others are about to leave are not in it yet."""
        records = self.book.with_state(*ACTIVE)
        claims = [self._claim(record) for record in records]
        claims += [Claim(job, have, 0, 1, True) for job, (_, have) in self._lingering.items()]
        grants = admit(claims, slots=sum(node.slots for node in self.cluster.nodes()))
        wanted: list[Assignment] = []
        for record in records:
            granted = grants[record.id]
            # An attempt that is to be stopped before it began is listed too: only the cluster can say that it is over.
            if granted or (record.id, record.life) in self._begun or record.state not in SCHEDULED:
                self._granted[record.id] = granted
                self._begun.add((record.id, record.life))
                wanted.append(self._assignment(record, granted))
        return wanted

    def _claim(self, record: JobRecord) -> Claim:
        begun = (record.id, record.life) in self._begun
        have = max(record.workers, self._granted.get(record.id, 0)) if begun else 0
        leaving = record.state in (JobState.PAUSING, JobState.CANCELLING)
        return Claim(record.id, have, have if leaving else record.wanted, record.spec.elastic.min, begun, record.submitted_at)

    def _assignment(self, record: JobRecord, granted: int) -> Assignment:
        stop = {JobState.PAUSING: Stop.GRACEFUL, JobState.CANCELLING: Stop.NOW}.get(record.state)
        progress = self.book.progress[record.id]
        return Assignment(
            job=record.id,
            attempt=record.life,
            workload=work_of(record.spec),
            min_workers=record.spec.elastic.min,
            max_workers=record.spec.elastic.max,
            nodes=_cut(record.nodes, granted),
            run=record.run,
            resume=record.resume,
            env={**record.spec.envs, **loader_environment(record.spec.elastic)},
            workdir=record.spec.workdir,
            restarts=record.spec.restarts,
            journal_offset=progress.offset if progress.run == record.run else 0,
            stop=stop,
        )

    async def apply(self) -> None:
        await self.cluster.apply(self.assignments())

    # -- what does run -------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        async for events in self.cluster.watch():
            await self.handle(events)

    async def handle(self, events: Sequence[ClusterEvent]) -> None:
        """Turns what the cluster shows into events of jobs. A database that is down loses none: they are owed."""
        changed = False
        for place, event in enumerate(events):
            if place % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            record = self.book.records.get(event.job)
            if event.kind is EventKind.NODES:
                await self._nodes_changed(event.text)
            elif not event.job:
                await self.alarm("cluster", event.text)
            elif event.kind is EventKind.GONE and self._lingering.get(event.job, (0, 0))[0] == event.attempt:
                del self._lingering[event.job]
                changed = True
            elif record is not None and record.life == event.attempt and record.state in ACTIVE:
                changed |= await self._handle_event(record, event)
        if changed:
            await self.apply()

    async def _nodes_changed(self, text: str) -> None:
        """Asks for a decision: jobs on nodes that are gone move or wait, and free slots are given away."""
        await self.clear("cluster")
        names = [node.name for node in self.cluster.nodes()]
        await self._note(NewEvent("node", text or "the nodes have changed", {"nodes": names}))
        self.hub.allocated()
        self.trigger("nodes changed")

    async def _handle_event(self, record: JobRecord, event: ClusterEvent) -> bool:
        """True if it may have made room, or changed what should run."""
        progress = self.book.progress[record.id]
        match event.kind:
            case EventKind.STARTED | EventKind.ADOPTED:
                progress.renew(life=record.life, run=record.run)
                self.pending.pop(record.id, None)
                await self._write(record, _begun(record, event))
                return False
            case EventKind.LINES:
                return await self._lines(record, progress, event)
            case EventKind.GONE:
                return await self._gone(record, progress, event)
            case EventKind.PENDING:
                if self.pending.get(record.id) != event.text:
                    self.pending[record.id] = event.text
                    await self._write(record, [NewEvent("worker", f"waits for the cluster: {event.text}", {"what": "pending"})])
                return False
            case _:
                if self.alarms.up(f"job {record.id}", event.text, now=time.time()):
                    await self._write(record, [NewEvent("worker", event.text, {"what": "trouble"})])
                return False

    async def _lines(self, record: JobRecord, progress: RunProgress, event: ClusterEvent) -> bool:
        progress.renew(life=record.life, run=record.run)
        reading = journal_events.read(record, progress, event.lines)
        progress.offset = event.offset
        self.book.buffered.setdefault(record.id, []).extend(reading.points)
        self._dirty[record.id] = None
        self.hub.progressed(record.id, reading.points)
        for pause in reading.pauses_s:
            self.measures.pause.observe(pause)
        if reading.lost:
            self.measures.lost.inc(reading.lost)
        if reading.drafts:
            await self._write(record, reading.drafts)
        self._watch_limits(record, progress)
        if progress.stalled:
            await self.alarm(f"stalled {record.id}", f"job '{record.name}' is stalled: {progress.stalled}")
        else:
            await self.clear(f"stalled {record.id}")
        if reading.model:
            self.trigger(f"a model of {record.name}")
        return any(draft.kind in ("ready", "resized") for draft in reading.drafts)

    def _watch_limits(self, record: JobRecord, progress: RunProgress) -> None:
        if record.spec.elastic.plan or record.spec.elastic.autoscale is not None:
            now = limits(record, progress)
            if self._limits.get(record.id, now) != now:
                self.trigger(f"the limits of {record.name}")
            self._limits[record.id] = now

    async def _gone(self, record: JobRecord, progress: RunProgress, event: ClusterEvent) -> bool:
        resumable = await self.cluster.resumable(RunRef(record.id, record.life, record.run))
        for _ in range(TRIES):
            draft = ending(record, progress, event, resumable=resumable)
            if await self._write(record, [draft]) is not Written.LATE:
                break
            # Somebody cancelled or paused it in this very moment: what its end means is decided again.
            record = self.book.records[record.id]
        self._granted.pop(record.id, None)
        self.pending.pop(record.id, None)
        self.alarms.down(f"job {record.id}")
        await self.clear(f"stalled {record.id}")
        self.trigger(f"{record.name} is gone")
        return True

    async def _write(self, record: JobRecord, drafts: Sequence[NewEvent]) -> Written:
        """Appends; if the database is down, the events are owed, and come before everything else of this job later."""
        owed = [*self._owed.pop(record.id, []), *drafts]
        try:
            after = await self.book.append(record.id, owed)
            self._observe(record, after)
            return Written.DONE
        except StorageDown as error:
            self._owed[record.id] = owed
            await self.alarm("database", str(error))
            return Written.OWED
        except Conflict as error:
            log.info("an event of %s came too late: %s", record.id, error)
            return Written.LATE

    def _observe(self, before: JobRecord, after: JobRecord) -> None:
        if after.restarts > before.restarts:
            self.measures.restarts.inc()
        if before.started_at is None and after.started_at is not None:
            self.measures.wait.observe(max(0.0, after.started_at - after.submitted_at))

    # -- now and then --------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Writes the progress of jobs, and ends what takes too long."""
        turn = 0
        while True:
            await asyncio.sleep(KEEP_S)
            turn += 1
            await self._repay()
            if len(self._dirty) > MANY or turn % FLUSH_TURNS == 0:
                await self._flush(max(MANY, -(-len(self._dirty) // MANY_TURNS)))
            await self._overdue()

    async def _flush(self, most: int) -> None:
        jobs = list(islice(self._dirty, most))
        for job in jobs:
            del self._dirty[job]
        try:
            await self.book.flush([job for job in jobs if job not in self._owed])
        except StorageDown as error:
            self._dirty = {**dict.fromkeys(jobs), **self._dirty}
            await self.alarm("database", str(error))

    async def _repay(self) -> None:
        for job in list(self._owed):
            record = self.book.records.get(job)
            if record is None:
                del self._owed[job]
            elif await self._write(record, []) is not Written.OWED:
                await self.clear("database")
                self.trigger("the database is back")
                await self.apply()

    async def _overdue(self) -> None:
        """Jobs that never become ready, and jobs that have cost what they may."""
        now = time.monotonic()
        current: dict[tuple[str, int], float] = {}
        for record in self.book.with_state(JobState.STARTING, JobState.RUNNING):
            key = (record.id, record.life)
            if record.state is JobState.STARTING and key in self._begun:
                current[key] = self._starting.get(key, now)
                if now - current[key] > record.spec.ready_timeout_s:
                    await self.fail(record, f"no step was committed within ready_timeout_s={record.spec.ready_timeout_s:g}")
            limit = record.spec.price_limit
            if limit is not None and self.cost(record) >= limit and record.state is JobState.RUNNING:
                text = f"has cost {self.cost(record):.2f}, price_limit={limit:g}: paused; raise the limit and resume it"
                await self._write(record, [NewEvent("pausing", text, {"by": "price"})])
                await self.apply()
        self._starting = current

    async def fail(self, record: JobRecord, error: str) -> None:
        """Ends a job that still has processes: they are stopped, and hold their slots until they are gone."""
        draft = NewEvent("failed", f"failed: {error}", {"error": error, "class": "not ready"})
        if await self._write(record, [draft]) is Written.DONE:
            self._lingering[record.id] = (record.life, max(record.workers, self._granted.pop(record.id, 0)))
            self.trigger(f"{record.name} failed")
            await self.apply()

    def cost(self, record: JobRecord) -> float:
        nodes = {node.name: node.price for node in self.cluster.nodes()}
        price = max((nodes.get(name, 0.0) for name in record.nodes or nodes), default=0.0)
        return self.book.progress[record.id].worker_seconds / 3600.0 * price

    # -- alarms --------------------------------------------------------------------------------------------------

    async def alarm(self, name: str, text: str) -> None:
        if self.alarms.up(name, text, now=time.time()):
            log.warning("%s: %s", name, text)
            await self._note(NewEvent("alarm", f"{name}: {text}", {"name": name}))

    async def clear(self, name: str) -> None:
        if self.alarms.down(name):
            await self._note(NewEvent("cleared", f"{name}: all is well again", {"name": name}))

    async def _note(self, draft: NewEvent) -> None:
        try:
            await self.book.note(draft)
        except StrettoError as error:
            log.warning("not written: %s (%s)", draft.text, error)

    async def supervise(self, name: str, loop: Callable[[], Awaitable[object]]) -> None:
        """Runs a loop for ever. An error in it is an alarm, and the loop is started again."""
        while True:
            try:
                await loop()
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.exception("the loop '%s' had an error", name)
                await self.alarm(name, f"{type(error).__name__}: {error}")
                await asyncio.sleep(AGAIN_S)


def _begun(record: JobRecord, event: ClusterEvent) -> list[NewEvent]:
    if event.kind is EventKind.ADOPTED:
        drafts = [NewEvent("adopted", "found again: it was running while the server was not", {"life": record.life})]
    else:
        drafts = [NewEvent("started", f"its processes are started (life {record.life})", {"life": record.life})]
    if not work_of(record.spec).elastic and record.state is JobState.STARTING:
        drafts.append(NewEvent("ready", "runs as a plain command", {"workers": 1, "step": 0}))
    return drafts


def _cut(nodes: dict[str, int], granted: int) -> dict[str, int]:
    """The first `granted` workers of a placement."""
    left: dict[str, int] = {}
    for name, count in nodes.items():
        taken = min(count, granted)
        if taken > 0:
            left[name] = taken
            granted -= taken
    return left
