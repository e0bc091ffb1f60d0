"""Sums, lists and metrics of an evaluation, by real workers that die and join in the middle of it: as one process finds them."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Launched, environment, stretto

SCRIPT = Path(__file__).parent / "evaluating.py"
EPOCHS = 4
Launch = Callable[..., Launched]


@functools.cache
def reference(place: str) -> dict[Any, Any]:
    """What plain python finds, by epoch, and its digest."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), folder, place], capture_output=True, text=True, timeout=250, env=environment()
        )
        assert done.returncode == 0, done.stderr
        return {"digest": done.stdout.split()[-1], **{key[1]: found for key, found in results(Path(folder))}}


def results(folder: Path) -> Iterator[tuple[tuple[str, int], dict[str, Any]]]:
    """What each worker found in each epoch."""
    for path in sorted(folder.glob("*-*.json")):
        worker, epoch = path.stem.split("-")
        yield (worker, int(epoch)), json.loads(path.read_text())


def compare(run: Launched, folder: Path, expected: dict[Any, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """All that was found, after it was compared with what one process finds."""
    assert run.end() == 0, run.output()
    found = dict(results(folder))
    for (worker, epoch), theirs in found.items():
        for name, value in expected[epoch].items():
            assert name == "local" or theirs[name] == value, (worker, epoch, name)
    assert {epoch for _, epoch in found} == set(range(EPOCHS))
    assert expected["digest"] in run.output()
    return found


@pytest.mark.slow
def test_workers_that_die_and_join_during_evaluations_find_what_one_process_finds(launch: Launch, tmp_path: Path) -> None:
    run = launch(SCRIPT.read_text(), "--workers", "3", args=(str(tmp_path), "after", "w1:1:1", "w0:2:2"))
    found = compare(run, tmp_path, reference("after"))
    assert {path.name for path in tmp_path.glob("died-*")} == {"died-w1-1-1", "died-w0-2-2"}
    assert len({worker for worker, epoch in found if epoch == EPOCHS - 1}) == 3
    # The control: what each worker has counted by itself is wrong, and counts repeated slices twice.
    assert all(theirs["local"] != theirs["sums"]["correct"] for theirs in found.values())
    assert sum(theirs["local"] for (_, epoch), theirs in found.items() if epoch == 1) != reference("after")[1]["sums"]["correct"]


@pytest.mark.long
def test_a_newcomer_answers_an_evaluation_that_is_over_with_what_the_others_found(launch: Launch, tmp_path: Path) -> None:
    run = launch(SCRIPT.read_text(), "--workers", "2", args=(str(tmp_path), "before", "w1:1:1"))
    found = compare(run, tmp_path, reference("before"))
    newcomer = next(worker for worker, _ in found if worker not in ("w0", "w1"))
    assert (newcomer, 1) in found and (newcomer, 3) in found  # the first one was over when it came


@pytest.mark.long
def test_an_evaluation_that_nobody_survived_counts_once_after_the_resume(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        SCRIPT.read_text(),
        "--workers",
        "2",
        "--checkpoint",
        str(tmp_path / "saved"),
        "--checkpoint-every",
        "5",
        args=(str(tmp_path), "after", "hang:w0:2:1"),
    )
    run.until(lambda: list(tmp_path.glob("died-*")))
    pids = [*run.pids().values(), run.process.pid]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    run.process.wait()
    done = stretto("resume", "--runs", str(run.folder.path.parent), "--workers", "3", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(results(tmp_path))
    for (worker, epoch), theirs in found.items():
        assert all(name == "local" or theirs[name] == value for name, value in reference("after")[epoch].items()), (worker, epoch)
    assert reference("after")["digest"] in done.stdout
