"""The command line against a real server, and job files with their errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from server_harness import Running, job, until

from stretto.cli.main import group
from stretto.core.errors import UsageError
from stretto.server.client import Client, find_server
from stretto.server.jobs.jobfile import deadline, parse_job, read_job_file

PROGRAM = "from stretto.cli.main import main; main()"


def stretto(server: Running, *arguments: str, cwd: Path | None = None, code: int = 0) -> str:
    environment = {**os.environ, "STRETTO_SERVER": server.url, "STRETTO_TOKEN": server.token, "COLUMNS": "250"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        timeout=200,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout + result.stderr


def test_a_command_is_submitted_shown_scaled_explained_and_cancelled(server: Running, tmp_path: Path) -> None:
    said = stretto(
        server, "submit", "--workers", "1:4", "--", "python", "my_train.py", "--steps", "100000", "--step-s", "0.1", cwd=tmp_path
    )
    made = said.split()[0]
    assert "my-train: queued" in said
    with server.client() as client:
        until(lambda: client.job(made).state == "running", what="it runs")
        assert client.job(made).spec.workdir == str(tmp_path)
    assert made in stretto(server, "ps")
    shown = json.loads(stretto(server, "show", made, "-o", "json"))
    assert (shown["min"], shown["max"]) == (1, 4)
    assert yaml.safe_load(stretto(server, "show", "my-train", "-o", "yaml"))["id"] == made
    assert "pinned to 2" in stretto(server, "scale", "my-train", "2", "--pin")
    with server.client() as client:
        until(lambda: client.job(made).workers == 2, what="it has two")
    explained = stretto(server, "explain", made)
    assert "it is pinned there" in explained
    assert "expected to start" not in explained, "it has"
    assert "run j-" in stretto(server, "logs", made)
    assert "submitted" in stretto(server, "events", made)
    stretto(server, "cancel", made)
    with server.client() as client:
        client.wait(made, timeout_s=120)
    assert "removed" in stretto(server, "rm", made)
    assert "there is no job" in stretto(server, "show", made, code=1)


def test_a_job_file_is_submitted_and_waited_for(server: Running, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job("from-file", steps=5)))
    found = json.loads(stretto(server, "submit", "job.yaml", "--wait", "-o", "json", cwd=tmp_path))
    assert (found["name"], found["state"]) == ("from-file", "finished")
    assert found["spec"]["workdir"] == str(tmp_path)
    path.write_text(yaml.safe_dump(job("fails", more=("--fail-at", "0"))))
    assert "failed" in stretto(server, "submit", "job.yaml", "--wait", cwd=tmp_path, code=1)


def say(*arguments: str) -> None:
    """The command line in this process: a dozen of them in the time of one."""
    group().main(args=list(arguments), prog_name="stretto", standalone_mode=False)


def test_everything_is_written_as_json_or_yaml_too(
    server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRETTO_SERVER", server.url)
    monkeypatch.setenv("STRETTO_TOKEN", server.token)
    with server.client() as client:
        made = client.submit(job("written", steps=100_000, step_s=0.1, most=2)).id
        until(lambda: client.job(made).state == "running", what="it runs")
        token = client.create_token("passing", scope="viewer").id

        def found(*arguments: str) -> list[Any]:
            """The same from both; verbs that change something are asked once more, which changes nothing."""
            documents = []
            for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
                say(*arguments, "-o", output)
                documents.append(read(capsys.readouterr().out))
            return documents

        for arguments in (["ps"], ["events", made], ["policies"], ["nodes"], ["tokens", "list"]):
            first, second = found(*arguments)
            assert type(first) is type(second)
            assert len(first) == len(second)
        for arguments in (["show", made], ["explain", made], ["scale", made, "1"], ["cancel", made]):
            assert all((one.get("id") or one["job"]) == made for one in found(*arguments))
        assert all("run j-" in one["text"] for one in found("logs", made))
        assert [one[0]["id"] for one in found("tokens", "revoke", token)] == [token, token]
        client.wait(made, timeout_s=120)
        say("rm", made, "-o", "json")
        assert [one["id"] for one in json.loads(capsys.readouterr().out)] == [made]


def test_what_is_followed_is_a_document_a_line(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("followed", steps=100_000, step_s=0.1)).id
        command = [sys.executable, "-c", PROGRAM, "events", made, "-f", "-o", "json"]
        environment = {**os.environ, "STRETTO_SERVER": server.url, "STRETTO_TOKEN": server.token}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as follows:
            assert follows.stdout is not None
            kinds = [json.loads(follows.stdout.readline())["kind"]]
            client.cancel(made)
            while kinds[-1] != "cancelled":
                kinds.append(json.loads(follows.stdout.readline())["kind"])
            follows.terminate()
        assert kinds[0] == "submitted"


def test_local_runs_are_written_as_asked_and_jobs_of_the_server_are_mentioned(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRETTO_HOME", str(server.home))
    for name in ("STRETTO_SERVER", "STRETTO_TOKEN", "STRETTO_RUNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with server.client() as client:
        made = client.submit(job("mentioned", steps=100_000, step_s=0.1)).id
        say("ps")
        said = capsys.readouterr()
        assert "no runs in runs" in said.out
        assert f"stretto ps --server {server.url}" in said.err
        for output in ("json", "yaml"):
            say("ps", "-o", output)
            said = capsys.readouterr()
            assert (said.out.strip(), said.err) == ("[]", "")
        client.cancel(made)
    with pytest.raises(UsageError, match="-o json: a local run's logs are text"):
        say("logs", "nobody", "--runs", "runs", "-o", "json")


def test_nodes_policies_and_tokens_are_listed_and_changed(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("on-a-node", steps=100_000, step_s=0.1)).id
        until(lambda: client.job(made).state == "running", what="it runs")
        listed = stretto(server, "nodes")
        client.cancel(made)
        client.wait(made, timeout_s=120)
    assert "node0" in listed
    assert "on-a-node (1)" in listed
    assert "cordoned" in stretto(server, "nodes", "--cordon", "node0")
    assert "ready" in stretto(server, "nodes", "--uncordon", "node0")
    assert "decides" in stretto(server, "policies")
    secret = stretto(server, "tokens", "create", "ci", "--scope", "viewer").strip()
    assert secret.startswith("st_t-")
    listed = stretto(server, "tokens", "list")
    assert "ci" in listed
    assert secret not in listed
    assert "is revoked" in stretto(server, "tokens", "revoke", secret.split("_")[1])


@pytest.mark.slow
def test_what_a_server_has_recorded_is_replayed_under_other_policies(server: Running, tmp_path: Path) -> None:
    with server.client() as client:
        made = [client.submit(job(f"past-{place}", steps=30, most=2)).id for place in range(3)]
        for one in made:
            assert client.wait(one, timeout_s=120).state == "finished"
    words = ("simulate", "--from-server", server.url, "--hours", "1", "--policy", "fifo,goodput", "--period", "5", "-o", "json")
    said = stretto(server, *words, cwd=tmp_path)
    found = json.loads(said[said.index("{") : said.rindex("}") + 1])  # beside it, who was left out
    assert found["nodes"] == "node0:8", "the server's own nodes"
    for policy in ("fifo", "goodput"):
        assert found["policies"][policy]["average_s"] > 0
        assert found["policies"][policy]["jobs"] >= 3
    refused = stretto(server, "simulate", "--from-server", "http://127.0.0.1:9", code=2)
    assert "does not answer" in refused


def test_a_saved_token_goes_to_its_own_server_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "login.json").write_text(json.dumps({"url": "http://127.0.0.1:8787", "token": "st_secret"}))
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path))
    monkeypatch.delenv("STRETTO_SERVER", raising=False)
    monkeypatch.delenv("STRETTO_TOKEN", raising=False)
    assert find_server() == ("http://127.0.0.1:8787", "st_secret")
    assert find_server("http://127.0.0.1:8787/") == ("http://127.0.0.1:8787", "st_secret")
    assert find_server("http://elsewhere:8787") is None
    with pytest.raises(UsageError, match=r"no token is known for the job server http://elsewhere:8787: set STRETTO_TOKEN"):
        Client("http://elsewhere:8787")


def test_mistakes_are_told_without_a_traceback(server: Running, tmp_path: Path) -> None:
    assert "no '='" in stretto(server, "submit", "--env", "X", "--", "python", "t.py", code=2)
    assert "--workers 4:2 allows no number" in stretto(server, "submit", "--workers", "4:2", "--", "python", "t.py", code=2)
    assert "cannot be read" in stretto(server, "submit", "nothing.yaml", cwd=tmp_path, code=2)
    assert "error: name: small letters" in stretto(server, "submit", "--name", "X_Y", "--", "python", "t.py", code=1)
    environment = {**os.environ, "STRETTO_SERVER": "http://127.0.0.1:9", "STRETTO_TOKEN": "x"}
    result = subprocess.run(
        [sys.executable, "-c", "from stretto.cli.main import main; main()", "nodes"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=200,
    )
    assert result.returncode == 1
    assert "is `stretto serve` running?" in result.stderr


def test_without_a_server_the_way_to_one_is_told(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO")} | {
        "STRETTO_HOME": str(tmp_path)
    }
    program = [sys.executable, "-c", "from stretto.cli.main import main; main()"]
    result = subprocess.run([*program, "nodes"], capture_output=True, text=True, env=environment, check=False, timeout=200)
    assert result.returncode == 2
    assert "stretto serve" in result.stderr
    assert f"there is no login in {tmp_path}" in result.stderr
    assert "started with `--home DIR`, set STRETTO_HOME=DIR" in result.stderr
    local = subprocess.run(
        [*program, "ps"], capture_output=True, text=True, env=environment, check=False, timeout=200, cwd=tmp_path
    )
    assert (local.returncode, local.stdout) == (0, "no runs in runs\n"), "ps without a server is about local runs"
    assert local.stderr == ""
    (tmp_path / "login.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "token": "st_x"}))
    local = subprocess.run(
        [*program, "ps"], capture_output=True, text=True, env=environment, check=False, timeout=200, cwd=tmp_path
    )
    assert (local.returncode, local.stdout) == (0, "no runs in runs\n")
    assert "the server of the saved login does not answer" in local.stderr


def test_a_server_with_a_home_of_its_own_says_what_clients_have_to_set(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO")}
    program = [sys.executable, "-c", PROGRAM]
    home = tmp_path / "my home"
    with subprocess.Popen(
        [*program, "serve", "--home", str(home), "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
    ) as serving:
        assert serving.stdout is not None
        said = [serving.stdout.readline().strip() for _ in range(3)]
        told = subprocess.run(
            [*program, "nodes"],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            env={**environment, "STRETTO_HOME": str(home)},
        )
        serving.terminate()
    assert said[2] == f"for clients: export STRETTO_HOME='{home}'"
    assert "node0" in told.stdout, told.stderr


def test_what_is_not_elastic_is_warned_about_and_flags_behind_the_script_are_hinted_at(
    server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRETTO_SERVER", server.url)
    monkeypatch.setenv("STRETTO_TOKEN", server.token)
    say("submit", "--", "sleep", "0.1")
    said = capsys.readouterr()
    assert said.err.startswith("warning: `sleep 0.1` is not a stretto script: one plain process, never scaled")
    say("submit", "--plain", "--", "sleep", "0.1")
    assert capsys.readouterr().err == ""
    say("submit", "--", "python", "t.py", "--steps", "1", "--workers", "2")
    hint = "hint: --workers 2 after t.py goes to the script; put it before: stretto submit --workers 2 -- python t.py\n"
    assert capsys.readouterr().err == hint
    say("submit", "--workers", "2", "--", "python", "t.py", "--steps", "1")
    assert capsys.readouterr().err == ""
    with server.client() as client:
        for one in client.jobs():
            client.cancel(one.id)


def test_serve_refuses_the_network_without_tls(tmp_path: Path) -> None:
    program = [
        sys.executable,
        "-c",
        "from stretto.cli.main import main; main()",
        "serve",
        "--host",
        "0.0.0.0",
        "--home",
        str(tmp_path),
    ]
    result = subprocess.run(program, capture_output=True, text=True, check=False, timeout=200)
    assert result.returncode == 2
    assert "--tls-cert" in result.stderr


# -- job files -----------------------------------------------------------------------------------------------------------

GOOD = """
name: digits
envs: {DATA: /data, FLAG: yes, NUMBER: 010}
run: [python, train.py, --lr, 0.10]
elastic: {min: 1, max: 4}
deadline: 2h
"""


def test_a_job_file_keeps_texts_as_they_are_written() -> None:
    spec = parse_job(GOOD, name="job.yaml", now=1000.0)
    assert spec.run == ["python", "train.py", "--lr", "0.10"]
    assert spec.envs == {"DATA": "/data", "FLAG": "yes", "NUMBER": "010"}
    assert spec.deadline == 1000.0 + 7200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("max: 4", "mx: 4"), "job.yaml:5: elastic.mx: unknown key; did you mean 'max'?"),
        (GOOD.replace("envs:", "env:"), "job.yaml:3: env: unknown key; did you mean 'envs'?"),
        (GOOD + "slices: 8\n", "job.yaml:7: slices: unknown key; it belongs under 'elastic:'"),
        (GOOD.replace("max: 4", "max: four"), "job.yaml:5: elastic.max: should be a whole number (it is 'four')"),
        (GOOD.replace("min: 1", "min: 9"), "job.yaml:5: elastic: min=9 is above max=4: lower min or raise max"),
        (GOOD.replace("max: 4", "max: 4, slices: 2"), "slices=2 allows at most 2 workers"),
        (GOOD.replace("name: digits", ""), "name: is missing; add `name: …`"),
        (GOOD.replace("2h", "soon"), "job.yaml:6: deadline: 'soon' is neither a time nor a span"),
        (
            GOOD.replace("digits", "Digits!"),
            "job.yaml:2: name: small letters, digits and hyphens inside, at most 48 (it is 'Digits!')",
        ),
        (GOOD + "name: again\n", "job.yaml:7: name: is there twice"),
        (GOOD.replace("[python", "[&a python"), ""),
        ("x: &a [1]\ny: *a\n", "anchors and aliases"),
        ("- a\n- b\n", "this is a list"),
        ("", "this is empty"),
        ("name: [\n", "job.yaml:2:"),
        ("{" * 10_000, "job.yaml:1: more than 32 brackets"),
        (GOOD.replace("[python, train.py, --lr, 0.10]", "[]"), "run is empty"),
        (GOOD.replace("--lr", ", ".join(["x" * 4000] * 20)), "at most 65536: put long scripts and values into files"),
        (GOOD + "priority: 1000\n", "job.yaml:7: priority: should be at most 100 (it is 1000)"),
        (GOOD + "workers: 4\n", "job.yaml:7: workers: unknown key; the number of workers is `elastic: {min: 4, max: 4}`"),
        (GOOD + "workers: lots\n", "job.yaml:7: workers: unknown key; the number of workers is `elastic: {min: 1, max: 4}`"),
        (
            GOOD.replace("max: 4", "workers: 4"),
            "job.yaml:5: elastic.workers: unknown key; the number of workers is `elastic: {min: 4,",
        ),
        (GOOD + "gpus: 2\n", "job.yaml:7: gpus: unknown key; the number of workers is `elastic: {min: 2, max: 2}`"),
        (GOOD + "command: x\n", "job.yaml:7: command: unknown key; did you mean 'run'?"),
        (GOOD + "cwd: x\n", "job.yaml:7: cwd: unknown key; did you mean 'workdir'?"),
        (
            GOOD + "\tsteps: 3\n",
            "job.yaml:7: this is not YAML: found character '\\t' that cannot start any token: indent with spaces",
        ),
        (
            GOOD.replace("[python, train.py, --lr, 0.10]", "[python, -m, job]"),
            "job.yaml:4: run: `python -m job`: stretto runs script",
        ),
        (
            GOOD.replace("[python, train.py, --lr, 0.10]", "torchrun job.py"),
            "job.yaml:4: run: `torchrun job.py`: stretto takes the",
        ),
        (GOOD.replace("[python, train.py, --lr, 0.10]", "{a: b}"), "job.yaml:4: run: should be an argument list such as [python,"),
    ],
)
def test_a_mistake_in_a_job_file_names_line_key_and_fix(text: str, words: str) -> None:
    if not words:
        assert parse_job(text, name="job.yaml", now=0.0).name == "digits"
        return
    with pytest.raises(UsageError) as caught:
        parse_job(text, name="job.yaml", now=0.0)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "elastic: 4",
        "elastic: {max: four}",
        "elastic: {batch: big}",
        "elastic: {plan: 3}",
        "elastic: {plan: [{step: x, workers: 1}]}",
        "elastic: {autoscale: {efficiency: 2}}",
        "priority: 1000",
        "priority: high",
        "preemptible: maybe",
        "restarts: -1",
        "steps: 1.5",
        "steps: 0",
        "price_limit: .inf",
        "price_limit: .nan",
        "price_limit: -1",
        "workdir: 3",
        "workdir: [a]",
        "envs: [A=1]",
        "envs: {A: {b: 1}}",
        "envs: {1A: x}",
        "resources: {slots: 4}",
        "resources: x",
        "ready_timeout_s: 0",
        "plain: sometimes",
    ],
)
def test_no_word_of_the_validator_reaches_the_user(line: str) -> None:
    key = line.partition(":")[0]
    kept = "\n".join(one for one in GOOD.strip().splitlines() if not one.startswith(key))
    with pytest.raises(UsageError) as caught:
        parse_job(f"{kept}\n{line}\n", name="job.yaml", now=0.0)
    said = str(caught.value)
    assert said.startswith(f"job.yaml:{kept.count(chr(10)) + 2}: {key}")
    for word in ("Input", "input", "valid", "type", "string", "dictionary", "literal", "None"):
        assert word not in said


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_job(GOOD.replace("max: 4", "mx: 4").replace("envs", "env"), name="job.yaml", now=0.0)
    assert len(str(caught.value).splitlines()) == 2
    wrong = GOOD.replace("max: 4", "mx: 4").replace("min: 1", "min: 3").replace("2h", "soon").replace("digits", "Digits!")
    with pytest.raises(UsageError) as caught:
        parse_job(wrong + "priority: 1000\n", name="job.yaml", now=0.0)
    told = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in told] == ["name", "elastic.mx", "deadline", "priority"]
    assert "above max" not in str(caught.value), "min=3 is above the default only because the misspelt max was left out"


def test_a_relative_workdir_is_beside_its_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD + "workdir: code\n")
    assert read_job_file(tmp_path / "job.yaml").workdir == str(tmp_path / "code")


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("1.5h", 5400), ("2d", 172800), ("10 s", 10)])
def test_spans_of_time(text: str, seconds: float) -> None:
    assert deadline(text, now=0.0) == seconds


def test_times() -> None:
    assert deadline("1970-01-01T01:00:00+00:00", now=5.0) == 3600
    assert deadline(99, now=5.0) == 99
