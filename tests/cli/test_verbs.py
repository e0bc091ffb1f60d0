"""The command line without a running job: help, mistakes, and what is said of runs that are over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment

from stretto.agent.records.run_folder import RunFolder, write_json
from stretto.cli import main as command_line
from stretto.cli.verbs import VERBS
from stretto.core.errors import UsageError

OWN = ("run", "ps", "scale", "logs", "stop", "show", "audit", "plot", "version")


def past(runs: Path, name: str, *, state: str | None = "finished", lines: list[dict[str, object]] | None = None) -> RunFolder:
    """The folder of a run that is over, or (without a state) of one whose agent was killed."""
    folder = RunFolder(runs / name)
    folder.logs.mkdir(parents=True)
    write_json(folder.request, {"name": name, "script": "train.py", "args": ["--lr", "1"], "least": 1, "most": 4})
    if state is not None:
        write_json(
            folder.result,
            {
                "name": name,
                "state": state,
                "steps": 3,
                "digest": "ab" * 32,
                "metrics": {"loss": 0.5},
                "restarts": 0,
                "seconds": 1.5,
                "error": None,
            },
        )
    folder.journal.write_text("".join(json.dumps({"t": 100.0 + at, **line}) + "\n" for at, line in enumerate(lines or good())))
    return folder


def good() -> list[dict[str, object]]:
    commits = [
        {
            "kind": "commit",
            "step": step,
            "epoch": 0,
            "loader": 0,
            "first": step * 4,
            "count": 4,
            "batch": 4,
            "roster": 1,
            "workers": 1 + step % 2,
            "metrics": {"loss": 1.0 / (step + 1), "accuracy": 0.5},
        }
        for step in range(3)
    ]
    return [
        {"kind": "loader", "loader": 0, "samples": 13, "batch": 4, "slices": 4, "tail": "drop", "train": True, "seed": 0},
        *commits[:2],
        {"kind": "switch", "number": 2, "step": 2, "workers": 2, "joined": ["w1"], "left": [], "cause": "join", "pause_ms": 12.5},
        {"kind": "event", "what": "died", "worker": "w1", "agent": None, "text": "signal 9 (SIGKILL)"},
        commits[2],
        {"kind": "epoch", "epoch": 0, "loader": 0},
        {"kind": "end", "state": "finished", "digest": "ab" * 32, "steps": 3, "error": None},
    ]


def test_help_lists_every_verb_and_loads_neither_torch_nor_any_verb() -> None:
    program = (
        "import sys\nfrom stretto.cli.main import main\nsys.argv = ['stretto', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'fastapi', 'scipy', 'stretto.train', 'stretto.cli.run'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for verb in VERBS:
        assert f" {verb} " in done.stdout


@pytest.mark.parametrize("verb", OWN)
def test_every_verb_explains_itself(call, verb: str) -> None:
    code, out, _ = call(verb, "--help")
    assert code == 0
    assert "Usage" in out
    assert VERBS[verb].help.split(":")[0] in " ".join(out.split())


def test_what_belongs_to_several_hosts_or_to_the_server_stands_apart_in_the_help(call) -> None:
    _, out, _ = call("scale", "--help")
    plain, _, rest = out.partition("Several hosts:")
    hosts, _, server = rest.partition("Job server:")
    assert "--runs" in plain
    assert "--store-token" in hosts
    assert "--pin" in server


def test_running_needs_no_torch_in_the_agent() -> None:
    program = "import sys, stretto.cli.run\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", program], env=environment(), timeout=120, check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.py"], "nowhere.py does not exist: name the training script"),
        (["run", "."], "is a folder, not a script"),
        (["run", "--workers", "many", "job.py"], "--workers 'many' is neither a number nor a range: write --workers 2 or"),
        (["run", "--workers", "4:2", "job.py"], "--workers 4:2 is not a range of workers"),
        (["run", "--workers", "0", "job.py"], "--workers 0:0 is not a range of workers: the fewest must be at least 1"),
        (["run", "--workers", "1:3", "--start", "5", "job.py"], "--start 5 is outside --workers 1:3"),
        (["run", "--threads", "0", "job.py"], "--threads 0 is too small: it must be at least 1"),
        (["run", "--grace", "0", "job.py"], "--grace 0 is too short"),
        (["run", "--name", "../x", "job.py"], "--name '../x' cannot name a run"),
        (["run", "--runs", "job.py", "job.py"], "the run folder cannot be made in job.py"),
        (["run", "--runs", "/proc/here", "job.py"], "choose another place with --runs DIR"),
        (["scale", "nobody", "2"], "there is no run 'nobody' in runs (it has no runs)"),
        (["audit", "nobody"], "there is no run 'nobody'"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_fix_and_exit_code_2(call, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "job.py").write_text("")
    code, _, err = call(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_folder_that_may_not_be_written_is_said(call, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "job.py").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, err = call("run", "--runs", "locked", "job.py")
    assert code == 2
    assert "Permission denied" in err


@pytest.mark.parametrize("runs", ["/proc/runs", "occupied", "occupied/runs"])
def test_a_folder_that_cannot_be_made_is_said(call, tmp_path: Path, runs: str) -> None:
    (tmp_path / "job.py").write_text("")
    (tmp_path / "occupied").write_text("mine")
    code, _, err = call("run", "--runs", runs, "job.py")
    assert code == 2
    assert f"the run folder cannot be made in {runs}: " in err
    assert "choose another place with --runs DIR" in err
    assert (tmp_path / "occupied").read_text() == "mine"


def test_a_name_is_used_once_and_the_first_run_is_left_alone(call, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    folder = past(tmp_path / "runs", "twice")
    before = folder.journal.read_bytes()
    code, _, err = call("run", "--name", "twice", "job.py")
    assert code == 2
    assert "there is a run named 'twice' in runs already: choose another --name" in err
    assert folder.journal.read_bytes() == before


def test_a_run_that_is_over_cannot_be_scaled_or_stopped(call, tmp_path: Path) -> None:
    past(tmp_path / "runs", "old")
    for arguments in (("scale", "old", "2"), ("stop", "old")):
        code, _, err = call(*arguments)
        assert code == 2
        assert "run 'old' does not run any more: it is finished" in err


def test_a_run_whose_agent_was_killed_is_lost_and_says_where_its_journal_is(call, tmp_path: Path) -> None:
    past(tmp_path / "runs", "dead", state=None)
    assert json.loads(call("ps", "--json")[1])[0]["state"] == "lost"
    code, _, err = call("scale", "dead", "2")
    assert code == 2
    assert "its agent is gone and left no result" in err
    assert "journal.jsonl" in err


def test_ps_shows_runs_and_says_when_there_are_none(call, tmp_path: Path) -> None:
    assert "no runs in runs" in call("ps")[1]
    past(tmp_path / "runs", "one")
    past(tmp_path / "runs", "two", state="failed")
    _, out, _ = call("ps")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["one", "finished"], ["two", "failed"]]
    assert [row["name"] for row in json.loads(call("ps", "--json")[1])] == ["one", "two"]


def test_show_tells_what_happened(call, tmp_path: Path) -> None:
    past(tmp_path / "runs", "one")
    _, out, _ = call("show", "one")
    for part in ("train.py --lr 1", "ab" * 32, "join", "12.5", "w1", "signal 9 (SIGKILL)"):
        assert part in out
    told = json.loads(call("show", "one", "--json")[1])
    assert told["switches"][0]["pause_ms"] == 12.5
    assert told["asked"]["most"] == 4


def test_audit_exits_0_when_it_holds_and_1_when_it_does_not(call, tmp_path: Path) -> None:
    past(tmp_path / "runs", "right")
    past(tmp_path / "runs", "wrong", lines=[line for line in good() if line.get("step") != 1])
    code, out, _ = call("audit", "right")
    assert (code, "holds: every sample" in out) == (0, True)
    code, out, _ = call("audit", "wrong")
    assert code == 1
    assert "WRONG: step 2 follows step 0: the numbers have a gap" in out
    assert "WRONG: epoch 0 of loader 0: samples 4..7 are in no step" in out
    code, out, _ = call("audit", "wrong", "--json")
    assert code == 1
    assert json.loads(out)["holds"] is False


def test_a_run_is_found_by_its_path_too(call, tmp_path: Path) -> None:
    past(tmp_path / "elsewhere", "one")
    assert call("audit", str(tmp_path / "elsewhere" / "one"))[0] == 0
    assert call("audit", "--runs", "elsewhere", "one")[0] == 0


def test_by_its_scripts_name_the_last_run_of_a_script_is_found(call, tmp_path: Path) -> None:
    for name in ("train-2", "train-10", "train-other", "train-10-2"):
        past(tmp_path / "runs", name)
    assert call("audit", "train")[1].startswith("train-10:")
    past(tmp_path / "runs", "train")
    assert call("audit", "train")[1].startswith("train:")
    code, _, err = call("audit", "trai")
    assert code == 2
    assert "there is no run 'trai'" in err


def test_plot_draws_a_png_of_one_or_more_runs(call, tmp_path: Path) -> None:
    past(tmp_path / "runs", "one")
    past(tmp_path / "runs", "two")
    code, out, err = call("plot", "one", "two", "-o", "both.png")
    assert code == 0, err
    assert out.strip() == "both.png"
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "both.png").stat().st_size > 10_000


def test_curves_over_each_other_are_said_to_be_one_or_where_they_part() -> None:
    from stretto.cli.plot import likeness

    one, longer, other = {0: 0.5, 1: 0.1}, {0: 0.5, 1: 0.1, 2: 0.3}, {0: 0.5, 1: 0.1 + 2**-54, 2: float("nan")}
    assert likeness([one]) == ""
    assert likeness([one, longer]) == "the same values at all 2 steps"
    assert likeness([longer, other]) == "other values from step 1 on"
    assert likeness([{2: float("nan")}, other]) == "the same values at all 1 steps"
    assert likeness([one, {7: 1.0}]) == "no step in common"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--metric", "speed"], "no logged value 'speed': it has loss, accuracy"), (["-o", "/nowhere/p.png"], "cannot be written")],
)
def test_plot_says_what_is_wrong(call, tmp_path: Path, arguments: list[str], message: str) -> None:
    past(tmp_path / "runs", "one")
    code, _, err = call("plot", "one", *arguments)
    assert code == 2
    assert message in err


def test_plot_of_a_run_without_steps_says_so(call, tmp_path: Path) -> None:
    past(tmp_path / "runs", "none", lines=[{"kind": "event", "what": "started"}])
    assert "has not committed a step yet" in call("plot", "none")[2]


def test_logs_are_shown_with_the_workers_names(call, tmp_path: Path) -> None:
    folder = past(tmp_path / "runs", "one")
    folder.log(0).write_bytes(b"first\nno end")
    folder.log(10).write_bytes(b"tenth\n")
    folder.log(2).write_bytes(b"\xff second\n")
    assert call("logs", "one")[1].splitlines() == ["[w0] first", "[w0] no end", "[w2] \ufffd second", "[w10] tenth"]
    assert call("logs", "one", "--worker", "w10")[1] == "[w10] tenth\n"
    assert call("logs", "one", "--worker", "2", "-f")[1].startswith("[w2]")
    code, _, err = call("logs", "one", "--worker", "7")
    assert code == 2
    assert "no log of worker '7': it has w0, w2, w10, and agent" in err


def test_a_verb_that_lacks_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "stretto.cli.plot", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'stretto\[plot\]'"):
        command_line.load("plot")


def test_version_for_people_and_for_scripts(call) -> None:
    assert call("version")[1].startswith("stretto ")
    assert set(json.loads(call("version", "--json")[1])) == {"stretto", "python", "torch"}
