"""Sharing under the default policy: jobs make room for each other and grow when others leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from server_harness import job, running, until

LONG = {"steps": 100_000, "step_s": 0.1}


def test_a_running_job_makes_room_for_one_that_waits_and_grows_when_it_leaves(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2, policy="goodput") as server, server.client() as client:
        first = client.submit(job("first", most=2, **LONG)).id
        until(lambda: client.job(first).workers == 2, what="alone, it has everything", timeout_s=120)
        second = client.submit(job("second", most=2, **LONG)).id
        until(lambda: client.job(second).state == "running", what="the second has started", timeout_s=120)
        assert (client.job(first).workers, client.job(second).workers) == (1, 1)
        assert client.job(first).restarts == 0
        found = client.explain(first)
        assert found.constraint == "slots"
        assert "'second' (1)" in found.sentence
        assert [one.name for one in found.competing] == ["second"]
        made = [change for decision in client.decisions().items for change in decision.changes]
        assert all(change.reason for change in made), made
        assert any("makes room for 'second'" in change.reason for change in made if change.name == "first"), made
        client.cancel(second)
        until(lambda: client.job(first).workers == 2, what="it has grown again", timeout_s=120)
        kinds = [event.kind for event in client.events(first).items]
        assert kinds.count("started") == 1, "nobody was restarted"
        causes = [event.data["cause"] for event in client.events(first).items if event.kind == "resized"]
        assert causes == ["leave", "join"]


@pytest.mark.slow
def test_under_the_quality_policy_workers_go_where_the_reported_loss_falls(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=5, policy="quality") as server, server.client() as client:
        stands = client.submit(job("stands", most=4, more=("--fall", "0.5", "--floor", "0.5", "--noise", "0.01"), **LONG)).id
        until(lambda: client.job(stands).progress.step > 40, what="it has learned what it can", timeout_s=120)
        falls = client.submit(job("falls", most=4, more=("--fall", "0.995"), **LONG)).id
        until(lambda: "its loss falls by" in client.job(falls).reason, what="a decision by what it has reported", timeout_s=120)
        until(lambda: client.job(falls).progress.step > 300, what="more decisions", timeout_s=120)
        assert (client.job(falls).workers, client.job(stands).workers) == (4, 1), "it has all that the other had above its fewest"


def test_five_jobs_on_two_slots_all_finish_and_share(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2, policy="goodput") as server, server.client() as client:
        made = [client.submit(job(f"job-{place}", steps=40, most=2)).id for place in range(5)]
        seen: set[int] = set()

        def ended() -> bool:
            found = [client.job(one) for one in made]
            seen.add(sum(one.state == "running" for one in found))
            assert sum(one.workers for one in found) <= 2
            return all(one.state.ended for one in found)

        until(ended, what="all have ended", timeout_s=240)
        assert all(client.job(one).state == "finished" for one in made)
        assert 2 in seen, "two at a time"
