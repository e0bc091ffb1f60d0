"""One of four workers takes three times as long per slice: its slices are moved to others, or stay.

The ideal is the time in which these four speeds together get through the slices, if slices could be cut at will: 4/(10/3) = 1.2
times the time of four even workers, which is measured in the same run. Whole slices (16 of them) allow 1.25 at best.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.paced import PacedRun, run_paced
from benchmarks.report import Row, at_least, at_most, inform, publish

SLICES, WORKERS, TIMES = 16, 4, 3.0


def settled_s(run: PacedRun) -> float:
    """Seconds per step in the second half of the run."""
    commits = run.commits
    return statistics.median(commit.step_s for commit in commits[len(commits) // 2 :])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--slice-s", type=float, default=0.04)
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stretto-straggler-"))
    script = ["--slice-s", str(args.slice_s), "--steps", str(args.steps), "--slices", str(SLICES)]
    slow = [*script, "--slow", "w3", "--times", str(TIMES)]
    runs: dict[str, PacedRun] = {}
    for name, flags, arguments in (
        ("ignored", ["--stragglers", "ignore"], slow),
        ("rebalanced", [], slow),
        ("even", ["--stragglers", "ignore"], script),
    ):
        print(f"{name} …", file=sys.stderr, flush=True)
        runs[name] = run_paced(folder, name, ["--workers", str(WORKERS), *flags], arguments)
    shutil.rmtree(folder)
    publish(
        "straggler",
        rows(runs, args.slice_s),
        notes=[
            f"{WORKERS} workers, {SLICES} slices of {args.slice_s * 1e3:g} ms (a sleep), one worker {TIMES:g} times as slow",
            "seconds per step: median of the second half of each run",
            f"the digests of all three runs are {'equal' if len({run.digest for run in runs.values()}) == 1 else 'NOT EQUAL'}",
        ],
    )


def rows(runs: dict[str, PacedRun], slice_s: float) -> list[Row]:
    ignored, rebalanced, even = (settled_s(runs[name]) for name in ("ignored", "rebalanced", "even"))
    ideal = even * WORKERS / (WORKERS - 1 + 1 / TIMES)
    sleeps = SLICES / (WORKERS - 1 + 1 / TIMES) * slice_s
    times = {"ignored ms": ignored * 1e3, "rebalanced ms": rebalanced * 1e3, "ideal ms": ideal * 1e3}
    halfway_s = (ignored + rebalanced) / 2
    moved_at = next((commit.step for commit in runs["rebalanced"].commits if commit.step_s < halfway_s and commit.step > 2), 0)
    return [
        at_least("ignored / rebalanced", ignored / rebalanced, 1.6, peers=times),
        at_most("rebalanced / ideal", rebalanced / ideal, 1.15, peers=times),
        inform("steps until the slices are moved", moved_at),
        inform("rebalanced / the sleeps alone", rebalanced / sleeps, peers={"sleeps ms": sleeps * 1e3}),
        inform("without a straggler, ms", even * 1e3, peers={"its sleeps ms": SLICES / WORKERS * slice_s * 1e3}),
    ]


if __name__ == "__main__":
    main()
