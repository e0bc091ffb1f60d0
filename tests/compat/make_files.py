"""Writes tests/compat/files/VERSION/: run folders, checkpoints and a server's home, as that version of stretto leaves them.

    git worktree add --detach /tmp/old 194d847
    python tests/compat/make_files.py /tmp/old/src 0.1.0
    git worktree add --detach /tmp/present b1dab54
    python tests/compat/make_files.py /tmp/present/src 0.2.0

194d847 is the last commit before work on 0.2.0 began, b1dab54 the last one before work on 0.3.0. Everything happens through that
version's command line, on real processes, in /tmp/compat: a neutral path that the files may name. Other paths and names of the
machine are replaced. It takes two minutes for each version.

    runs/finished      scaled from 1 to 3 workers, one worker killed, then everything killed, resumed, finished
    runs/interrupted   everything killed after a checkpoint, not resumed
    runs/pair-h1, -h2  one job on two hosts
    saved/             the checkpoints of the first two
    home/              a server whose jobs were paused, resumed, killed and resumed; failed; cancelled; and one that is paused
    expected.json      digests, and how many steps there are
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bits"))

from record_digests import SETTINGS  # noqa: E402

PLACE = Path("/tmp/compat")
GUARD_S = 180.0
EPOCHS = 12
PAUSE_S = "0.03"
"""For each slice: slow enough that a kill comes before the end."""
SECRET = "0123456789abcdef0123456789abcdef"


def until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.05)
    raise SystemExit(f"waited {GUARD_S:g} s in vain: line {sys._getframe(1).f_lineno}")


class Version:
    """The command line of one version."""

    def __init__(self, source: Path, number: str, names: Path) -> None:
        """`names` holds the metadata with this version's number: the installed package's would win otherwise."""
        info = names / f"stretto-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stretto\nVersion: {number}\n")
        self.environment = {
            **os.environ,
            **SETTINGS,
            "PYTHONPATH": f"{names}:{source}",
            "STRETTO_HOME": str(PLACE / "home"),
            "STRETTO_STORE_TOKEN": SECRET,
            "COLUMNS": "200",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "stretto.cli.main", *words]
        out = subprocess.PIPE if words[0] == "serve" else subprocess.DEVNULL
        return subprocess.Popen(command, cwd=PLACE, env=self.environment, text=True, stdout=out)

    def call(self, *words: str) -> str:
        process = subprocess.run(
            [sys.executable, "-m", "stretto.cli.main", *words],
            cwd=PLACE, env=self.environment, text=True, capture_output=True, timeout=GUARD_S, check=False,
        )  # fmt: skip
        if process.returncode:
            raise SystemExit(f"stretto {' '.join(words)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
        return process.stdout

    def plain(self, epochs: int) -> str:
        """The digest under plain python."""
        command = [sys.executable, "train.py", str(epochs), "0"]
        return subprocess.check_output(command, cwd=PLACE, env=self.environment, text=True).split()[1]


def journal(run: str) -> list[dict[str, Any]]:
    path = PLACE / "runs" / run / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


def steps(run: str) -> int:
    """Committed so far."""
    return max((line["step"] + 1 for line in journal(run) if line["kind"] == "commit"), default=0)


def lines(run: str, kind: str, **values: object) -> list[dict[str, Any]]:
    return [line for line in journal(run) if line["kind"] == kind and values.items() <= line.items()]


def pids(run: str) -> dict[str, int]:
    started = lines(run, "event", what="started")
    return {line["worker"]: int(re.search(r"pid (\d+)", line["text"])[1]) for line in started}  # type: ignore[index]


def kill_all(run: str, agent: subprocess.Popen[str]) -> None:
    agent.kill()
    agent.wait()
    for pid in pids(run).values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def begin(version: Version, name: str, *options: str) -> subprocess.Popen[str]:
    saved = ("--checkpoint", f"saved/{name}", "--checkpoint-every", "3")
    return version.start(
        "run", "--runs", "runs", "--name", name, "--no-tensorboard", *saved, *options, "train.py", str(EPOCHS), PAUSE_S
    )


def finished(version: Version) -> None:
    agent = begin(version, "finished", "--workers", "1:3", "--digest-every", "5")
    until(lambda: steps("finished") >= 2)
    version.call("scale", "finished", "3", "--runs", "runs")
    until(lambda: lines("finished", "switch", workers=3))
    os.kill(pids("finished")["w1"], signal.SIGKILL)
    until(lambda: lines("finished", "event", what="died"))
    saved = steps("finished")
    until(lambda: [line for line in lines("finished", "checkpoint") if line["step"] > saved + 3])
    until(lambda: steps("finished") % 3 == 2)  # some steps are lost
    kill_all("finished", agent)
    version.call("resume", "finished", "--runs", "runs", "--workers", "2")


def interrupted(version: Version) -> None:
    agent = begin(version, "interrupted", "--workers", "2")
    until(lambda: steps("interrupted") >= 8)
    kill_all("interrupted", agent)


def pair(version: Version) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        store = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    agents = [
        version.start("run", "--runs", "runs", "--name", f"pair-{host}", "--no-tensorboard", "--store", store, "--job", "pair",
                      "--host", host, "--interface", address, "--slots", "1", "--workers", "2", "train.py", "4", PAUSE_S)
        for host, address in (("h1", "127.0.0.1"), ("h2", "127.0.0.2"))
    ]  # fmt: skip
    for agent in agents:
        if agent.wait(GUARD_S):
            raise SystemExit("the job on two hosts failed")


def submit(version: Version, name: str, *args: str) -> str:
    """A job of the server; its id."""
    path = PLACE / "job.yaml"
    run = ["python", "train.py", *args]
    job = {"name": name, "run": run, "workdir": str(PLACE), "envs": SETTINGS, "elastic": {"min": 1, "max": 2}}
    path.write_text(json.dumps(job))
    return json.loads(version.call("submit", str(path), "-o", "json"))["id"]


def server(version: Version) -> dict[str, str]:
    """Fills a server's home; the jobs' ids by name."""
    process = version.start("serve", "--home", "home", "--port", "0", "--slots", "2", "--interval", "1", "--cooldown", "0")
    try:
        until(lambda: (PLACE / "home" / "login.json").exists())
        until(lambda: _answers(version))
        version.call("tokens", "create", "reader", "--scope", "viewer")

        def job(name: str) -> dict[str, Any]:
            return json.loads(version.call("show", ids[name], "-o", "json"))

        def at(name: str, step: int) -> bool:
            return job(name)["progress"]["step"] >= step

        ids = {"resumed": submit(version, "resumed", str(EPOCHS), PAUSE_S)}
        until(lambda: at("resumed", 6))
        version.call("pause", ids["resumed"])
        until(lambda: job("resumed")["state"] == "paused")
        version.call("resume", ids["resumed"])
        before = job("resumed")["progress"]["step"]
        until(lambda: at("resumed", before + 4))
        for path in (PLACE / "home").glob("jobs/*/life-*/keeper.json"):
            if not (path.parent / "exit.json").exists():
                os.kill(json.loads(path.read_text())["child"], signal.SIGKILL)
        until(lambda: job("resumed")["state"] == "finished")
        ids["failed"] = submit(version, "failed", "no-number", "0")
        until(lambda: job("failed")["state"] == "failed")
        ids["paused"] = submit(version, "paused", str(EPOCHS), PAUSE_S)
        until(lambda: at("paused", 4))
        version.call("pause", ids["paused"])
        until(lambda: job("paused")["state"] == "paused")
        ids["cancelled"] = submit(version, "cancelled", "500", PAUSE_S)
        until(lambda: at("cancelled", 3))
        version.call("cancel", ids["cancelled"])
        until(lambda: job("cancelled")["state"] == "cancelled")
        return ids
    finally:
        process.terminate()
        process.wait(60)


def _answers(version: Version) -> bool:
    try:
        return bool(version.call("ps", "-o", "json"))
    except SystemExit:
        return False


def clean(folder: Path, source: Path) -> None:
    """Leaves what a later version reads, with neutral names."""
    for name in ("*.lock", ".agent", "control.json", "*-wal", "*-shm", "__pycache__", "tensorboard"):
        for path in list(folder.rglob(name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    places = {sys.executable: "/usr/bin/python3", sys.prefix: "/usr", sys.base_prefix: "/usr", str(source): "/usr/lib/stretto"}
    words = {re.escape(place): neutral for place, neutral in places.items()} | {rf"\b{re.escape(socket.gethostname())}\b": "host"}
    for path in folder.rglob("*"):
        if path.suffix in {".json", ".jsonl", ".log", ".yaml"} and not path.is_symlink() and path.name != "manifest.json":
            path.write_text(_replaced(path.read_text(), words))
    for path in folder.rglob("*.db"):
        _clean_database(path, words)


def _replaced(text: str, words: dict[str, str]) -> str:
    for pattern, neutral in words.items():
        text = re.sub(pattern, neutral, text)
    return text


def _clean_database(path: Path, words: dict[str, str]) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.create_function("neutral", 1, lambda text: _replaced(text, words) if isinstance(text, str) else text)
        for table, column in list(_text_columns(database)):
            database.execute(f'update "{table}" set "{column}" = neutral("{column}")')
        database.execute("pragma wal_checkpoint(truncate)")
        database.execute("pragma journal_mode = delete")
        database.execute("vacuum")


def _text_columns(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    for (table,) in database.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite%'").fetchall():
        for column in database.execute(f'pragma table_info("{table}")').fetchall():
            if column[2].upper().startswith(("TEXT", "VARCHAR", "JSON")):
                yield table, column[1]


def main(source: Path, number: str) -> None:
    PLACE.mkdir()
    names = tempfile.mkdtemp()
    try:
        shutil.copy(HERE / "train.py", PLACE)
        version = Version(source.resolve(), number, Path(names))
        if number not in version.call("version"):
            raise SystemExit(f"{source} is not {number}")
        finished(version)
        interrupted(version)
        pair(version)
        ids = server(version)
        out = HERE / "files" / number
        shutil.rmtree(out, ignore_errors=True)
        for name in ("runs", "saved", "home"):
            shutil.copytree(PLACE / name, out / name, symlinks=True)
        clean(out, source.resolve())
        expected = {
            "version": number,
            "epochs": EPOCHS,
            "digest": version.plain(EPOCHS),
            "pair_digest": version.plain(4),
            "jobs": ids,
        }
        (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    finally:
        shutil.rmtree(PLACE)
        shutil.rmtree(names)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
