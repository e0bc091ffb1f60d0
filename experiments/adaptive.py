"""Experiment 4: the adaptive batch against the best fixed one found by trying them all: time to a target loss."""

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
    """Seconds from the first step to the target, and the batches on the way."""
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
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=1800)
    commits = [one for one in RunFolder(folder / name).records() if isinstance(one, Commit)]
    batches: list[list[int]] = []
    for one in commits:
        if not batches or batches[-1][1] != one.batch:
            batches.append([one.step, one.batch])
    return {
        "seconds": commits[-1].t - commits[0].t + commits[0].step_s,
        "steps": len(commits),
        "batches": batches,
        "samples": sum(one.count for one in commits),
    }


def experiment() -> dict[str, object]:
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="stretto-adaptive-") as path:
        for workers in WORKERS:
            fixed = {str(batch): run(Path(path), workers, ["--batch", str(batch)]) for batch in BATCHES}
            found[str(workers)] = {"fixed": fixed, "adaptive": run(Path(path), workers, ["--adaptive"])}
            print(f"  {workers} workers: done", flush=True)
    return found
