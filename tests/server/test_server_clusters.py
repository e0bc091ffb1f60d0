"""The server with a cluster that is not `local`, chosen by `--cluster`; and nodes of the local one that come and go."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_harness import job, running, until

from stretto.clusters.registry import known_clusters, parse_options
from stretto.core.errors import UsageError
from stretto.server.client import Client, ServerError

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "stretto"
MAIN = "from stretto.cli.main import main; main()"


def serve(home: Path, *options: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    usual = ["--home", str(home), "--port", "0", "--policy", "fifo", "--interval", "1", "--cooldown", "0"]
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "serve", *usual, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@contextlib.contextmanager
def memory_server(home: Path, nodes: str = "a:2,b:2") -> Iterator[tuple[subprocess.Popen[str], Client]]:
    process = serve(home, "--cluster", "memory_cluster:open_cluster", "--cluster-option", f"nodes={nodes}")
    try:
        assert process.stdout is not None and process.stderr is not None
        match = re.search(r"(http://\S+)/#token=(\S+)", process.stdout.readline())
        if match is None:
            process.kill()
            raise AssertionError(process.stderr.read())
        with Client(match[1], token=match[2]) as client:
            until(lambda: ready(client), what="the server is ready")
            yield process, client
    finally:
        process.kill()
        process.communicate()


def ready(client: Client) -> bool:
    try:
        return client.overview().ready
    except ServerError:
        return False


def state(client: Client, name: str) -> str:
    return str(client.job(name).state)


def texts(client: Client, name: str) -> list[str]:
    return [event.text for event in client.events(job=client.job(name).id).items]


def test_a_job_runs_to_its_end_on_another_cluster_and_its_log_is_shown(tmp_path: Path) -> None:
    with memory_server(tmp_path / "home") as (_, client):
        assert client.overview().cluster == "memory"
        assert [(node.name, node.slots) for node in client.nodes().items] == [("a", 2), ("b", 2)]
        client.submit(job("digits", steps=5, step_s=0.01))
        until(lambda: state(client, "digits") == "finished", what="it ends")
        assert client.job("digits").progress.step == 5
        part = client.log("digits", source="console", tail=1000)
        assert part.text.splitlines() == ["begins at step 0", *(f"step {step}" for step in range(5))]
        assert part.end
        assert client.log("digits", source="console", offset=part.next).text == ""
        with pytest.raises(ServerError, match="has no log 'worker-7': it has console"):
            client.log("digits", source="worker-7")
        assert not list((tmp_path / "home").glob("runs")), "run folders are the local cluster's"
        assert not list((tmp_path / "home").glob("jobs"))


def test_what_the_cluster_cannot_run_is_refused_in_its_own_words(tmp_path: Path) -> None:
    with memory_server(tmp_path / "home") as (_, client), pytest.raises(ServerError, match="runs scripts only"):
        client.submit({"name": "plain", "run": ["sleep", "1"], "plain": True})


def test_a_job_is_scaled_paused_and_resumed_from_its_checkpoint_on_another_cluster(tmp_path: Path) -> None:
    with memory_server(tmp_path / "home") as (_, client):
        client.submit(job("digits", steps=100_000, step_s=0.02, most=4))
        until(lambda: client.job("digits").workers == 4, what="it has all slots")
        client.scale("digits", 1)
        until(lambda: client.job("digits").workers == 1, what="it has one")
        until(lambda: client.job("digits").progress.step > 3, what="steps")
        client.pause("digits")
        until(lambda: state(client, "digits") == "paused", what="it is paused")
        client.resume("digits")
        until(lambda: state(client, "digits") == "running", what="it runs again")
        first = client.log("digits", source="console", tail=100_000).text.splitlines()[0]
        assert first.startswith("begins at step ") and first != "begins at step 0"


def test_a_job_on_a_lost_node_moves_or_waits_and_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    with memory_server(tmp_path / "home") as (process, client):
        for name in ("first", "second"):
            client.submit(job(name, steps=100_000, step_s=0.02, least=2, most=2))
            until(lambda name=name: state(client, name) == "running", what=f"{name} runs")
        until(lambda: client.job("second").progress.step > 3, what="steps")
        lost = next(name for name in ("first", "second") if "b" in client.job(name).nodes)
        other = "first" if lost == "second" else "second"
        process.send_signal(signal.SIGUSR1)
        until(lambda: state(client, lost) == "queued", what="it waits: the other job has the last slots")
        assert state(client, other) == "running"
        assert any("b is gone" in text for text in texts(client, lost))
        assert [node.name for node in client.nodes().items] == ["a"]
        client.cancel(other)
        until(lambda: state(client, lost) == "running", what="it has moved")
        assert client.job(lost).nodes == {"a": 2}
        assert not client.log(lost, source="console", tail=100_000).text.startswith("begins at step 0\n")


def test_new_nodes_are_used_at_once(tmp_path: Path) -> None:
    with memory_server(tmp_path / "home") as (process, client):
        process.send_signal(signal.SIGUSR1)
        until(lambda: client.overview().slots == 2, what="b is lost")
        client.submit(job("wide", steps=100_000, step_s=0.02, least=4, most=4))
        until(lambda: "can never run here" in client.job("wide").reason, what="it cannot start")
        process.send_signal(signal.SIGUSR2)
        until(lambda: state(client, "wide") == "running", what="it starts")


def test_the_clusters_reason_for_a_pending_job_is_shown(tmp_path: Path) -> None:
    with memory_server(tmp_path / "home") as (_, client):
        client.submit(job("waits", more=("--pending", "Insufficient nvidia.com/gpu")))
        until(lambda: "Insufficient nvidia.com/gpu" in client.job("waits").reason, what="the reason")
        assert "Insufficient nvidia.com/gpu" in client.explain("waits").sentence
        client.cancel("waits")
        until(lambda: state(client, "waits") == "cancelled", what="it ends")


def test_jobs_that_were_lost_with_their_server_start_again(tmp_path: Path) -> None:
    with memory_server(tmp_path / "home") as (process, client):
        client.submit(job("digits", steps=100_000, step_s=0.02))
        until(lambda: state(client, "digits") == "running", what="it runs")
        process.kill()
    with memory_server(tmp_path / "home") as (_, client):
        until(lambda: client.job("digits").restarts == 1 and state(client, "digits") == "running", what="it runs again")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cluster", "nowhere"], "--cluster 'nowhere' does not exist: choose one of local, or"),
        (["--cluster", "nowhere:open"], "nowhere:open cannot be loaded"),
        (["--cluster-option", "colour=red"], "colour: the local cluster does not have it: it has nodes, slots"),
        (["--cluster-option", "nodes"], "'nodes' is not KEY=VALUE"),
        (["--cluster", "memory_cluster:open_cluster", "--slots", "3"], "slots: the cluster `memory` has only"),
        (["--cluster-option", "nodes-file=/nowhere.json"], "/nowhere.json does not exist"),
    ],
)
def test_a_wrong_cluster_or_option_is_refused_with_the_choices(tmp_path: Path, options: list[str], words: str) -> None:
    process = serve(tmp_path / "home", *options)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert words in " ".join(errors.split())
    assert not (tmp_path / "home").exists()


def test_local_is_known_without_the_metadata_of_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.clusters.registry.entry_points", lambda group: ())
    assert "local" in known_clusters()


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_options(("nodes=1", "nodes=2"))


def test_jobs_follow_the_local_clusters_nodes_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"

    def have(*names: str) -> None:
        file.with_suffix(".new").write_text(json.dumps([{"name": name, "slots": 1} for name in names]))
        file.with_suffix(".new").replace(file)

    have("a", "b")
    with (
        running(tmp_path / "home", cluster_options={"nodes-file": str(file)}) as server,
        server.client() as client,
    ):
        for name in ("first", "second"):
            client.submit(job(name, steps=100_000))
            until(lambda name=name: state(client, name) == "running", what=f"{name} runs")
        have("a")
        until(lambda: {state(client, name) for name in ("first", "second")} == {"running", "queued"}, what="one waits")
        assert client.overview().slots == 1
        file.write_text("no list")
        until(lambda: any("the old nodes are kept" in alarm.text for alarm in client.overview().alarms), what="an alarm")
        have("a", "c")
        until(lambda: {state(client, name) for name in ("first", "second")} == {"running"}, what="both run")
        assert {name for one in ("first", "second") for name in client.job(one).nodes} == {"a", "c"}
        until(lambda: not client.overview().alarms, what="the alarm is over")


def names_a_cluster(source: str) -> bool:
    """Whether a module imports a cluster's own module, or names its class."""
    for node in ast.walk(ast.parse(source)):
        modules = (
            [alias.name for alias in node.names] + [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.id]
            if isinstance(node, ast.Name)
            else [node.value]
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value
            else []
        )
        if any(re.search(r"stretto\.clusters\.(?!base\b|registry\b)\w+|\bLocalCluster\b", module) for module in modules):
            return True
    return False


def test_only_the_registry_knows_which_clusters_there_are() -> None:
    modules = [path for room in ("server", "cli", "agent", "scheduling", "simulation") for path in (SOURCE / room).rglob("*.py")]
    assert len(modules) > 100
    assert [str(path) for path in modules if names_a_cluster(path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "from stretto.clusters.local import open_cluster",
        "from stretto.clusters import local",
        "import stretto.clusters.local",
        "import_module('stretto.clusters.local')",
    ],
)
def test_a_module_that_names_a_cluster_would_be_noticed(source: str) -> None:
    assert names_a_cluster(source)
