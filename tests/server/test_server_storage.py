"""The same storage on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from stretto.clusters.attempt import JournalTail
from stretto.core.errors import UsageError
from stretto.core.journal import JournalReport
from stretto.server.api import views
from stretto.server.api.sse import dump
from stretto.server.jobs import journal_events
from stretto.server.jobs.job_store import JobStore
from stretto.server.jobs.run_progress import Point, RunProgress
from stretto.server.jobs.state import Changed, Conflict, JobRecord, NewEvent, fold
from stretto.server.models import JobState, Scope, TokenRequest
from stretto.server.storage import repository, tables, tokens
from stretto.server.storage.database import Lock, connect, migrate
from stretto.server.storage.decision_log import DecisionLog
from stretto.server.storage.repository import Batch, Storage, StorageDown, Stored
from stretto.server.storage.tokens import TokenStore

SPEC = {"name": "digits", "run": ["python", "train.py"], "elastic": {"min": 1, "max": 4}}


@pytest.fixture
def storage(database: str):
    engine = connect(database)
    migrate(engine)
    yield Storage(engine)
    engine.dispose()


def submitted(job: str = "j-aaaaaaaaaaaa", tenant: str = "default") -> NewEvent:
    return NewEvent("submitted", "submitted", {"id": job, "tenant": tenant, "spec": SPEC})


def life(workers: int = 2) -> list[NewEvent]:
    """The events of a job from queue to running."""
    nodes = {"node0": workers}
    return [
        submitted(),
        NewEvent("allocated", "", {"nodes": nodes, "run": "r"}),
        NewEvent("ready", "", {"workers": workers}),
        NewEvent("resized", "", {"workers": 3, "pause_ms": 4.0}),
    ]


def test_migrations_make_the_tables_that_the_code_uses(storage: Storage) -> None:
    with storage.engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), tables.metadata)
    assert [one for one in differences if one[0] not in ("remove_table",)] == []


def test_migrating_twice_changes_nothing(storage: Storage) -> None:
    asyncio.run(JobStore(storage, publish=lambda stored: None).append("j-aaaaaaaaaaaa", life()))
    before = contents(storage)
    assert any(before.values())
    migrate(storage.engine)
    assert contents(storage) == before


def contents(storage: Storage) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, the migrations' own included."""
    with storage.engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        return {
            name: sorted((tuple(row) for row in connection.execute(sa.text(f'select * from "{name}"'))), key=repr) for name in names
        }


def test_a_job_is_after_a_restart_what_its_events_made_it(storage: Storage) -> None:
    async def write() -> None:
        book = JobStore(storage, publish=lambda stored: None)
        await book.append("j-aaaaaaaaaaaa", life())

    asyncio.run(write())
    again = JobStore(storage, publish=lambda stored: None)
    again.load()
    record: JobRecord | None = None
    for event in storage.events(job="j-aaaaaaaaaaaa", limit=100):
        record = fold(record, event.kind, event.data, event.t)
    assert again.records["j-aaaaaaaaaaaa"] == record
    assert record is not None
    assert (record.state, record.workers, record.resizes, record.version) == (JobState.RUNNING, 3, 1, 4)


def test_an_event_that_makes_no_sense_is_refused_and_nothing_of_its_append_is_written(storage: Storage) -> None:
    async def write() -> None:
        book = JobStore(storage, publish=lambda stored: None)
        await book.append("j-aaaaaaaaaaaa", [submitted()])
        with pytest.raises(Conflict, match="queued"):
            await book.append("j-aaaaaaaaaaaa", [NewEvent("resumed", ""), NewEvent("cancelled", "")])
        assert book.records["j-aaaaaaaaaaaa"].state is JobState.QUEUED

    asyncio.run(write())
    assert [event.kind for event in storage.events()] == ["submitted"]


def test_of_two_changes_of_one_version_the_second_is_refused(storage: Storage) -> None:
    async def write() -> list[object]:
        book = JobStore(storage, publish=lambda stored: None)
        await book.append("j-aaaaaaaaaaaa", [submitted()])
        wish = NewEvent("wished", "", {"workers": 2, "pin": False})
        both = [book.append("j-aaaaaaaaaaaa", [wish], expected=1) for _ in range(2)]
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = asyncio.run(write())
    assert isinstance(first, JobRecord)
    assert isinstance(second, Changed)


def test_many_appends_at_once_get_numbers_without_a_gap_and_in_order(storage: Storage) -> None:
    published: list[int] = []

    async def write() -> None:
        book = JobStore(storage, publish=lambda stored: published.extend(one.id for one in stored))
        names = [f"j-{letter}aaaaaaaaaaa" for letter in "abcdefghijklmnop"]
        await asyncio.gather(*(book.append(name, [submitted(name)]) for name in names))

    asyncio.run(write())
    assert published == sorted(published)
    assert len(set(published)) == 16
    assert [event.id for event in storage.events(limit=100)] == published


def test_a_used_key_is_refused_by_the_database_itself(storage: Storage) -> None:
    async def write() -> None:
        book = JobStore(storage, publish=lambda stored: None)
        key = {"tenant": "default", "key": "k", "digest": "d", "job": "j-aaaaaaaaaaaa", "t": 1.0}
        await book.append("j-aaaaaaaaaaaa", [submitted()], key=key)
        with pytest.raises(sa.exc.IntegrityError):
            await book.append("j-baaaaaaaaaaa", [submitted("j-baaaaaaaaaaa")], key=key)
        assert "j-baaaaaaaaaaa" not in book.records

    asyncio.run(write())
    assert storage.key("default", "k") == ("d", "j-aaaaaaaaaaaa")
    storage.forget_keys(before=2.0)
    assert storage.key("default", "k") is None


def test_a_long_curve_is_thinned_and_keeps_its_ends_and_its_newest_part(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MOST_POINTS", 400)
    monkeypatch.setattr(repository, "FRESH_POINTS", 100)
    for begin in range(0, 3000, 50):
        points = [("j-aaaaaaaaaaaa", Point(step, float(step), 1, {"loss": float(step)})) for step in range(begin, begin + 50)]
        storage.write(Batch(points=points))
    steps = [point.step for point in storage.points("j-aaaaaaaaaaaa")]
    assert len(steps) <= 450
    assert steps[0] == 0
    assert steps[-100:] == list(range(2900, 3000))
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert max(gaps) <= 64, "a curve that is thinned must not have a hole"


def test_a_step_that_was_computed_again_replaces_its_point(storage: Storage) -> None:
    for loss in (1.0, 2.0):
        storage.write(Batch(points=[("j-aaaaaaaaaaaa", Point(7, 1.0, 1, {"loss": loss}))]))
    assert [point.values for point in storage.points("j-aaaaaaaaaaaa")] == [{"loss": 2.0}]


def test_tenants_see_their_own_events_and_those_of_the_cluster(storage: Storage) -> None:
    async def write() -> None:
        book = JobStore(storage, publish=lambda stored: None)
        await book.append("j-aaaaaaaaaaaa", [submitted(tenant="one")])
        await book.append("j-baaaaaaaaaaa", [submitted("j-baaaaaaaaaaa", tenant="two")])
        await book.note(NewEvent("node", "node0 is cordoned"))

    asyncio.run(write())
    assert [event.tenant for event in storage.events(tenant="one")] == ["one", None]
    assert len(storage.events()) == 3


def test_a_second_server_on_one_database_is_refused(database: str, tmp_path: Path) -> None:
    engine = connect(database)
    migrate(engine)
    first = Lock(engine, home=tmp_path)
    other = connect(database)
    with pytest.raises(UsageError, match="another server"):
        Lock(other, home=tmp_path)
    first.release()
    Lock(other, home=tmp_path).release()
    engine.dispose()
    other.dispose()


def test_the_picture_of_slots_has_a_bar_for_every_holding(storage: Storage) -> None:
    ledger = DecisionLog(storage)
    row = {"trigger": "test", "policy": "fifo", "seconds": 0.1, "kept": 0, "alarm": None, "changes": []}
    ledger.decide({**row, "t": 10.0}, holdings={("a", "node0"): ("default", "one", 2)})
    ledger.decide({**row, "t": 20.0}, holdings={("a", "node0"): ("default", "one", 3)})
    ledger.draw({}, t=30.0)
    bars = [(bar["slots"], bar["start"], bar["end"]) for bar in DecisionLog(storage).bars(since=0, until=100)]
    assert bars == [(2, 10.0, 20.0), (3, 20.0, 30.0)]
    assert [row["id"] for row in ledger.decisions(before=None, limit=10)] == [2, 1]


def test_tokens_that_no_longer_work_make_room_for_new_ones(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_TOKENS", 3)
    store = TokenStore(storage)
    kept, revoked, expiring = (
        store.create(TokenRequest(name=name, scope=Scope.VIEWER, expires_s=seconds), now=100.0)
        for name, seconds in (("kept", None), ("revoked", None), ("expiring", 5.0))
    )
    with pytest.raises(ValueError, match="revoke some first"):
        store.create(TokenRequest(name="more", scope=Scope.VIEWER), now=101.0)
    assert store.revoke(revoked.id, now=102.0)
    assert store.create(TokenRequest(name="more", scope=Scope.VIEWER), now=103.0), "one was revoked, as it was told"
    assert store.create(TokenRequest(name="still", scope=Scope.VIEWER), now=200.0), "another has expired"
    for found in (store, TokenStore(storage)):
        assert {one.name for one in found.items()} == {"kept", "more", "still"}
        assert found.check(kept.secret, now=200.0) is not None
        assert found.check(revoked.secret, now=200.0) is None
        assert found.check(expiring.secret, now=200.0) is None


def test_only_the_hash_of_a_token_is_in_the_database(storage: Storage) -> None:
    store = TokenStore(storage)
    made = store.create(TokenRequest(name="ci", scope="viewer", expires_s=100), now=1000.0)  # type: ignore[arg-type]
    with storage.engine.connect() as connection:
        row = connection.execute(sa.select(tables.tokens)).one()
    secret = made.secret.split("_", 2)[2]
    assert secret not in str(row)
    again = TokenStore(storage)
    assert again.check(made.secret, now=1001.0) is not None
    assert again.check(made.secret, now=1101.0) is None, "expired"
    assert again.check(made.secret[:-1] + ("a" if made.secret[-1] != "a" else "b"), now=1001.0) is None
    assert again.revoke(made.id, now=1002.0)
    assert again.check(made.secret, now=1003.0) is None
    assert TokenStore(storage).check(made.secret, now=1003.0) is None, "revoked for good"


def test_a_database_that_is_locked_for_a_moment_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "RETRY_FOR_S", 60.0)
    engine = connect(f"sqlite:///{tmp_path / 'server.db'}")
    migrate(engine)
    other = connect(f"sqlite:///{tmp_path / 'server.db'}")
    holder = other.connect()
    holder.exec_driver_sql("begin immediate")
    freed = threading.Timer(0.5, holder.rollback)
    freed.start()

    async def write() -> None:
        book = JobStore(Storage(engine), publish=lambda stored: None)
        await book.append("j-aaaaaaaaaaaa", [submitted()])

    asyncio.run(write())
    freed.join()
    holder.close()
    assert len(Storage(engine).events()) == 1


def test_a_database_that_stays_locked_is_said_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "RETRY_FOR_S", 0.2)
    path = tmp_path / "server.db"
    migrate(connect(f"sqlite:///{path}"))
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.05})
    holder = connect(f"sqlite:///{path}").connect()
    holder.exec_driver_sql("begin immediate")

    async def write() -> None:
        book = JobStore(Storage(engine), publish=lambda stored: None)
        with pytest.raises(StorageDown, match="locked"):
            await book.append("j-aaaaaaaaaaaa", [submitted()])
        assert book.records == {}
        holder.rollback()
        await book.append("j-aaaaaaaaaaaa", [submitted()])
        assert len(book.records) == 1

    asyncio.run(write())
    holder.close()


@pytest.mark.parametrize("url", ["not a url", "mysql://x/y"])
def test_a_database_url_that_cannot_work_is_refused_with_the_fix(url: str) -> None:
    with pytest.raises(UsageError, match=r"sqlite:///file\.db or postgresql://"):
        connect(url)


def test_numbers_that_are_none_in_what_a_job_reports_keep_nobody_from_being_written(storage: Storage) -> None:
    """PostgreSQL refuses NaN in JSON, and with it the whole transaction: that of all jobs."""
    endless = float("inf")
    nasty = {"goodput": float("nan"), "model": {"throughput": {"a": endless}, "parts": [-endless, 1.0]}, "utilisation": 0.5}

    async def write() -> None:
        book = JobStore(storage, publish=lambda stored: None)
        names = ("j-aaaaaaaaaaaa", "j-baaaaaaaaaaa")
        for name in names:
            await book.append(name, [submitted(name)])
        report = JournalReport(step=0, metrics=nasty, of="job", t=1.0)
        journal_events.read(book.records[names[0]], book.progress[names[0]], [report])
        book.progress[names[1]].step = 7
        await book.flush(names)

    asyncio.run(write())
    found = [RunProgress.read(known) for _, known in storage.jobs()]
    assert [one.step for one in found] == [0, 7]
    assert found[0].report == {"goodput": None, "model": {"throughput": {"a": None}, "parts": [None, 1.0]}, "utilisation": 0.5}


def test_an_error_with_letters_that_no_database_takes_is_written_down_and_shown(storage: Storage, tmp_path: Path) -> None:
    """As a script's exception has it that quotes what it could not read: NUL, and half of a surrogate pair."""
    nasty = "bad \x00 and \ud800 in \U0001f600"
    path = tmp_path / "journal.jsonl"
    lines = [
        {"kind": "event", "t": 1.0, "what": "died", "worker": "w0", "text": nasty},
        {"kind": "report", "t": 1.0, "step": 0, "metrics": {nasty: 1.0, "loss": float("nan")}},
        {"kind": "end", "t": 2.0, "state": "failed", "error": nasty},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raw = json.dumps({"kind": "event", "t": 1.0, "what": "died", "text": "raw \ud800"}, ensure_ascii=False)
    with path.open("ab") as file:
        file.write(raw.encode("utf-8", "surrogatepass") + b"\n")
    published: list[Stored] = []

    async def write() -> RunProgress:
        book = JobStore(storage, publish=published.extend)
        await book.append("j-aaaaaaaaaaaa", [submitted(), NewEvent("allocated", "", {"nodes": {"n": 1}, "run": "r"})])
        record, known = book.records["j-aaaaaaaaaaaa"], book.progress["j-aaaaaaaaaaaa"]
        reading = journal_events.read(record, known, JournalTail(path).read())
        assert len(reading.drafts) == 2
        book.buffered[record.id] = reading.points
        await book.append(record.id, [*reading.drafts, NewEvent("failed", str((known.end or {})["error"]), {"error": "e"})])
        await book.flush([record.id])
        return known

    known = asyncio.run(write())
    shown = "bad \ufffd and \ufffd in \U0001f600"
    assert known.end is not None
    assert known.end["error"] == shown
    assert published[-1].text == storage.events()[-1].text == shown
    assert all(dump(views.event(one)).encode() for one in published), "the stream can carry it"
    with pytest.raises((UnicodeError, sa.exc.DataError)):
        asyncio.run(JobStore(storage, publish=published.extend).note(NewEvent("server", "raw \ud800", {})))
