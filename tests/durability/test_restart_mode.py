"""Restart mode: scripts that were never written for us, scaled 2 → 3 → 1 and brought to their end."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launched, environment, gone, stretto

from stretto.agent.records.run_folder import RunFolder
from stretto.core.journal import Switch

SCRIPTS = Path(__file__).parent / "scripts"
Start = Callable[..., Launched]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("ddp", options, arguments)`: a script of this folder in restart mode."""
    started: list[subprocess.Popen[str]] = []

    def go(script: str, options: tuple[str, ...] = (), args: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Launched:
        runs = tmp_path / "runs"
        runs.mkdir()
        with open(runs / "job.out", "w") as out:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stretto.cli.main",
                    "run",
                    "--restart-mode",
                    "torchrun",
                    "--runs",
                    str(runs),
                    "--name",
                    "job",
                    *options,
                    str(SCRIPTS / f"{script}.py"),
                    *args,
                ],
                cwd=tmp_path,
                env=environment(env),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        return Launched(process, RunFolder(runs / "job"))

    yield go
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def said(run: Launched) -> str:
    return (run.folder.path.parent / "job.out").read_text()


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed (it is in requirements/dev.txt)")


@pytest.mark.parametrize(
    "script",
    [
        "ddp",
        pytest.param("fsdp", marks=pytest.mark.long),
        pytest.param("accelerated", marks=[pytest.mark.long, needs("accelerate")]),
        pytest.param("lit", marks=[pytest.mark.long, needs("lightning")]),
    ],
)
@pytest.mark.slow
def test_an_unmodified_script_is_scaled_two_three_one_and_finishes(start: Start, script: str) -> None:
    run = start(script, ("--workers", "1:3", "--nproc-per-node", "2"), ("--epochs", "40", "--pause", "0.3"))
    run.until(lambda: "epoch 1 with 2" in said(run))
    run.ask("scale", workers=3)
    run.until(lambda: "with 3" in said(run))
    run.until(lambda: len(re.findall(r"epoch \d+ with 3", said(run))) >= 2)
    run.ask("scale", workers=1)
    run.until(lambda: len(re.findall(r"epoch \d+ with 1", said(run))) >= 2)
    first = int(re.findall(r"epoch (\d+) with 1", said(run))[0])
    assert first >= 2, "the last generation did not load what the ones before had saved"
    assert run.end() == 0, run.output()
    assert run.result["state"] == "finished"
    switches = [one for one in run.records() if isinstance(one, Switch)]
    assert [one.workers for one in switches] == [2, 3, 1]
    assert "epoch 39 with 1" in run.output() and "done" in run.output()
    assert "none of the three promises" in run.output()


@pytest.mark.long
def test_a_stop_ends_all_ranks_in_order(start: Start) -> None:
    run = start("ddp", ("--nproc-per-node", "2"), ("--epochs", "1000", "--pause", "0.2"))
    run.until(lambda: "epoch 0 with 2" in said(run))
    pids = list(run.pids().values())
    stopped = stretto("stop", "--runs", str(run.folder.path.parent), "job", cwd=run.folder.path)
    assert stopped.returncode == 0
    assert run.end() == 143
    assert run.result["state"] == "stopped"
    assert all(gone(pid) for pid in pids)


@pytest.mark.long
def test_a_script_that_comes_to_its_end_finishes_the_run(start: Start) -> None:
    run = start("ddp", (), ("--epochs", "2"), env={"PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_MAX_RESTARTS": "0"})
    assert run.end() == 0, run.output()
    assert "rank 1 of 2" in run.output() and "done" in run.output()
    assert run.result["state"] == "finished"


@pytest.mark.slow
def test_hooks_save_and_load_the_very_step_on_all_ranks(start: Start) -> None:
    run = start("hooked", ("--workers", "1:3", "--start", "2"))
    run.until(lambda: "epoch 5 with 2" in said(run))
    run.ask("scale", workers=3)
    assert run.end() == 0, run.output()
    told = run.output()
    stopped = {int(step) for step in re.findall(r"rank \d saved step (\d+)", told)}
    assert len(stopped) == 1, f"the ranks stopped at different steps: {stopped}"
    (step,) = stopped
    assert f"rank 2 of 3 from step {step}" in told
    assert [int(one) for one in re.findall(r"epoch (\d+) with", told)] == list(range(1, 41)), "a step was lost or done twice"


@pytest.mark.long
def test_a_rank_that_fails_restarts_all_and_they_load_what_was_saved(start: Start, tmp_path: Path) -> None:
    run = start("ddp", ("--nproc_per_node", "2", "--max_restarts", "1"), ("--epochs", "3", "--fail-once", str(tmp_path / "failed")))
    assert run.end() == 0, run.output()
    told = run.output()
    assert run.result["restarts"] == 1
    assert "exit code 7" in told and told.count("rank 0 of 2 from epoch 0") == 1
    assert "rank 0 of 2 from epoch 1" in told or "rank 0 of 2 from epoch 2" in told


@pytest.mark.long
def test_no_more_restarts_than_were_given(start: Start, tmp_path: Path) -> None:
    run = start("ddp", ("--nproc-per-node", "2", "--max-restarts", "0"), ("--epochs", "3", "--fail-once", str(tmp_path / "failed")))
    assert run.end() == 7, run.output()
    assert "--max-restarts 0 is used up" in run.output()


@pytest.mark.long
def test_no_rank_outlives_an_agent_that_was_killed(start: Start) -> None:
    run = start("ddp", ("--nproc-per-node", "2"), ("--epochs", "1000", "--pause", "0.2"))
    run.until(lambda: "epoch 0 with 2" in said(run))
    pids = list(run.pids().values())
    assert len(pids) == 2
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run.until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--restart-mode", "torchrun", "--nnodes", "2"], "runs on one machine"),
        (["--restart-mode", "torchrun", "--nproc-per-node", "many"], "is no number of processes"),
        (["--restart-mode", "mpirun"], "is unknown: there is torchrun"),
        (["--nproc-per-node", "2"], "add --restart-mode torchrun"),
        (["--restart-mode", "torchrun", "--checkpoint", "x"], "the script saves and loads by itself"),
        (["--checkpoint-every", "5"], "add --checkpoint DIR"),
        (["--checkpoint", "x", "--checkpoint-every", "soon"], "neither a number of steps nor a time"),
        (["--checkpoint", "x", "--keep", "0"], "it is at least 1"),
        (["--checkpoint", "nowhere://x"], "cannot be used"),
    ],
)
def test_mistakes_in_the_call_are_said_with_their_fix(tmp_path: Path, options: list[str], words: str) -> None:
    done = stretto("run", "--runs", str(tmp_path / "runs"), *options, str(SCRIPTS / "ddp.py"), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def seen_ms(marks: list[tuple[float, str]], generation: int) -> tuple[float, float]:
    """The least and the most that the pause before this generation can have been, by the first rank's own clock."""
    began = [k for k, (_, kind) in enumerate(marks) if kind == "began"][generation]
    stepped = max(k for k, (_, kind) in enumerate(marks[:began]) if kind == "stepped")
    last = max(t for t, kind in marks[:stepped] if kind == "steps")  # between this and `stepped` the agent was told of the step
    before = next(t for t, kind in marks[began:] if kind == "steps")
    after = next(t for t, kind in marks[began:] if kind == "stepped")
    return (before - marks[began][0]) * 1e3, (after - last) * 1e3


SCHEDULES = [
    pytest.param((1, 0), id="scale-kill"),
    *(
        pytest.param(tuple(random.Random(seed).choices([0, 1, 2, 3], k=4)), id=f"random-{seed}", marks=pytest.mark.long)
        for seed in range(2)
    ),
]
"""The number of workers to scale to, or 0 for a kill."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.slow
def test_a_pause_is_the_time_between_two_steps_of_the_script(start: Start, tmp_path: Path, schedule: tuple[int, ...]) -> None:
    run = start("clocked", ("--workers", "1:3", "--nproc-per-node", "2"), ("--marks", str(tmp_path / "marks")))
    trained, world = 1, 2
    run.until(lambda: said(run).count("rank 0 has made 20 steps") == trained)
    for workers in schedule:
        if workers:
            run.ask("scale", workers=workers)
        else:
            os.kill(run.pids()["w0"], signal.SIGKILL)
        trained, world = trained + (workers != world), workers or world
        run.until(lambda trained=trained: said(run).count("rank 0 has made 20 steps") == trained)
    run.ask("stop")
    run.end()
    marks = [(t, kind) for t, kind in map(json.loads, (tmp_path / "marks-0").read_text().splitlines())]
    switches = [one for one in run.records() if isinstance(one, Switch)]
    assert len(switches) == trained
    for generation in range(1, trained):
        least, most = seen_ms(marks, generation)
        pause_ms = switches[generation].pause_ms
        assert pause_ms is not None and least <= pause_ms <= most + 0.001
        assert pause_ms >= switches[generation].switch_ms
    assert not list(run.folder.path.glob("steps-*"))


def test_a_script_without_optimizers_has_no_pause_in_the_journal_and_keeps_its_sitecustomize(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.own_site = 'the own one'")
    run = start(
        "bare",
        ("--workers", "1:2", "--nproc-per-node", "1"),
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path / "own"), environment()["PYTHONPATH"]])},
    )
    run.until(lambda: "began with 1, the own one" in said(run))
    run.ask("scale", workers=2)
    run.until(lambda: said(run).count("began with 2, the own one") == 2)
    assert run.end() == 0, run.output()
    assert "stretto" not in said(run).partition("a child's path: ")[2].splitlines()[0]
    switches = [one for one in run.records() if isinstance(one, Switch)]
    assert [(one.cause, one.pause_ms) for one in switches] == [("start", 0.0), ("scale", None)]
