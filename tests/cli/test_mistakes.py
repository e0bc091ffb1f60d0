"""What a new user types wrong: one sentence with the fix, exit code 2, and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.agent.records.folder import RunFolder, write_json

Call = Callable[..., tuple[int, str, str]]

PARSER = [
    (["rnu", "train.py"], "there is no verb 'rnu': did you mean `stretto run`?"),
    (["lgos", "x"], "there is no verb 'lgos': did you mean `stretto logs`?"),
    (["frobnicate"], "there is no verb 'frobnicate': see `stretto --help`"),
    (["train.py", "--lr", "1"], "'train.py' is not a verb: did you mean `stretto run train.py --lr 1`?"),
    (["job.yaml"], "'job.yaml' is not a verb: did you mean `stretto submit job.yaml`?"),
    (["--workers", "4", "run", "job.py"], "stretto itself has no option --workers: options follow the verb"),
    (["run", "--wrokers", "4", "job.py"], "`stretto run` has no option --wrokers: did you mean --workers?"),
    (["run", "--qzx", "job.py"], "`stretto run` has no option --qzx: see `stretto run --help`"),
    (["run", "--threads", "two", "job.py"], "--threads 'two' is not a whole number"),
    (["run", "--grace", "soon", "job.py"], "--grace 'soon' is not a number"),
    (["scale", "x"], "`stretto scale` needs WORKERS (how many workers it shall have): `stretto scale"),
    (["scale", "x", "many"], "WORKERS 'many' is not a whole number"),
    (["scale", "x", "1", "2"], "unexpected extra argument(s) (2)"),
    (["ps", "-o", "xml"], "--output: 'xml' is not one of 'table', 'json', 'yaml'"),
    (["submit"], "`stretto submit` needs job.yaml | -- python train.py"),
    (["submit", "train.py", "--lr", "1"], "put -- before the command: stretto submit -- python train.py --lr"),
    (["tokens", "crate"], "did you mean 'create'?"),
]
SCRIPTS = [
    (["run", "python", "job.py"], "leave `python` out, stretto starts Python by itself: stretto run job.py"),
    (["run", "--workers", "2", "python3", "-u", "job.py", "--lr", "1"], "leave `python3` out, stretto starts Python by itself: "
                                                                       "stretto run job.py --lr 1"),
    (["run", "python", "-m", "pkg.module"], "-m pkg.module: stretto runs script files, not modules: `stretto run pkg/module.py`"),
    (["run", "-m", "pkg.module", "--lr", "1"], "-m pkg.module: stretto runs script files, not modules"),
    (["run", "-m", "pkg.module"], "runpy.run_module('pkg.module', run_name='__main__')"),
    (["run", "python", "-c", "1"], "`python` is not a script: name the training script"),
    (["run", "torchrun", "job.py"], "torchrun is a launcher, not a script"),
    (["run", "accelerate", "launch", "job.py"], "--restart-mode torchrun --nproc-per-node 4 train.py"),
]


@pytest.mark.parametrize(("arguments", "message"), PARSER + SCRIPTS)
def test_a_mistake_is_one_sentence_with_the_fix(call: Call, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "job.py").write_text("")
    code, out, err = call(*arguments)
    assert message in err
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("behind", [["--workers", "4"], ["--lr", "1", "--workers", "4"], ["--workers=4"], ["-w", "4"]])
def test_a_flag_of_ours_behind_the_script_is_hinted_at(call: Call, tmp_path: Path, behind: list[str]) -> None:
    (tmp_path / "job.py").write_text("")
    _, _, err = call("run", "--threads", "0", "job.py", *behind)
    ours = " ".join(behind).removeprefix("--lr 1 ")
    assert err.splitlines()[0] == f"hint: {ours} after job.py goes to the script; put it before: stretto run {ours} job.py"
    assert err.splitlines()[1].startswith("error: --threads 0"), "and nothing else has changed"


@pytest.mark.parametrize(("text", "arguments"), [
    ("parser.add_argument('--workers')", ["--threads", "0", "job.py", "--workers", "4"]),
    ('parser.add_argument("--workers")', ["--threads", "0", "job.py", "--workers", "4"]),
    ("", ["--threads", "0", "--workers", "2", "job.py", "--workers", "4"]),
    ("", ["--threads", "0", "job.py", "--lr", "1", "--help"]),
    ("", ["--threads", "0", "job.py", "--", "--workers", "4"]),
])
def test_a_flag_that_is_the_scripts_own_is_not_hinted_at(call: Call, tmp_path: Path, text: str, arguments: list[str]) -> None:
    (tmp_path / "job.py").write_text(text)
    _, _, err = call("run", *arguments)
    assert "hint" not in err
    assert "--threads 0" in err


@pytest.mark.parametrize("flag", ["--version", "-V", "version"])
def test_the_version_is_told_in_every_usual_way(call: Call, flag: str) -> None:
    code, out, _ = call(flag)
    assert code == 0
    assert out.startswith("stretto ")


def test_an_audit_of_restart_mode_says_what_it_cannot_prove(call: Call, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "old")
    folder.logs.mkdir(parents=True)
    write_json(folder.request, {"name": "old", "script": "ddp.py", "args": [], "least": 1, "most": 4, "restart_mode": True})
    switch = {"kind": "switch", "step": 0, "joined": [], "left": [], "pause_ms": 1.0}
    lines = [{**switch, "number": 1, "workers": 2, "cause": "start"}, {**switch, "number": 2, "workers": 3, "cause": "scale"},
             {"kind": "end", "state": "finished", "digest": None, "steps": 0, "error": None}]
    folder.journal.write_text("".join(json.dumps({"t": 1.0, **line}) + "\n" for line in lines))
    code, out, _ = call("audit", "old")
    assert code == 2, "neither that it holds nor that it does not"
    assert "WRONG" not in out
    assert out.startswith("old: finished; all workers were started anew 1 time\nrestart mode proves nothing about samples")
    told = json.loads(call("audit", "old", "--json")[1])
    assert (told["holds"], told["mode"]) == (None, "restart")
