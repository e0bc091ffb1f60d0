"""SIGKILL of everything to the first new step: `stretto resume` against torchrun started again on the same work.

Both train the same model with two workers and save every 20 steps. Launcher and workers get SIGKILL at once, the command that goes
on is given at once, and the clock stops at the first step that any worker finishes. The two take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.process import BIN, PYTHON, Process, children, finish, launch, wait_for
from benchmarks.report import ROOT, at_most, inform, publish
from benchmarks.step_log import read_marks

LIMIT_S = 300.0
STEPS = 45
"""Steps before the kill: enough for two checkpoints."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workload", default="small")
    args = options.parse_args()
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as scratch:
        for number in range(args.rounds):
            ours.append(measure(Path(scratch) / f"stretto-{number}", args.workload, stretto_command))
            theirs.append(measure(Path(scratch) / f"torchrun-{number}", args.workload, torchrun_command))
    a, b = statistics.median(ours), statistics.median(theirs)
    publish(
        "resume",
        [
            at_most(
                "SIGKILL of everything to the first new step / torchrun started again",
                a / b,
                0.7,
                bar="≤ 0.7 ×",
                peers={"stretto s": a, "torchrun s": b},
            ),
            inform(
                "the same, the worst round of each",
                max(ours) / max(theirs),
                peers={"stretto s": max(ours), "torchrun s": max(theirs)},
            ),
        ],
        notes=[f"{args.rounds} rounds in turns, medians; both are started by hand at the moment of the kill"],
    )


def stretto_command(folder: Path, workload: str, *, again: bool) -> list[str | Path]:
    stretto: list[str | Path] = [PYTHON, "-m", "stretto.cli.main"]
    if again:
        return [*stretto, "resume", "--quiet", "--runs", folder / "runs", "job"]
    return [
        *stretto,
        "run",
        "--quiet",
        "--no-tensorboard",
        "--workers",
        "2",
        "--runs",
        folder / "runs",
        "--name",
        "job",
        "--checkpoint",
        folder / "saved",
        "--checkpoint-every",
        "20",
        ROOT / "benchmarks" / "scripts" / "rescale_stretto.py",
        folder,
        workload,
    ]


def torchrun_command(folder: Path, workload: str, *, again: bool) -> list[str | Path]:
    return [
        BIN / "torchrun",
        "--standalone",
        "--nproc-per-node",
        "2",
        ROOT / "benchmarks" / "scripts" / "resume_torchrun.py",
        folder,
        workload,
    ]


def measure(folder: Path, workload: str, command: object) -> float:
    """Seconds from the kill to the first new step."""
    assert callable(command)
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    folder.mkdir(parents=True)
    first = launch(command(folder, workload, again=False), log=folder / "log", env=env)
    processes = [first]
    try:
        wait_for(lambda: _steps(folder) >= 2 * STEPS and _saved(folder), what="a checkpoint", limit_s=LIMIT_S)
        kill_everything(first)
        killed = time.monotonic()
        processes.append(launch(command(folder, workload, again=True), log=folder / "log", env=env))
        wait_for(lambda: _first_after(folder, killed) is not None, what="a step after the kill", limit_s=LIMIT_S, every_s=0.01)
        at = _first_after(folder, killed)
        assert at is not None
        return at - killed
    finally:
        for process in processes:
            kill_everything(process)
        finish(processes)
        shutil.rmtree(folder / "saved", ignore_errors=True)


def _steps(folder: Path) -> int:
    return sum(len(read_marks(path)) for path in folder.glob("steps-*"))


def _saved(folder: Path) -> bool:
    return (folder / "state.pt").exists() or any((folder / "saved").glob("step-*/manifest.json"))


def _first_after(folder: Path, moment: float) -> float | None:
    """The first step of a process that was started after the kill."""
    starts = [marks[0].at for path in folder.glob("steps-*") if (marks := read_marks(path)) and marks[0].at > moment]
    return min(starts, default=None)


def kill_everything(process: Process) -> None:
    """The launcher and all its descendants, the youngest generation last."""
    pids, rest = [process.pid], [process.pid]
    while rest:
        rest = [child for pid in rest for child in _children(pid)]
        pids += rest
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)


def _children(pid: int) -> list[int]:
    try:
        return children(pid)
    except OSError:
        return []


if __name__ == "__main__":
    main()
