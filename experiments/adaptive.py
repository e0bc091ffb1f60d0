"""Experiment 4: time to a target loss with the adaptive batch, against the best of all fixed batches."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.tasks import ROOT
from stretto.agent.records.run_folder import RunFolder
from stretto.core.journal import Commit

WORKERS = (1, 2, 4)
BATCHES = (16, 32, 64, 128, 256, 512)


def run(folder: Path, workers: int, arguments: list[str]) -> dict[str, object]:
    """Trains to the target. Returns the seconds from the first step, and the batches on the way."""
    name = f"w{workers}-{'-'.join(arguments).strip('-') or 'adaptive'}"
    command = [
        Path(sys.executable).parent / "stretto",
        "run",
        "--quiet",
        "--no-tensorboard",
        "--stragglers",
        "ignore",
        "--runs",
        folder,
        "--name",
        name,
        "--workers",
        str(workers),
        "experiments/job.py",
        *arguments,
    ]
    subprocess.run(
        [str(argument) for argument in command], cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=1800
    )
    commits = [record for record in RunFolder(folder / name).records() if isinstance(record, Commit)]
    batches: list[list[int]] = []
    for commit in commits:
        if not batches or batches[-1][1] != commit.batch:
            batches.append([commit.step, commit.batch])
    return {
        "seconds": commits[-1].t - commits[0].t + commits[0].step_s,
        "steps": len(commits),
        "batches": batches,
        "samples": sum(commit.count for commit in commits),
    }


def experiment() -> dict[str, object]:
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="stretto-adaptive-") as path:
        for workers in WORKERS:
            fixed = {str(batch): run(Path(path), workers, ["--batch", str(batch)]) for batch in BATCHES}
            results[str(workers)] = {"fixed": fixed, "adaptive": run(Path(path), workers, ["--adaptive"])}
            print(f"  {workers} workers: done", flush=True)
    return results
