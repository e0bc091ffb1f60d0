"""All jobs in memory, and the only way to change them: append events.

Appends that arrive while a transaction is being written share the next one. Memory changes only after the database
has: a reader never sees something that a crash could take back. If the database is down, callers get `StorageDown`
and nothing has changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stretto.server.jobs.families import Families
from stretto.server.jobs.run_progress import Point, RunProgress
from stretto.server.jobs.state import Changed, JobRecord, NewEvent, fold
from stretto.server.models import JobState
from stretto.server.spec import clean, scrub
from stretto.server.storage.repository import Batch, EventRow, KeyRow, Storage, Stored

MOST_TEXT = 2000


@dataclass(slots=True)
class Append:
    """One caller's request."""

    job: str | None
    drafts: Sequence[NewEvent]
    expected: int | None
    key: KeyRow | None
    remove: bool
    tenant: str | None
    done: asyncio.Future[JobRecord | None]


@dataclass(slots=True)
class JobStore:
    """All jobs in memory, backed by the database. Use from one event loop only."""

    storage: Storage
    publish: Callable[[Sequence[Stored]], None]
    records: dict[str, JobRecord] = field(default_factory=dict[str, JobRecord])
    live: dict[str, JobRecord] = field(default_factory=dict[str, JobRecord])
    """Jobs that have not ended."""
    progress: dict[str, RunProgress] = field(default_factory=dict[str, RunProgress])
    families: Families = field(default_factory=Families)
    buffered: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    """Points that are not in the database yet."""
    now: Callable[[], float] = time.time
    _pending: list[Append] = field(default_factory=list[Append])
    _writer: asyncio.Task[None] | None = None

    def load(self) -> None:
        for document, progress in self.storage.jobs():
            record = JobRecord.read(document)
            self._keep(record)
            self.progress[record.id] = RunProgress.read(progress)
        for record in sorted(self.records.values(), key=lambda record: record.ended_at or 0.0):
            self.families.ended(record, self.progress[record.id])

    def _keep(self, record: JobRecord) -> None:
        self.records[record.id] = record
        if record.state.ended:
            self.live.pop(record.id, None)
        else:
            self.live[record.id] = record

    async def append(
        self, job: str, drafts: Sequence[NewEvent], *, expected: int | None = None, key: KeyRow | None = None
    ) -> JobRecord:
        """The record after these events. `Conflict` if the job's state does not allow them, `Changed` if its version is
        not the expected one, `StorageDown` if they could not be written."""
        record = await self._queue(job, drafts, expected=expected, key=key)
        assert record is not None
        return record

    async def note(self, draft: NewEvent, *, tenant: str | None = None) -> None:
        """Appends an event of no job. Without a tenant, all tenants see it."""
        await self._queue(None, [draft], tenant=tenant)

    async def remove(self, job: str, *, expected: int | None = None) -> None:
        """Removes an ended job; its events stay."""
        await self._queue(job, [NewEvent("removed", "removed")], expected=expected, remove=True)

    async def flush(self, jobs: Sequence[str]) -> None:
        """Writes the progress of these jobs, and their points."""
        batch = Batch()
        collected = self._collect(jobs, batch)
        if not batch.progress:
            return
        try:
            await asyncio.to_thread(self.storage.write, batch)
        except BaseException:
            for job, points in collected.items():
                self.buffered[job] = points + self.buffered.get(job, [])
            raise

    def _collect(self, jobs: Sequence[str], batch: Batch) -> dict[str, list[Point]]:
        collected: dict[str, list[Point]] = {}
        for job in jobs:
            if job in self.records:
                batch.progress[job] = self.progress[job].document()
                collected[job] = self.buffered.pop(job, [])
                batch.points.extend((job, point) for point in collected[job])
        return collected

    async def _queue(
        self,
        job: str | None,
        drafts: Sequence[NewEvent],
        *,
        expected: int | None = None,
        key: KeyRow | None = None,
        remove: bool = False,
        tenant: str | None = None,
    ) -> JobRecord | None:
        done: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self._pending.append(Append(job, drafts, expected, key, remove, tenant, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await asyncio.shield(done)

    async def _write(self) -> None:
        while self._pending:
            appends = self._pending
            self._pending = []
            # A key can be used by one append of a transaction only: the database says no to the second, and to all.
            while appends:
                part, appends = _up_to_key(appends)
                await self._write_some(part)

    async def _write_some(self, appends: list[Append]) -> None:
        batch = Batch()
        after: dict[str, JobRecord | None] = {}
        accepted: list[Append] = []
        for append in appends:
            try:
                self._fold(append, batch, after)
                accepted.append(append)
            except Exception as error:  # the caller's: it goes to them, not to the others of this transaction
                append.done.set_exception(error)
        if not accepted:
            return
        collected = self._collect([job for job in after if job in self.records and after[job] is not None], batch)
        try:
            stored = await asyncio.to_thread(self.storage.write, batch)
        except Exception as error:
            for job, points in collected.items():
                self.buffered[job] = points + self.buffered.get(job, [])
            for append in accepted:
                append.done.set_exception(error)
            return
        self._adopt(after)
        self.publish(stored)
        for append in accepted:
            if not append.done.done():
                append.done.set_result(after.get(append.job) if append.job else None)

    def _fold(self, append: Append, batch: Batch, after: dict[str, JobRecord | None]) -> None:
        t = self.now()
        record = after.get(append.job, self.records.get(append.job)) if append.job else None
        if append.expected is not None and record is not None and record.version != append.expected:
            raise Changed(f"job '{record.name}' is at version {record.version}, not {append.expected}: read it again")
        rows: list[EventRow] = []
        result = record
        for draft in append.drafts:
            secrets = result.spec.secrets() if result is not None else ()
            data = clean(draft.data, secrets) if secrets else draft.data
            if append.job and not append.remove:
                result = fold(result, draft.kind, data, t)
            text = scrub(draft.text, secrets)[:MOST_TEXT]
            tenant = result.tenant if result is not None else append.tenant
            rows.append({"job": append.job, "tenant": tenant, "t": t, "kind": draft.kind, "text": text, "data": data})
        batch.events.extend(rows)
        if append.job and append.remove:
            after[append.job] = None
            batch.removed.append(append.job)
            batch.jobs.pop(append.job, None)
        elif append.job and result is not None:
            after[append.job] = result
            progress = self.progress.get(append.job) or RunProgress()
            batch.jobs[append.job] = job_row(result, progress)
        if append.key is not None:
            batch.key = append.key

    def _adopt(self, after: dict[str, JobRecord | None]) -> None:
        for job, record in after.items():
            if record is None:
                self.records.pop(job, None)
                self.live.pop(job, None)
                self.progress.pop(job, None)
                self.buffered.pop(job, None)
            else:
                before = self.records.get(job)
                self._keep(record)
                progress = self.progress.setdefault(job, RunProgress())
                if record.state.ended and (before is None or not before.state.ended):
                    self.families.ended(record, progress)

    def with_state(self, *states: JobState) -> list[JobRecord]:
        """Jobs in these states, which must not include ended ones: there may be thousands, and this is called all the time."""
        return [record for record in self.live.values() if record.state in states]


def job_row(record: JobRecord, progress: RunProgress) -> dict[str, object]:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "name": record.name,
        "state": str(record.state),
        "version": record.version,
        "submitted_at": record.submitted_at,
        "ended_at": record.ended_at,
        "document": record.document(),
        "known": progress.document(),
    }


def _up_to_key(appends: list[Append]) -> tuple[list[Append], list[Append]]:
    """The longest prefix with at most one key in it."""
    keys = 0
    for place, append in enumerate(appends):
        keys += append.key is not None
        if keys > 1:
            return appends[:place], appends[place:]
    return appends, []
