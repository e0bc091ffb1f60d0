"""What measuring costs: step time with noise scale and goodput fitting on, against off.

A transformer with 25 million parameters and AdamW on two workers, so the noise is that of the preconditioned gradient. Measuring is
switched on and off from step to step in the same processes, and each step with it is held against its two neighbours without: what
else the machine does falls on both. Three prices are told apart, because a median hides what is rare: of an ordinary step, of one
that samples gradients (one of 16), and of a fit (one after 20 steps), which is charged as if training stood still for it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import BIN, finish, launch, wait_for
from benchmarks.report import Row, at_most, inform, publish

WARM = 20
"""Steps before measuring: Adam's second moments must have settled."""
EVERY, REFIT = 16, 20
"""A job samples one step in 16 and fits after 20."""
DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs by one clock: ratios of steps to their neighbours without measuring, and seconds."""

    ordinary: Sequence[float]
    sampled: Sequence[float]
    fits_s: Sequence[float]
    off_s: float

    def total(self) -> float:
        """The time of a job that measures over that of one that does not."""
        fit = statistics.median(self.fits_s) / (REFIT * self.off_s)
        return (EVERY - 1) / EVERY * statistics.median(self.ordinary) + statistics.median(self.sampled) / EVERY + fit

    def interval(self) -> tuple[float, float]:
        """95% bootstrap interval of the total."""
        chance = random.Random(0)

        def again(values: Sequence[float]) -> list[float]:
            return chance.choices(values, k=len(values))

        totals = sorted(
            Prices(again(self.ordinary), again(self.sampled), again(self.fits_s), self.off_s).total() for _ in range(DRAWS)
        )
        return totals[DRAWS // 40], totals[-DRAWS // 40]


def prices(seconds: Sequence[float], fits_s: Sequence[float], sampled: Sequence[bool]) -> Prices:
    """From the seconds of steps that are on and off in turns, the first one on."""
    offs = statistics.median(seconds[1::2])
    ratios = {place: 2 * seconds[place] / (seconds[place - 1] + seconds[place + 1]) for place in range(2, len(seconds) - 1, 2)}
    return Prices(
        [ratio for place, ratio in ratios.items() if not sampled[place]],
        [ratio for place, ratio in ratios.items() if sampled[place]],
        fits_s,
        offs,
    )


def read(folder: Path) -> tuple[Prices, Prices]:
    """By the chief's clock, and by the CPU time of both workers."""
    reports = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    chief = next(report["rows"] for report in reports if report["chief"])[WARM:]
    others = [report["rows"][WARM:] for report in reports]
    assert chief[0]["on"] and not chief[1]["on"]
    sampled = [row["sampled"] for row in chief]
    fits = [row for row in chief if row["fit_s"] > 1e-3][1:]  # the first one imports scipy, once in a job's life
    cpu = [sum(rows[place]["cpu_s"] for rows in others) for place in range(len(chief))]
    return (
        prices([row["wall_s"] for row in chief], [row["fit_s"] for row in fits], sampled),
        prices(cpu, [row["fit_cpu_s"] for row in fits], sampled),
    )


def rows(wall: Prices, cpu: Prices) -> list[Row]:
    def beside(prices: Prices) -> dict[str, object]:
        low, high = prices.interval()
        return {
            "95% from": low,
            "to": high,
            "ordinary": statistics.median(prices.ordinary),
            "sampled": statistics.median(prices.sampled),
            "off ms": prices.off_s * 1e3,
        }

    pairs = {"pairs": len(wall.ordinary) + len(wall.sampled), "fit ms": statistics.median(wall.fits_s) * 1e3}
    return [
        at_most("step time, measured and fitted / neither", wall.total(), 1.02, peers=beside(wall) | pairs),
        inform("the same by CPU time of both workers", cpu.total(), peers=beside(cpu)),
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=300, help="half of them with measuring on")
    options.add_argument("--model", default="transformer")
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stretto-noise-"))
    command = [
        BIN / "stretto",
        "run",
        "--workers",
        "2",
        "--runs",
        folder / "runs",
        "--stragglers",
        "ignore",
        "--no-tensorboard",
        "benchmarks/scripts/noise_stretto.py",
        folder,
        args.model,
        str(args.steps + WARM + 2),
    ]
    process = launch(command, log=folder / "run.log")
    print(f"{args.model}: {args.steps} steps …", file=sys.stderr, flush=True)
    try:
        wait_for(lambda: process.poll() is not None, what="the run's end", limit_s=1800)
    finally:
        finish([process], grace_s=20)
    if process.returncode:
        raise RuntimeError(f"the run failed:\n{(folder / 'run.log').read_text()[-2000:]}")
    wall, cpu = read(folder)
    shutil.rmtree(folder)
    publish(
        "noise",
        rows(wall, cpu),
        notes=[
            "25M parameters, AdamW, 2 workers, 8 slices, one thread a worker; measuring is on in every other step of one job",
            "value: 15/16 of the median ordinary step + 1/16 of the median step that samples two slices, each over the mean of its "
            "two neighbours without measuring, + the median fit over 20 steps, as if training stood still; interval by bootstrap",
        ],
    )


if __name__ == "__main__":
    main()
