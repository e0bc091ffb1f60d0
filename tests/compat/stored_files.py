"""Copies of the files that an older version wrote, and the present command line and server on them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bits"))

import record_digests  # noqa: E402

VERSIONS = ("0.1.0", "0.2.0")
PLACE = "/tmp/compat"
"""Where the files were written; see make_files.py."""
GUARD_S = 240.0
"""Only against hanging for ever."""


@dataclass(frozen=True)
class Stored:
    """What one version wrote, copied to a folder of the test's own: paths in it lead there."""

    version: str
    folder: Path

    @cached_property
    def expected(self) -> dict[str, Any]:
        return json.loads((self.folder / "expected.json").read_text())

    @property
    def environment(self) -> dict[str, str]:
        return {**record_digests.environment(), "STRETTO_HOME": str(self.folder / "home")}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stretto.cli.main", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=GUARD_S, check=False
        )

    def output(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, f"stretto {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.output(*words))

    def journal(self, run: str) -> Path:
        return self.folder / "runs" / run / "journal.jsonl"

    def result(self, run: str) -> dict[str, Any]:
        return json.loads((self.folder / "runs" / run / "result.json").read_text())


def copied(version: str, folder: Path) -> Stored:
    shutil.copytree(HERE / "files" / version, folder, dirs_exist_ok=True)
    shutil.copy(HERE / "train.py", folder)
    for path in folder.rglob("*.json*"):
        if path.name != "manifest.json":
            path.write_text(path.read_text().replace(PLACE, str(folder)))
    with contextlib.closing(sqlite3.connect(folder / "home" / "server.db", isolation_level=None)) as database:
        database.execute("update jobs set document = replace(document, ?, ?)", (PLACE, str(folder)))
        database.execute("update events set data = replace(data, ?, ?)", (PLACE, str(folder)))
    return Stored(version, folder)


class Server:
    """`stretto serve` on a copied home. Answers what its API answers to the token that was saved there."""

    def __init__(self, stored: Stored) -> None:
        home = stored.folder / "home"
        self._login = home / "login.json"
        self._token = json.loads(self._login.read_text())["token"]
        self._login.write_text(json.dumps({"url": "", "token": self._token}))
        self._errors = home / "errors.txt"
        command = [sys.executable, "-m", "stretto.cli.main", "serve", "--home", str(home), "--port", "0", "--slots", "2"]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=stored.folder, env=stored.environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        self.url = self._until_ready()

    def _until_ready(self) -> str:
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server has ended:\n{self._errors.read_text()}"
            try:
                login = json.loads(self._login.read_text())
                assert login["token"] == self._token, "the server does not know the token of its own database"
                with urllib.request.urlopen(f"{login['url']}/readyz", timeout=30):
                    return login["url"]
            except (OSError, ValueError):
                time.sleep(0.1)
        raise AssertionError(f"waited {GUARD_S:g} s for the server:\n{self._errors.read_text()}")

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/v1{path}", headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def stop(self) -> None:
        """Returns when the database is closed."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, 9)
            self.process.wait()
