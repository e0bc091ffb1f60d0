"""The cluster of docs/guides/own-cluster.md, as it stands on the page, under a real server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_harness import Running, job, processes, running, until

from stretto.server.client import Client, ServerError

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "own-cluster.md"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    module = re.search(r"Save this as `children\.py`:\n\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert module is not None
    (tmp_path / "children.py").write_text(module[1])
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = {"cluster": "children:open_cluster", "cluster_options": {"slots": "2"}, "environment": {"PYTHONPATH": path}}
    with running(tmp_path / "home", **options) as started:
        yield started


def state(client: Client, name: str) -> str:
    return str(client.job(name).state)


def agents(server: Running) -> list[str]:
    return [line for line in processes(server.home) if "simulated_agent.py run " in line]


def test_it_runs_a_job_to_its_end_and_shows_its_log(server: Running) -> None:
    with server.client() as client:
        assert [(node.name, node.slots) for node in client.nodes().items] == [("here", 2)]
        client.submit(job("digits", steps=5, step_s=0.01))
        until(lambda: state(client, "digits") == "finished", what="it ends")
        assert client.job("digits").progress.step == 5
        assert "with 1 workers" in client.log("digits", source="console", tail=1000).text


def test_it_scales_a_job_and_stops_it(server: Running) -> None:
    with server.client() as client:
        client.submit(job("digits", steps=100_000, step_s=0.02, most=2))
        until(lambda: client.job("digits").workers == 2, what="it has all slots")
        client.scale("digits", 1)
        until(lambda: client.job("digits").workers == 1, what="it has one")
        client.cancel("digits")
        until(lambda: state(client, "digits") == "cancelled", what="it ends")
        assert not agents(server)


def test_a_job_that_fails_fails_with_its_own_exit_code(server: Running) -> None:
    with server.client() as client:
        client.submit(job("digits", steps=50, step_s=0.01, more=("--fail-at", "3")))
        until(lambda: state(client, "digits") == "failed", what="it fails")
        assert "as it was told to" in str(client.job("digits").error)


def test_its_jobs_end_with_a_killed_server_and_the_next_one_starts_them_once(server: Running) -> None:
    with server.client() as client:
        client.submit(job("digits", steps=100_000, step_s=0.02))
        until(lambda: state(client, "digits") == "running", what="it runs")
    server.kill()
    until(lambda: not agents(server), what="its process ends with the server")
    server.start()
    with server.client() as client:
        until(lambda: client.job("digits").restarts == 1 and state(client, "digits") == "running", what="it runs again")
        assert len(agents(server)) == 1


def test_it_refuses_what_it_cannot_run(server: Running) -> None:
    with server.client() as client, pytest.raises(ServerError, match="training scripts only"):
        client.submit({"name": "plain", "run": ["sleep", "1"], "plain": True})
