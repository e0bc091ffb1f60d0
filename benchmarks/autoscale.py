"""Time and cost of jobs that size themselves, against a fixed number of workers: one, and the maximum.

One job scales perfectly: a slice takes the same time on any worker. One does not scale at all: only one worker computes at a time.
The figure is time × cost (worker-seconds). It is lowest at the size where efficiency falls below 1/2.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.paced import PacedRun, run_paced
from benchmarks.report import Row, at_most, inform, publish

MOST = 4


def product(run: PacedRun) -> float:
    return run.seconds * run.cost


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--well-s", type=float, default=240.0, help="seconds on one worker of the job that scales")
    options.add_argument("--badly-s", type=float, default=100.0, help="seconds on one worker of the job that does not")
    options.add_argument("--slice-s", type=float, default=0.02)
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stretto-autoscale-"))
    rows: list[Row] = []
    for kind, length, extra in (("well", args.well_s, []), ("badly", args.badly_s, ["--serial"])):
        steps = round(length / (8 * args.slice_s))
        script = ["--slice-s", str(args.slice_s), "--steps", str(steps), "--slices", "8", *extra]
        rows += compare(folder, kind, script)
    shutil.rmtree(folder)
    publish(
        "autoscale",
        rows,
        notes=[
            "--workers 1:4 --autoscale efficiency=0.5, beginning with one worker",
            "time: first to last step; cost: worker-seconds, with the workers' starts",
        ],
    )


def compare(folder: Path, kind: str, script: list[str]) -> list[Row]:
    runs: dict[str, PacedRun] = {}
    for name, flags in (
        ("auto", ["--workers", f"1:{MOST}", "--autoscale", "efficiency=0.5"]),
        ("one", ["--workers", "1"]),
        ("most", ["--workers", str(MOST)]),
    ):
        print(f"scales {kind}: {name} …", file=sys.stderr, flush=True)
        runs[name] = run_paced(folder, f"{kind}-{name}", [*flags, "--stragglers", "ignore"], script)
    better = min(("one", "most"), key=lambda name: product(runs[name]))
    figures = {f"{name} {what}": value for name, run in runs.items() for what, value in (("s", run.seconds), ("w·s", run.cost))}
    ratio = product(runs["auto"]) / product(runs[better])
    return [
        at_most(
            f"scales {kind}: time × cost, autoscale / {'1 fixed' if better == 'one' else f'{MOST} fixed'}",
            ratio,
            1.1,
            peers=figures,
        ),
        inform(f"scales {kind}: sizes taken", None, peers={"sizes": runs["auto"].sizes}),
    ]


if __name__ == "__main__":
    main()
