"""Many who look at once: what is written for one is handed to all, and nobody's request waits for work that others could have had
done before."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from stretto.core.journal import Commit, JournalReport, Resume
from stretto.server.api.routes import ROUTERS
from stretto.server.api.sse import HERE, KEEPALIVE_S, MOST_RECENT, EventBroadcaster
from stretto.server.api.views import JobLines
from stretto.server.jobs import journal_events
from stretto.server.jobs.job_store import JobStore
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import JobRecord
from stretto.server.models import JobState, JobSummary, Progress
from stretto.server.serve import listen
from stretto.server.settings import ServerSettings
from stretto.server.spec import JobSpec
from stretto.server.storage.repository import Storage, Stored

SPEC = JobSpec.model_validate({"name": "digits", "run": ["python", "train.py"], "elastic": {"min": 1, "max": 4}})
ONE = "j-aaaaaaaaaaaa"


@pytest.fixture
def book() -> JobStore:
    made = JobStore(cast("Storage", None), publish=lambda stored: None)
    keep(made, JobRecord(ONE, "mine", SPEC, JobState.RUNNING, 100.0, life=1, run="r"))
    return made


def keep(book: JobStore, record: JobRecord) -> None:
    book.records[record.id] = record
    book.progress.setdefault(record.id, RunProgress())


def commit(step: int, loss: float) -> Commit:
    place = {"epoch": 0, "loader": 0, "first": 8 * step, "count": 8, "batch": 8}
    return Commit(step=step, **place, roster=1, workers=1, step_s=0.5, metrics={"loss": loss}, t=1.0 + step)


def test_a_line_is_written_once_until_its_job_has_changed(book: JobStore) -> None:
    reasons = {ONE: "as it asked"}
    lines = JobLines(book, lambda record: reasons[record.id])
    first = lines.of(ONE, None)
    assert first is not None
    assert lines.of(ONE, "mine") is first, "written once, for everybody who may see it"

    def changed() -> dict[str, object]:
        nonlocal first
        after = lines.of(ONE, None)
        assert after is not None
        assert after != first
        assert lines.of(ONE, None) is after
        first = after
        JobSummary.model_validate_json(after)
        return json.loads(after)

    journal_events.read(book.records[ONE], book.progress[ONE], [commit(0, 2.5)])
    assert changed()["spark"] == [2.5]
    own = JournalReport(step=0, metrics={"goodput": 7.0}, of="job", t=9.0)
    journal_events.read(book.records[ONE], book.progress[ONE], [own])
    assert changed()["progress"]["goodput"] == 7.0  # type: ignore[index]
    journal_events.read(book.records[ONE], book.progress[ONE], [JournalReport(step=0, metrics={"loss": 1.25}, t=9.0)])
    assert changed()["progress"]["loss"] == 1.25  # type: ignore[index]
    journal_events.read(book.records[ONE], book.progress[ONE], [Resume.after(0, life=2, path="")])
    assert changed()["progress"]["step"] == 0  # type: ignore[index]
    reasons[ONE] = "makes room"
    assert changed()["reason"] == "makes room"
    keep(book, replace(book.records[ONE], version=2, state=JobState.PAUSING))
    assert changed()["state"] == "pausing"


def test_a_line_is_for_those_who_may_see_its_job(book: JobStore) -> None:
    lines = JobLines(book, lambda record: "")
    assert lines.of(ONE, "mine")
    assert lines.of(ONE, "theirs") is None, "written already, and still not theirs"
    del book.records[ONE]
    assert lines.of(ONE, None) is None, "and gone with its job"


def test_a_line_has_what_the_api_promises(book: JobStore) -> None:
    assert set(book.progress[ONE].summary(steps=None)) == set(Progress.model_fields)


def test_a_silent_stream_says_that_it_is_there() -> None:
    hub = EventBroadcaster(summary=lambda job, tenant: None, allocation=lambda tenant: "{}", event=lambda one: "{}")

    async def listen() -> list[bytes]:
        now = asyncio.get_running_loop().time()
        reader, heard = hub.reader(tenant=None, job=None), []
        body = hub.stream(reader, opening=[b"hello"], stop=asyncio.Event())
        heard.append(await anext(body))
        hub.tick(now=now + KEEPALIVE_S / 2)
        assert not reader.frames, "not before it has been silent for long"
        hub.tick(now=now + KEEPALIVE_S + 1)
        heard.append(await anext(body))
        hub.tick(now=now + KEEPALIVE_S + 2)
        assert not reader.frames, "and not again at once"
        hub.allocated()
        hub.tick(now=now + KEEPALIVE_S + 3)
        heard.append(await anext(body))
        hub.tick(now=now + 2 * KEEPALIVE_S + 2)
        assert not reader.frames, "what is sent counts as well"
        return heard

    assert asyncio.run(listen()) == [b"hello", HERE, b"event: allocation\ndata: {}\n\n"]


def dependencies(one: Dependant) -> list[Dependant]:
    return [found for child in one.dependencies for found in (child, *dependencies(child))]


@pytest.mark.parametrize("router", ROUTERS)
def test_no_request_waits_for_a_thread_before_it_begins(router: APIRouter) -> None:
    """The framework runs plain functions on threads: one for each request, only to say who asks."""
    for route in router.routes:
        assert isinstance(route, APIRoute)
        calls = [route.endpoint, *(one.call for one in dependencies(route.dependant))]
        assert all(inspect.iscoroutinefunction(call) for call in calls), f"{route.path}: {calls}"


def test_answers_are_sent_at_once(tmp_path: Path) -> None:
    """Else every answer on a kept connection waits for the other side's delayed acknowledgement: 40 ms each on Linux."""

    async def prompt(listening: socket.socket) -> bool:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(answer, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            found = await seen
            writer.close()
            return bool(found)

    assert asyncio.run(prompt(listen(ServerSettings(home=tmp_path, port=0))))
    careless = socket.create_server(("127.0.0.1", 0))
    assert not asyncio.run(prompt(careless)), "a control: a socket without a protocol's number is not known to be TCP"


def test_a_reader_who_comes_back_is_told_from_memory_only_what_is_still_there() -> None:
    hub = EventBroadcaster(summary=lambda job, tenant: None, allocation=lambda tenant: "{}", event=lambda one: "{}")
    hub.publish([Stored(number, ONE, "mine", 0.0, "resized", "", {}) for number in range(1, MOST_RECENT + 11)])
    assert [one.id for one in hub.since(MOST_RECENT + 8) or ()] == [MOST_RECENT + 9, MOST_RECENT + 10]
    assert len(hub.since(10) or ()) == MOST_RECENT, "all that is kept"
    assert hub.since(9) is None, "the database has to be asked: memory is bounded"
    assert hub.since(MOST_RECENT + 10) == []
