"""Jobs through the API of a real server; their agents are simulated, their processes are not."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest
from server_harness import Running, job, until

from stretto.server.client import Frame, ServerError

LONG = {"steps": 100_000, "step_s": 0.1}


def test_a_job_runs_to_its_end_and_leaves_its_curve_its_log_and_its_events(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("curve", steps=30, most=2))
        assert made.state == "queued"
        ended = client.wait(made.id, timeout_s=120)
        assert (ended.state, ended.digest, ended.samples_lost) == ("finished", f"{30:064x}", 0)
        kinds = [event.kind for event in client.events(made.id).items]
        assert kinds == ["submitted", "allocated", "started", "ready", "finished"]
        series = client.metrics(made.id)
        assert (series.step[0], series.step[-1]) == (0, 29)
        assert all(later < earlier for earlier, later in zip(series.series["loss"], series.series["loss"][1:], strict=False))
        assert "run" in client.log(made.id).text
        assert client.explain(made.id).sentence == "'curve' has finished."
        assert client.sizes(made.id).items[0].workers == 2


def test_a_stalled_job_is_an_alarm_and_its_reason_until_it_goes_on(server: Running, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with server.client() as client:
        made = client.submit(job("stall", steps=8, more=("--stall-at", "5", "--until", str(go))))
        until(lambda: any("'stall' is stalled" in one.text for one in client.overview().alarms), what="the alarm")
        assert [one.text for one in client.overview().alarms] == [
            "job 'stall' is stalled: no progress for 31 s: w0 in the exchange of training step 5"
        ]
        assert client.job(made.id).note == "stalled: no progress for 31 s: w0 in the exchange of training step 5"
        go.touch()
        ended = client.wait(made.id, timeout_s=120)
        assert (ended.state, ended.note) == ("finished", "")
        until(lambda: not client.overview().alarms, what="the alarm is over")
        told = [event.text for event in client.events(made.id).items if event.kind == "worker"]
        assert len(told) == 2 and told[1] == "the job goes on after 32 s"


def test_curves_come_in_parts_without_a_gap_and_fewer_points_keep_the_ends(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("parts", steps=60, step_s=0.02))
        client.wait(made.id, timeout_s=120)
        whole = client.metrics(made.id)
        some = client.metrics(made.id, points=5)
        assert len(some.step) == 5
        assert (some.step[0], some.step[-1]) == (whole.step[0], whole.step[-1])
        middle = whole.step[len(whole.step) // 2]
        rest = client.metrics(made.id, after=middle)
        assert rest.step == [step for step in whole.step if step > middle]
        assert set(client.metrics(made.id, names=["loss"]).series) == {"loss"}


def test_a_repeated_submit_with_a_key_is_one_job(server: Running) -> None:
    with server.client() as client:
        first = client.submit(job("once"), key="k1")
        assert client.submit(job("once"), key="k1").id == first.id
        with pytest.raises(ServerError, match="another job") as caught:
            client.submit(job("other"), key="k1")
        assert caught.value.status == 422
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(server.client().submit(job("race"), key="k2").id)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1
        assert len(found) == 8


def test_a_change_for_an_old_version_is_refused(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("versions", most=4, **LONG))
        until(lambda: client.job(made.id).state == "running", what="it runs")
        now = client.job(made.id)
        changed = client.change(made.id, version=now.version, priority=5)
        assert changed.version == now.version + 1
        with pytest.raises(ServerError, match="read it again") as caught:
            client.change(made.id, version=now.version, priority=6)
        assert caught.value.status == 412
        client.cancel(made.id)


def test_a_pinned_job_gets_exactly_that_many_without_a_restart(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("pinned", most=4, **LONG))
        until(lambda: client.job(made.id).state == "running", what="it runs")
        client.scale(made.id, 2, pin=True)
        until(lambda: client.job(made.id).workers == 2, what="it has two")
        client.scale(made.id, 3, pin=True)
        until(lambda: client.job(made.id).workers == 3, what="it has three")
        found = client.job(made.id)
        assert found.restarts == 0
        assert client.explain(made.id).constraint == "pinned"
        resized = [event for event in client.events(made.id).items if event.kind == "resized"]
        assert [event.data["workers"] for event in resized][-1] == 3
        assert all(event.data["pause_ms"] == 3.0 for event in resized)
        with pytest.raises(ServerError, match="outside the job's limits 1 to 4"):
            client.scale(made.id, 5)
        client.cancel(made.id)
        assert client.wait(made.id, timeout_s=120).state == "cancelled"


def test_a_job_that_can_never_run_says_so_and_is_in_nobodys_way(server: Running) -> None:
    with server.client() as client:
        large = client.submit(job("large", least=9, most=9)).id
        until(lambda: client.job(large).reason, what="there was a decision")
        assert client.job(large).reason == "can never run here: it needs 9 slots, the cluster has 8"
        assert client.explain(large).sentence == "'large' can never run here: it needs 9 slots, the cluster has 8."
        assert client.wait(client.submit(job("small", steps=2)).id, timeout_s=120).state == "finished"
        assert client.job(large).state == "queued"
        client.cancel(large)


def test_a_paused_job_gives_its_slots_back_and_goes_on_later(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("pausing", **LONG))
        until(lambda: client.job(made.id).state == "running", what="it runs")
        client.pause(made.id)
        until(lambda: client.job(made.id).state == "paused", what="it is paused")
        assert client.job(made.id).nodes == {}
        reason = client.job(made.id).reason
        assert reason.startswith(f"paused by '{client.me().name}' at 20"), "not why it has grown before"
        assert reason in client.explain(made.id).sentence
        with pytest.raises(ServerError, match="is paused") as caught:
            client.pause(made.id)
        assert caught.value.status == 409
        client.resume(made.id)
        until(lambda: client.job(made.id).state == "running", what="it runs again")
        client.cancel(made.id)
        client.wait(made.id, timeout_s=120)


def test_only_ended_jobs_can_be_removed_and_then_they_are_gone(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("gone", **LONG))
        until(lambda: client.job(made.id).state == "running", what="it runs")
        with pytest.raises(ServerError, match="cancel it first"):
            client.remove(made.id)
        client.cancel(made.id)
        client.wait(made.id, timeout_s=120)
        assert (server.home / "runs" / made.id).exists()
        client.remove(made.id)
        with pytest.raises(ServerError) as caught:
            client.job(made.id)
        assert caught.value.status == 404
        assert not (server.home / "runs" / made.id).exists()
        assert not (server.home / "jobs" / made.id).exists()


def test_a_scaling_plan_is_followed_step_by_step(server: Running) -> None:
    with server.client() as client:
        plan = [{"step": 0, "workers": 1}, {"step": 20, "workers": 3}, {"step": 60, "workers": 2}]
        made = client.submit(job("planned", steps=2000, step_s=0.06, elastic={"min": 1, "max": 4, "plan": plan}))
        until(lambda: len(client.sizes(made.id).items) >= 3, what="two changes of size")
        sizes = client.sizes(made.id).items
        assert [size.workers for size in sizes[:3]] == [1, 3, 2]
        assert sizes[1].step >= 20
        assert sizes[2].step >= 60
        assert client.explain(made.id).constraint == "plan"
        client.cancel(made.id)


def test_lists_have_pages_in_a_fixed_order(server: Running) -> None:
    with server.client() as client:
        for place in range(5):
            client.cancel(client.submit(job(f"page-{place}", **LONG)).id)
        whole = [one.id for one in client.jobs(name="page-")]
        parts: list[str] = []
        cursor = None
        while True:
            query = {"limit": 2, "name": "page-", **({"cursor": cursor} if cursor else {})}
            page = client._raw("GET", "/v1/jobs", params=query).json()
            parts += [one["id"] for one in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert parts == whole
        assert len(set(parts)) == 5
        with pytest.raises(ServerError, match="cursor"):
            client._raw("GET", "/v1/jobs", params={"cursor": "nonsense"})


def test_a_stream_shows_what_happens_and_resumes_without_a_gap_or_a_double(server: Running) -> None:
    with server.client() as client:
        seen: list[Frame] = []
        made = ""
        for frame in client.stream():
            seen.append(frame)
            if frame.kind == "hello":
                made = client.submit(job("streamed", steps=10)).id
            if frame.kind == "event" and frame.data["job"] == made and frame.data["kind"] == "ready":
                break
        last = max(frame.id for frame in seen if frame.id is not None)
        client.wait(made, timeout_s=120)
        for frame in client.stream(last_event_id=last):
            seen.append(frame)
            if frame.kind == "event" and frame.data["job"] == made and frame.data["kind"] == "finished":
                break
        ids = [frame.id for frame in seen if frame.kind == "event"]
        assert ids == sorted(set(ids))
        stored = [event.id for event in client.events(after=ids[0] - 1).items if event.id <= ids[-1]]
        assert ids == stored, "every event once"
        kinds = [frame.data["kind"] for frame in seen if frame.kind == "event" and frame.data["job"] == made]
        assert kinds == ["submitted", "allocated", "started", "ready", "finished"]


def test_a_stream_of_a_job_has_the_points_of_its_curves(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("points", **LONG))
        for frame in client.stream(job=made.id):
            if frame.kind == "points":
                assert frame.data["job"] == made.id
                assert len(frame.data["series"]["loss"]) == len(frame.data["step"])
                break
        client.cancel(made.id)


def test_application_metrics_reach_the_server(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("reports", more=("--report-every", "1"), **LONG))
        until(lambda: client.job(made.id).progress.noise_scale is not None, what="its noise scale")
        assert client.job(made.id).progress.goodput is not None
        until(lambda: "noise_scale" in client.metrics(made.id).series, what="a curve of it")
        client.cancel(made.id)


def test_a_cordoned_node_loses_its_workers_and_gets_none(tmp_path) -> None:
    from server_harness import running

    with running(tmp_path / "home", slots=2, nodes=2) as server, server.client() as client:
        made = client.submit(job("moved", most=2, **LONG))
        until(lambda: client.job(made.id).state == "running", what="it runs")
        (before,) = client.job(made.id).nodes
        client.cordon(before)
        until(lambda: before not in client.job(made.id).nodes and client.job(made.id).state == "running", what="it has moved")
        assert next(node for node in client.nodes().items if node.name == before).used == 0
        assert any(event.kind == "node" for event in client.events(limit=1000).items)


def test_decisions_and_the_picture_of_slots_are_kept(server: Running) -> None:
    with server.client() as client:
        decisions = client.decisions().items
        assert decisions[0].id > decisions[-1].id
        assert any(change.after > change.before for decision in decisions for change in decision.changes)
        bars = client.history(since=0, until=time.time() + 1).items
        assert bars
        assert all(bar.end is None or bar.end >= bar.start for bar in bars)


def test_prometheus_gets_numbers_by_its_conventions(server: Running) -> None:
    text = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"}, trust_env=False).text
    for name in (
        'stretto_jobs{state="finished"}',
        "stretto_queue_wait_seconds_bucket",
        "stretto_decision_seconds_count",
        "stretto_resize_pause_seconds_sum",
        "stretto_goodput_samples_per_second",
        "stretto_samples_lost_total 0.0",
    ):
        assert name in text
    written = next(line for line in text.splitlines() if line.startswith("stretto_events_total"))
    assert float(written.split()[1]) > 0


def test_another_policy_can_be_chosen_and_asked_about(server: Running) -> None:
    with server.client() as client:
        client.wait(client.submit(job("asked", steps=30, most=2)).id, timeout_s=120)
        names = [policy.name for policy in client.policies().items]
        assert {"fifo", "tiresias", "optimus"} <= set(names)
        answer = client.what_if("optimus", hours=1)
        assert answer.jobs > 0
        assert answer.other.policy == "optimus"
        assert client.use_policy("tiresias").active == "tiresias"
        assert client.use_policy("fifo").active == "fifo"
        with pytest.raises(ServerError, match="there is no policy 'nothing'"):
            client.use_policy("nothing")


def test_a_trace_for_the_simulator_has_what_was_measured(server: Running) -> None:
    with server.client() as client:
        client.wait(client.submit(job("traced", steps=30, most=2)).id, timeout_s=120)
        measured = next(row for row in client.trace(hours=1).items if row.name == "traced")
        assert measured.throughput["2"] > 0
        assert (measured.steps, measured.batch, measured.state) == (30, 64, "finished")


def test_health_needs_no_token(server: Running) -> None:
    assert httpx.get(f"{server.url}/healthz", trust_env=False).json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/readyz", trust_env=False).status_code == 200
