"""What a new user types wrong: one sentence with the fix, exit code 2, and never a traceback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stretto.agent.records.run_folder import RunFolder, write_json
from stretto.cli.scripts import own_frames

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
    (["scale", "x"], "`stretto scale` needs WORKERS (the new number of workers): `stretto scale"),
    (["scale", "x", "many"], "WORKERS 'many' is not a whole number"),
    (["scale", "x", "1", "2"], "unexpected extra argument(s) (2)"),
    (["ps", "-o", "xml"], "--output: 'xml' is not one of 'table', 'json', 'yaml'"),
    (["submit"], "`stretto submit` needs job.yaml | -- python train.py"),
    (["submit", "train.py", "--lr", "1"], "put -- before the command: stretto submit -- python train.py --lr"),
    (["tokens", "crate"], "did you mean 'create'?"),
]
FILES = [
    (["run", "nowhere.py"], "nowhere.py does not exist: name the training script"),
    (["run", "folder"], "folder is a folder, not a script"),
    (["run", "syntax.py"], "syntax.py:2: SyntaxError: "),
    (["run", "indent.py"], "indent.py:2: IndentationError: "),
    (["run", "binary.py"], "binary.py is not a Python script: it has NUL bytes in it"),
    (["run", "latin.py"], "latin.py:1: SyntaxError: "),
    (["run", "job.yaml"], "job.yaml is a job file, not a script: give it to a server with `stretto submit job.yaml`"),
    (["run", "book.ipynb"], "book.ipynb is a notebook, not a script"),
    (["run", "--restart-mode", "torchrun", "syntax.py"], "syntax.py:2: SyntaxError: "),
    (["run", "--replay", "nobody"], "there is no run 'nobody' in runs (it has no runs)"),
    (["run", "--checkpoint", "job.yaml", "job.py"], "checkpoints cannot be written to"),
    (["run", "--checkpoint", "foo://x", "job.py"], "--checkpoint foo://x cannot be used"),
    (["ps", "--runs", "job.yaml"], "--runs job.yaml is not a folder"),
    (["ps", "--runs", "nowhere"], "--runs nowhere does not exist"),
    (["submit", "folder"], "folder is a folder: name a job file, or a command after --"),
    (["submit", "nowhere.yaml"], "nowhere.yaml cannot be read: No such file or directory"),
    (["submit", "empty.yaml"], "empty.yaml:1: a job file is a list of `key: value` lines, this is empty"),
    (["submit", "job.yaml"], "job.yaml:1: run: is missing; add `run: …`"),
    (["submit", "job.yaml", "more"], "job.yaml is a job file, what follows it is not used: more"),
    (["simulate", "nowhere.csv"], "no workload at nowhere.csv"),
]
NUMBERS = [
    (["run", "--workers", "", "job.py"], "--workers '' is neither a number nor a range"),
    (["run", "--workers", "1:", "job.py"], "--workers '1:' is neither a number nor a range"),
    (["run", "--workers", "1-4", "job.py"], "--workers '1-4' is neither a number nor a range: write --workers 2 or --workers 1:4"),
    (["run", "--workers", "2.5", "job.py"], "--workers '2.5' is neither a number nor a range"),
    (["run", "--checkpoint", "c", "--checkpoint-every", "soon", "job.py"], "--checkpoint-every 'soon' is neither"),
    (["run", "--checkpoint", "c", "--keep", "0", "job.py"], "--keep 0 is too small"),
    (["run", "--checkpoint-every", "5", "job.py"], "says how often, but not where to: add --checkpoint DIR"),
    (["run", "--autoscale", "bogus", "--workers", "1:4", "job.py"], "--autoscale 'bogus'"),
    (["run", "--stragglers", "evict", "job.py"], "--stragglers 'evict' is not one of rebalance, replace, ignore"),
    (["run", "--restart-mode", "mpi", "job.py"], "--restart-mode 'mpi' is unknown: there is torchrun"),
    (["run", "--nproc-per-node", "2", "job.py"], "add --restart-mode torchrun, or use --workers"),
    (["run", "--store", "redis://x", "--job", "a", "job.py"], "--store 'redis://x' is no store: write etcd://"),
    (["run", "--store", "tcp://x:1", "job.py"], "needs the job's name, the same on every host: --job NAME"),
    (["run", "--store", "tcp://x:1", "--job", "a", "job.py"], "a tcp store needs a secret that all agents of the job know"),
    (["run", "--job", "a", "job.py"], "say which store they share with --store"),
    (["run", "--hosts", "", "job.py"], "--hosts '' must name at least one host"),
    (["scale", "x", "-1"], "-1 is a negative number: `stretto scale` takes none"),
    (["submit", "--deadline", "soon", "--", "sleep", "1"], "--deadline 'soon' is neither a time nor a span: write 2h, 30m"),
    (["submit", "--env", "X", "--", "sleep", "1"], "--env 'X' has no '=': write --env KEY=VALUE"),
    (["submit", "--env", "=x", "--", "sleep", "1"], "--env '=x' has no name before '=': write --env KEY=VALUE"),
    (["submit", "--workers", "0", "--", "sleep", "1"], "--workers 0 allows no number"),
    (["serve", "--port", "99999"], "--port 99999 is out of range: 0 (any) to 65535"),
    (["serve", "--slots", "0"], "--slots 0 is out of range: 1 to 4096"),
    (["serve", "--quota", "0"], "--quota 0 lets nobody run anything: give at least 1, or leave it out"),
    (["serve", "--price", "-1"], "--price -1 is below 0"),
    (["serve", "--interval", "0"], "--interval 0 and --policy-timeout 5 must be above 0 s"),
    (["serve", "--host", "0.0.0.0"], "would send tokens over the network in the clear"),
    (["serve", "--home", "job.yaml"], "choose another with --home DIR"),
    (["serve", "--home", "h", "--database", "nonsense"], "--database 'nonsense' is not a URL"),
    (["serve", "--home", "h", "--policy", "nope"], "--policy 'nope' does not exist: choose one of "),
]
NAMES = [
    *(
        ([verb, "nobody", *more], "there is no run 'nobody' in runs (it has no runs)")
        for verb, *more in (
            ("show",),
            ("explain",),
            ("logs",),
            ("stop",),
            ("drain",),
            ("audit",),
            ("plot",),
            ("checkpoints",),
            ("resume",),
            ("export", "out.safetensors"),
            ("scale", "2"),
        )
    ),
    (["attach", "nobody"], "no job 'nobody' was started from here with --hosts"),
    *(
        ([*words], "no job server is known: there is no login in ")
        for words in (
            ("pause", "x"),
            ("cancel", "x"),
            ("rm", "x"),
            ("events", "x"),
            ("nodes",),
            ("policies",),
            ("tokens", "list"),
            ("top",),
            ("submit", "--", "python", "job.py"),
        )
    ),
    (["nodes", "--server", "localhost:1"], "no token is known for the job server localhost:1"),
]
SCRIPTS = [
    (["run", "python", "job.py"], "leave `python` out, stretto starts Python by itself: stretto run job.py"),
    (
        ["run", "--workers", "2", "python3", "-u", "job.py", "--lr", "1"],
        "leave `python3` out, stretto starts Python by itself: stretto run job.py --lr 1",
    ),
    (["run", "python", "-m", "pkg.module"], "-m pkg.module: stretto runs script files, not modules: `stretto run pkg/module.py`"),
    (["run", "-m", "pkg.module", "--lr", "1"], "-m pkg.module: stretto runs script files, not modules"),
    (["run", "-m", "pkg.module"], "runpy.run_module('pkg.module', run_name='__main__')"),
    (["run", "python", "-c", "1"], "`python` is not a script: name the training script"),
    (["run", "torchrun", "job.py"], "torchrun is a launcher, not a script"),
    (["run", "accelerate", "launch", "job.py"], "--restart-mode torchrun --nproc-per-node 4 train.py"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all kinds of files, and no server anywhere."""
    for name in ("STRETTO_SERVER", "STRETTO_TOKEN", "STRETTO_RUNS", "STRETTO_STORE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path / "nobody-home"))
    for name, text in {
        "job.py": "",
        "syntax.py": "x = 1\ndef f(:\n",
        "indent.py": "if 1:\nx = 1\n",
        "binary.py": "\0\1",
        "job.yaml": "name: a\n",
        "empty.yaml": "",
        "book.ipynb": "{}",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.py").write_bytes("x = 'ä'\n".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(("arguments", "message"), [*PARSER, *FILES, *NUMBERS, *NAMES, *SCRIPTS])
def test_a_mistake_is_one_sentence_with_the_fix(call: Call, place: Path, arguments: list[str], message: str) -> None:
    code, out, err = call(*arguments)
    assert message in err
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert not (place / "runs").exists() or not list((place / "runs").iterdir()), "nothing is left of it"


def test_a_name_that_was_misspelt_is_guessed(call: Call, place: Path) -> None:
    folder = RunFolder(place / "runs" / "digits-1")
    folder.logs.mkdir(parents=True)
    write_json(folder.request, {"name": "digits-1", "script": "digits.py", "args": [], "least": 1, "most": 4})
    assert "did you mean 'digits-1'?" in call("show", "digts-1")[2]
    assert "did you mean 'digits'?" in call("show", "digits.py")[2]
    (folder.logs / "worker-0.log").write_text("")
    assert "has no log of worker 'w9': it has w0, and agent" in call("logs", "digits-1", "--worker", "w9")[2]
    assert "--output folder is a folder: name the picture's file" in call("plot", "digits-1", "-o", "folder")[2]


def test_damaged_files_are_named_and_hide_nothing_else(call: Call, place: Path) -> None:
    for name, text in {"whole": '{"name": "whole", "script": "a.py"}', "odd": '{"name": "odd"}', "spoilt": "{"}.items():
        (place / "runs" / name / "logs").mkdir(parents=True)
        (place / "runs" / name / "run.json").write_text(text)
    (place / "runs" / "whole" / "result.json").write_text("nonsense")
    code, out, err = call("ps")
    assert (code, err) == (0, "")
    assert {tuple(line.split()[:2]) for line in out.splitlines()[1:]} == {("odd", "lost"), ("spoilt", "lost"), ("whole", "damaged")}
    for arguments, message in (
        (["show", "whole"], "runs/whole/result.json is not valid JSON"),
        (["show", "spoilt"], "runs/spoilt/run.json is not valid JSON"),
        (["checkpoints", "odd"], "the run.json of 'odd' names no script"),
        (["resume", "odd"], "the run.json of 'odd' names no script"),
    ):
        code, _, err = call(*arguments)
        assert (code, len(err.splitlines())) == (2, 1)
        assert message in err


def test_a_damaged_login_is_named_and_hides_no_local_runs(call: Call, place: Path) -> None:
    (place / "nobody-home").mkdir()
    (place / "nobody-home" / "login.json").write_text('{"url": 3}')
    assert call("ps")[:2] == (0, "no runs in runs\n")
    code, _, err = call("nodes")
    assert (code, "login.json is damaged: start `stretto serve` again" in err) == (2, True)


def test_a_folder_that_is_gone_is_told(call: Call, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "gone").mkdir()
    monkeypatch.chdir(place / "gone")
    (place / "gone").rmdir()
    code, _, err = call("run", "job.py")
    assert (code, "the current folder does not exist any more" in err) == (2, True)
    monkeypatch.chdir(place)


@pytest.mark.parametrize(
    ("server", "token", "message", "code"),
    [
        ("127.0.0.1:1", "x", "the job server '127.0.0.1:1' is not a URL: write http://127.0.0.1:1", 2),
        ("http://127.0.0.1:1", "x\u00e4", "the token has characters that no token has: set STRETTO_TOKEN", 2),
        ("http://127.0.0.1:1", "x", "cannot be reached ([Errno 111] Connection refused): is `stretto serve` running?", 1),
        ("http://127.0.0.1:1", "", "no token is known for the job server http://127.0.0.1:1: set STRETTO_TOKEN", 2),
        ("other", "x", "answered 404, and not as a stretto job server does: is the address right?", 1),
        ("https", "x", "is it http://, not https://?", 1),
    ],
)
def test_a_server_that_cannot_be_asked_is_told_with_the_fix(
    call: Call, place: Path, monkeypatch: pytest.MonkeyPatch, server: str, token: str, message: str, code: int
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{other.server_port}"
        monkeypatch.setenv("STRETTO_SERVER", {"other": f"http://{address}", "https": f"https://{address}"}.get(server, server))
        monkeypatch.setenv("STRETTO_TOKEN", token)
        found, _, err = call("nodes")
        other.shutdown()
    assert message in err
    assert (found, len(err.splitlines())) == (code, 1)


def test_a_port_that_is_in_use_is_told(call: Call, place: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        code, _, err = call("serve", "--home", "h", "--port", str(other.server_port))
    assert code == 2
    assert f"127.0.0.1:{other.server_port} cannot be listened on: Address already in use: choose another with --port" in err


class Other(BaseHTTPRequestHandler):
    """A web server that is not ours."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_traceback_begins_in_the_script() -> None:
    text = """Traceback (most recent call last):
  File "/x/stretto/train/entry/script_runner.py", line 57, in _run
    runpy.run_path(path, run_name="__main__")
  File "<frozen runpy>", line 291, in run_path
  File "train.py", line 1, in <module>
    1/0
    ~^~
ZeroDivisionError: division by zero
"""
    assert own_frames(text).splitlines() == [
        "Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "    1/0",
        "    ~^~",
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize("behind", [["--workers", "4"], ["--lr", "1", "--workers", "4"], ["--workers=4"], ["-w", "4"]])
def test_a_flag_of_ours_behind_the_script_is_hinted_at(call: Call, tmp_path: Path, behind: list[str]) -> None:
    (tmp_path / "job.py").write_text("")
    _, _, err = call("run", "--threads", "0", "job.py", *behind)
    ours = " ".join(behind).removeprefix("--lr 1 ")
    assert err.splitlines()[0] == f"hint: {ours} after job.py goes to the script; put it before: stretto run {ours} job.py"
    assert err.splitlines()[1].startswith("error: --threads 0"), "and nothing else has changed"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("parser.add_argument('--workers')", ["--threads", "0", "job.py", "--workers", "4"]),
        ('parser.add_argument("--workers")', ["--threads", "0", "job.py", "--workers", "4"]),
        ("", ["--threads", "0", "--workers", "2", "job.py", "--workers", "4"]),
        ("", ["--threads", "0", "job.py", "--lr", "1", "--help"]),
        ("", ["--threads", "0", "job.py", "--", "--workers", "4"]),
    ],
)
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
    lines = [
        {**switch, "number": 1, "workers": 2, "cause": "start"},
        {**switch, "number": 2, "workers": 3, "cause": "scale"},
        {"kind": "end", "state": "finished", "digest": None, "steps": 0, "error": None},
    ]
    folder.journal.write_text("".join(json.dumps({"t": 1.0, **line}) + "\n" for line in lines))
    code, out, _ = call("audit", "old")
    assert code == 2, "neither that it holds nor that it does not"
    assert "WRONG" not in out
    assert out.startswith("old: finished; all workers were started anew 1 time\nrestart mode proves nothing about samples")
    told = json.loads(call("audit", "old", "--json")[1])
    assert (told["holds"], told["mode"]) == (None, "restart")
