"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launched, environment

from stretto.agent.folder import RunFolder


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """`launch(text, "--workers", "2")` starts a run of a script with this text; it is killed with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *options: str, name: str = "job", args: tuple[str, ...] = (), env: dict[str, str] | None = None,
              runs: Path | None = None) -> Launched:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        runs = runs or tmp_path / "runs"
        runs.mkdir(exist_ok=True)
        with open(runs / f"{name}.out", "w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "stretto.cli.main", "run", "--runs", str(runs), "--name", name, "--no-tensorboard",
                 *options, str(path), *args],
                cwd=tmp_path, env=environment(env), stdout=out, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )
        started.append(process)
        return Launched(process, RunFolder(runs / name))

    yield start
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
