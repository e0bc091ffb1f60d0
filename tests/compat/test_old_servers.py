"""A server goes on with the database and the jobs of an older version."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator

import pytest
from stored_files import GUARD_S, VERSIONS, Server, Stored, copied

SAMPLES, STEPS = 64 * 12, 4 * 12


@pytest.fixture(scope="module", params=VERSIONS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return copied(request.param, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def server(files: Stored) -> Iterator[Server]:
    server = Server(files)
    yield server
    server.stop()


def test_jobs_are_listed_with_their_ends(files: Stored, server: Server) -> None:
    jobs = {job["name"]: (job["id"], job["state"]) for job in server.get("/jobs")["items"]}
    assert jobs == {name: (number, state(name)) for name, number in files.expected["jobs"].items()}
    resumed = server.get(f"/jobs/{files.expected['jobs']['resumed']}")
    assert (resumed["progress"]["step"], resumed["progress"]["fraction"]) == (STEPS, 1.0)
    assert resumed["samples_lost"] == 0


def state(name: str) -> str:
    return {"resumed": "finished"}.get(name, name)


def test_events_tell_of_the_pause_the_kill_and_the_resumes(files: Stored, server: Server) -> None:
    number = files.expected["jobs"]["resumed"]
    kinds = [event["kind"] for event in server.get(f"/jobs/{number}/events")["items"]]
    assert [kind for kind in kinds if kind not in ("resized", "allocated")] == [
        "submitted", "started", "ready", "pausing", "paused", "resumed", "started", "ready",
        "restarting", "started", "ready", "finished",
    ]  # fmt: skip
    first = server.get("/events")["items"][0]
    assert first["text"] == f"stretto {files.version} has started"
    assert "submitted as 'resumed'" in files.output("events", number)
    assert "48 of 48" in files.output("show", number)


def test_curves_have_every_step_once(files: Stored, server: Server) -> None:
    curve = server.get(f"/jobs/{files.expected['jobs']['resumed']}/metrics")
    assert curve["step"] == list(range(STEPS))
    sizes = server.get(f"/jobs/{files.expected['jobs']['resumed']}/sizes")["items"]
    assert {"ready", "join", "paused", "restarting"} <= {size["cause"] for size in sizes}


def test_decisions_tokens_and_logs_are_there(files: Stored, server: Server) -> None:
    started = {change["name"] for decision in server.get("/decisions")["items"] for change in decision["changes"]}
    assert started == set(files.expected["jobs"])
    assert {(token["name"], token["scope"]) for token in server.get("/tokens")["items"]} == {
        ("first", "admin"),
        ("reader", "viewer"),
    }
    assert files.expected["digest"] in server.get(f"/jobs/{files.expected['jobs']['resumed']}/logs")["text"]


@pytest.fixture(scope="module")
def continued(files: Stored, server: Server, same_bits: None) -> str:
    """The job that the older version paused, after this one has finished it."""
    number = files.expected["jobs"]["paused"]
    files.output("resume", number, "--server", server.url)
    deadline = time.monotonic() + GUARD_S
    while (job := server.get(f"/jobs/{number}"))["state"] not in ("finished", "failed", "cancelled", "paused"):
        assert time.monotonic() < deadline, job
        time.sleep(0.2)
    assert job["state"] == "finished", job
    return number


def test_a_paused_job_goes_on_to_the_digest_of_an_uninterrupted_run(files: Stored, continued: str) -> None:
    result = json.loads((files.folder / "home" / "runs" / continued / "result.json").read_text())
    assert result["digest"] == files.expected["digest"]


def test_a_resumed_job_has_all_of_its_samples(files: Stored, server: Server, continued: str) -> None:
    """In the database, from where learned lengths of jobs come. Stops the server, so that everything is written."""
    server.stop()
    with contextlib.closing(sqlite3.connect(files.folder / "home" / "server.db")) as database:
        ((progress,),) = database.execute("select known from jobs where id = ?", (continued,)).fetchall()
    assert json.loads(progress)["samples"] == SAMPLES
