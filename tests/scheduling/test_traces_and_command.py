"""Workloads from files and servers, clusters from text, and the command that puts them together."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from stretto.cli.simulate import command
from stretto.core.errors import UsageError
from stretto.simulation.cluster.cluster_spec import read_cluster
from stretto.simulation.cluster.recorded_trace import from_server, read_recorded
from stretto.simulation.cluster.trace import read_trace

HEADER = "name,time,steps,batch_size,step_s\n"
GOOD = HEADER + "a,0,600,128,0.5\nb,30,300,128,0.5\nc,45,200,64,0.2\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "workload.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("row 1", "column name", "add it")),
        ("name,steps\n", ("row 1", "column time")),
        ("name,time,colour\n", ("row 1", "column colour", "rename")),
        (HEADER, ("no jobs",)),
        (HEADER + "a,0,600,128,0.5\na,1,600,128,0.5\n", ("row 3", "column name", "row 2")),
        (HEADER + "a,soon,600,128,0.5\n", ("row 2", "column time", "'soon' is not a number")),
        (HEADER + "a,-5,600,128,0.5\n", ("row 2", "column time", "below 0")),
        (HEADER + "a,nan,600,128,0.5\n", ("row 2", "column time", "not a number")),
        (HEADER + "a,0,600,12.5,0.5\n", ("row 2", "column batch_size", "whole")),
        (HEADER + "a,0,,128,0.5\n", ("row 2", "column steps", "fill it in")),
        (HEADER + "a,0,600,128,0\n", ("row 2", "column step_s", "use 1e-09 or more")),
        ("name,time,application\na,0,bert\n", ("row 2", "column application", "--profiles")),
        (HEADER.replace("step_s", "step_s,min,max") + "a,0,600,128,0.5,8,4\n", ("row 2", "column max", "below min")),
        (HEADER.replace("step_s", "step_s,preemptible") + "a,0,600,128,0.5,maybe\n", ("column preemptible", "yes or no")),
    ],
)
def test_a_bad_trace_is_refused_with_row_column_and_fix(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        read_trace(written(tmp_path, text))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", HEADER.encode() + b"a,0,600,128,0.5\xff\n"])
def test_a_file_that_is_no_text_is_refused_from_its_first_byte_on(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "workload.csv"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="not a CSV text file"):
        read_trace(path)


def test_a_good_trace_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    jobs = read_trace(written(tmp_path, HEADER + "late,90,600,128,0.5\nearly,5,300,128,0.5\n"))
    assert [job.name for job in jobs] == ["early", "late"]


def test_a_cluster_is_read_from_a_short_text() -> None:
    spec = read_cluster("2x4:t4@0.5,1x8:a100@20*3.5,1x4:t4@0.2~0.1")
    assert [node.slots for node in spec.nodes] == [4, 4, 8, 4]
    assert [node.spot for node in spec.nodes] == [False, False, False, True]
    assert dict(spec.speeds) == {"a100": 3.5, "t4": 1.0}
    assert spec.reclaims_per_hour == 0.1


@pytest.mark.parametrize("text", ["", "4", "0x4", "4x0", "4x4@", "4x4:t4*2,4x4:t4*3", "99999999x4"])
def test_a_cluster_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--nodes"):
        read_cluster(text)


ROWS = [
    {"name": "a", "time": 0, "min_workers": 1, "max_workers": 4, "steps": 500, "batch": 64, "throughput": {"1": 100, "2": 180}},
    {
        "name": "a",
        "time": 60,
        "min_workers": 1,
        "max_workers": 2,
        "steps": 500,
        "batch": 64,
        "throughput": {"1": 100},
        "priority": 10,
    },
    {"name": "unmeasured", "time": 70, "min_workers": 1, "max_workers": 2, "steps": 10, "batch": 8, "throughput": {}},
]


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.startswith("/v1/trace")
            body = json.dumps({"items": ROWS, "nodes": {"here": 4}}).encode() if known else b"no"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def test_a_servers_record_is_a_workload(server: str) -> None:
    recorded = from_server(server)
    assert [job.name for job in recorded.jobs] == ["a-0", "a-1"]
    assert recorded.left_out == ("unmeasured",)
    assert recorded.jobs[1].priority == 2.0
    assert [node.slots for node in recorded.nodes] == [4]
    assert recorded.jobs[0].application.step_s((1,), 64)[0] == pytest.approx(0.64, rel=0.05)


def test_a_server_that_is_not_there_is_said_to_be(server: str) -> None:
    with pytest.raises(UsageError, match="404"):
        from_server(server + "/wrong")
    with pytest.raises(UsageError, match="does not answer"):
        from_server("http://127.0.0.1:9")
    with pytest.raises(UsageError, match="no list of jobs"):
        read_recorded({"jobs": 1}, source="x")


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


def test_policies_are_compared_side_by_side(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    shown = invoke(str(path), "--policy", "fifo,goodput", "--nodes", "1x4@2", "--plot", str(tmp_path / "out.png"))
    assert shown.exit_code == 0, shown.exception
    for word in ("fifo", "goodput", "median", "makespan", "worst fairness", "a decision", "cost"):
        assert word in shown.output
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"


def test_json_has_every_figure_and_stop_free_pauses_are_worth_something(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    averages: dict[str, float] = {}
    for cost in ("120", "measured"):
        shown = invoke(str(path), "-o", "json", "--nodes", "1x4", "--restart-cost", cost)
        assert shown.exit_code == 0, shown.exception
        found = json.loads(shown.output)["policies"]["goodput"]
        assert found["jobs"] == 3
        averages[cost] = found["average_s"]
    assert averages["measured"] < averages["120"]


def test_yaml_says_the_same_as_json(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    as_json, as_yaml = (invoke(str(path), "--policy", "fifo", "--nodes", "1x4", "-o", how).output for how in ("json", "yaml"))
    one, other = (found["policies"]["fifo"] for found in (json.loads(as_json), yaml.safe_load(as_yaml)))
    assert all(one[key] == other[key] for key in ("jobs", "average_s", "restarts"))
    assert invoke(str(path), "-o", "xml").exit_code == 2


def test_a_servers_record_is_replayed_by_the_command(server: str) -> None:
    shown = invoke("--from-server", server, "-o", "json")
    assert shown.exit_code == 0, shown.exception
    assert '"jobs": 2' in shown.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--policy", "best"), "there is no such policy"),
        (("--restart-cost", "never"), "write seconds"),
        (("--nodes", "many"), "COUNTxSLOTS"),
        (("--period", "0"), "from 1 to 86400"),
        (("--batch", "huge"), "fixed, linear or adaptive"),
        (("--noise", "7"), "from 0 to 1"),
    ],
)
def test_a_mistake_in_the_call_says_what_to_write(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    shown = invoke(str(written(tmp_path, GOOD)), *arguments)
    assert isinstance(shown.exception, UsageError)
    assert text in str(shown.exception)
