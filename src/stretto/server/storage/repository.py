"""Reading and writing the database. Synchronous; callers put it on a thread.

All writes of one moment go into one transaction (`write`), so that an event, the state that follows from it and how
far the journal was read are in the database together or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from stretto.core.errors import StrettoError
from stretto.core.schema import Json, JsonObject
from stretto.server.jobs.run_progress import Point
from stretto.server.storage import tables
from stretto.server.storage.database import first_line

T = TypeVar("T")

MOST_POINTS = 6000
"""A curve longer than this is thinned: the newest points and the first stay, older ones are spread evenly over the rest."""
FRESH_POINTS = 2000
RETRY_FOR_S = 8.0


class StorageDown(StrettoError):
    """The database could not be used: locked, full or gone. Nothing was written."""


class EventRow(TypedDict):
    """An event as it is written; the database numbers it."""

    job: str | None
    tenant: str | None
    t: float
    kind: str
    text: str
    data: Mapping[str, object]


class KeyRow(TypedDict):
    """An idempotency key, and the job that was submitted with it."""

    tenant: str
    key: str
    digest: str
    """Of the request's body."""
    job: str
    t: float


@dataclass(frozen=True, slots=True)
class Stored:
    """An event with its number."""

    id: int
    job: str | None
    tenant: str | None
    t: float
    kind: str
    text: str
    data: Mapping[str, Any]


@dataclass(slots=True)
class Batch:
    """The writes of one transaction."""

    events: list[EventRow] = field(default_factory=list[EventRow])
    jobs: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])
    progress: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])
    points: list[tuple[str, Point]] = field(default_factory=list[tuple[str, Point]])
    key: KeyRow | None = None
    removed: list[str] = field(default_factory=list[str])


class Storage:
    """One database. Thread-safe: every call takes its own connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._counts: dict[str, int] = {}

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> list[Stored]:
        """Writes all of it or nothing. Retries for a while if the database is locked, then raises `StorageDown`."""
        return self.transact(lambda connection: self._write(connection, batch))

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction of its own, again for a while if the database is locked."""
        until = time.monotonic() + RETRY_FOR_S
        delay = 0.05
        while True:
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except (exc.OperationalError, exc.InterfaceError, exc.InternalError) as error:
                if time.monotonic() + delay > until:
                    raise StorageDown(f"the database cannot be written: {first_line(error)}") from error
                time.sleep(delay)
                delay = min(1.0, delay * 2)

    def _write(self, connection: Connection, batch: Batch) -> list[Stored]:
        stored = [self._event(connection, row) for row in batch.events]
        for row in batch.jobs.values():
            connection.execute(self._upsert(tables.jobs, row, ["id"]))
        if batch.progress:
            update = sa.update(tables.jobs).where(tables.jobs.c.id == sa.bindparam("the_id"))
            rows = [{"the_id": job, "known": progress} for job, progress in batch.progress.items()]
            connection.execute(update.values(known=sa.bindparam("known")), rows)
        if batch.key is not None:
            connection.execute(sa.insert(tables.keys).values(**batch.key))
        self._points(connection, batch.points)
        for job in batch.removed:
            connection.execute(sa.delete(tables.points).where(tables.points.c.job == job))
            connection.execute(sa.delete(tables.jobs).where(tables.jobs.c.id == job))
            self._counts.pop(job, None)
        return stored

    def _event(self, connection: Connection, row: EventRow) -> Stored:
        number = connection.execute(sa.insert(tables.events).values(**row)).inserted_primary_key
        assert number is not None
        return Stored(id=int(number[0]), **row)

    def _points(self, connection: Connection, points: Sequence[tuple[str, Point]]) -> None:
        if not points:
            return
        merged = {(job, point.step): (job, point) for job, point in points}
        rows = [
            {"job": job, "step": point.step, "t": point.t, "workers": point.workers, "values": point.values}
            for job, point in merged.values()
        ]
        insert = self._insert(tables.points)
        columns = {name: insert.excluded[name] for name in ("t", "workers", "values")}
        connection.execute(insert.on_conflict_do_update(index_elements=["job", "step"], set_=columns), rows)
        for job in {job for job, _ in merged}:
            self._thin(connection, job, added=sum(1 for owner, _ in merged if owner == job))

    def _thin(self, connection: Connection, job: str, *, added: int) -> None:
        points = tables.points
        if job not in self._counts:
            query = sa.select(sa.func.count()).select_from(points).where(points.c.job == job)
            self._counts[job] = int(connection.execute(query).scalar_one()) - added
        self._counts[job] += added
        if self._counts[job] <= MOST_POINTS:
            return
        query = sa.select(points.c.step).where(points.c.job == job).order_by(points.c.step)
        steps = list(connection.execute(query).scalars())
        gone = sorted(set(steps) - set(kept(steps, fresh=FRESH_POINTS, most=(MOST_POINTS + FRESH_POINTS) // 2)))
        for begin in range(0, len(gone), 500):
            connection.execute(sa.delete(points).where(points.c.job == job, points.c.step.in_(gone[begin : begin + 500])))
        self._counts[job] = len(steps) - len(gone)

    def _insert(self, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
        return (postgresql if self.engine.dialect.name == "postgresql" else sqlite).insert(table)

    def _upsert(self, table: sa.Table, row: Mapping[str, object], keys: list[str]) -> sa.Insert:
        insert = self._insert(table).values(**row)
        rest = {name: insert.excluded[name] for name in row if name not in keys}
        return insert.on_conflict_do_update(index_elements=keys, set_=rest)

    # -- reading -------------------------------------------------------------------------------------------------

    def jobs(self) -> list[tuple[JsonObject, JsonObject]]:
        """(document, known) of every job."""
        with self.engine.connect() as connection:
            query = sa.select(tables.jobs.c.document, tables.jobs.c.known).order_by(tables.jobs.c.submitted_at)
            return [(row.document, row.known) for row in connection.execute(query)]

    def last_event(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.max(tables.events.c.id))).scalar() or 0)

    def events(self, *, after: int = 0, limit: int = 100, job: str | None = None, tenant: str | None = None) -> list[Stored]:
        """Events with a number above `after`, oldest first. A tenant sees its own and those of the cluster."""
        column = tables.events.c
        query = sa.select(tables.events).where(column.id > after).order_by(column.id).limit(limit)
        if job is not None:
            query = query.where(column.job == job)
        if tenant is not None:
            query = query.where(sa.or_(column.tenant == tenant, column.tenant.is_(None)))
        with self.engine.connect() as connection:
            return [Stored(**row) for row in connection.execute(query).mappings()]

    def resizes(self, job: str, *, limit: int = 5000) -> list[Stored]:
        column = tables.events.c
        kinds = ("ready", "resized", "paused", "restarting", "finished", "failed", "cancelled")
        query = sa.select(tables.events).where(column.job == job, column.kind.in_(kinds)).order_by(column.id.desc())
        with self.engine.connect() as connection:
            return [Stored(**row) for row in connection.execute(query.limit(limit)).mappings()][::-1]

    def points(self, job: str, *, after: int = -1) -> list[Point]:
        column = tables.points.c
        query = sa.select(column.step, column.t, column.workers, column["values"])
        query = query.where(column.job == job, column.step > after).order_by(column.step).limit(2 * MOST_POINTS)
        with self.engine.connect() as connection:
            return [Point(*row) for row in connection.execute(query)]

    def key(self, tenant: str, key: str) -> tuple[str, str] | None:
        """(digest of the body, job) that this idempotency key was used for."""
        column = tables.keys.c
        with self.engine.connect() as connection:
            row = connection.execute(sa.select(column.digest, column.job).where(column.tenant == tenant, column.key == key)).first()
        return (row.digest, row.job) if row else None

    def forget_keys(self, *, before: float) -> None:
        self.transact(lambda connection: connection.execute(sa.delete(tables.keys).where(tables.keys.c.t < before)))

    # -- settings ------------------------------------------------------------------------------------------------

    def setting(self, key: str) -> Json:
        with self.engine.connect() as connection:
            return connection.execute(sa.select(tables.settings.c.value).where(tables.settings.c.key == key)).scalar()

    def set(self, key: str, value: object) -> None:
        row = {"key": key, "value": value}
        self.transact(lambda connection: connection.execute(self._upsert(tables.settings, row, ["key"])))

    def alive(self) -> bool:
        try:
            with self.engine.connect() as connection:
                connection.execute(sa.text("select 1"))
            return True
        except exc.SQLAlchemyError:
            return False


def kept(steps: Sequence[int], *, fresh: int, most: int) -> list[int]:
    """Which points of a curve stay: the last `fresh`, and before them the ones nearest to an even grid, `most` in all."""
    old, new = steps[: len(steps) - fresh], steps[len(steps) - fresh :]
    count = most - fresh
    if len(old) <= count:
        return list(steps)
    chosen: list[int] = []
    place = 0
    for number in range(count):
        target = old[0] + (old[-1] - old[0]) * number / max(1, count - 1)
        while place + 1 < len(old) and abs(old[place + 1] - target) <= abs(old[place] - target):
            place += 1
        chosen.append(old[place])
    return [*dict.fromkeys(chosen), *new]
