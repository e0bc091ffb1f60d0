"""Every example gives one digest: by plain python, on one worker, on several, and on a number that changes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
STRETTO = Path(sys.executable).with_name("stretto")
EXAMPLES = ("digits", "chars", "gan", "mixed")
LIMIT_S = 280


def _run(command: list[str | Path]) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@functools.cache
def _plain(example: str, *args: str) -> str:
    return _run([sys.executable, f"examples/{example}.py", "--epochs", "1", *args]).split("digest ")[1].split()[0]


def _elastic(example: str, workers: str, runs: Path) -> str:
    name = f"{example}-{workers}"
    _run(
        [STRETTO, "run", "--quiet", "--workers", workers, "--runs", runs, "--name", name, f"examples/{example}.py", "--epochs", "1"]
    )
    result = json.loads((runs / name / "result.json").read_text())
    assert result["state"] == "finished"
    return result["digest"]


@pytest.mark.parametrize("example", [pytest.param(name, marks=[] if name == "digits" else pytest.mark.slow) for name in EXAMPLES])
def test_an_example_ends_with_one_digest_on_any_number_of_workers(example: str, tmp_path: Path) -> None:
    digests = {workers: _elastic(example, workers, tmp_path) for workers in ("1", "2", "3")}
    assert digests == dict.fromkeys(digests, _plain(example))
    assert json.loads(_run([STRETTO, "audit", f"{example}-3", "--runs", tmp_path, "--json"]))["holds"]


@pytest.mark.parametrize("change", [("--seed", "1"), ("--slices", "4"), ("--lr", "0.002")])
def test_the_digest_sees_whatever_changes_the_training(change: tuple[str, str]) -> None:
    assert _plain("digits", *change) != _plain("digits")
