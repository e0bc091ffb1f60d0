"""What measuring costs: step time with noise scale and goodput fitting on, against off.

A transformer with 25 million parameters and AdamW on two workers, so the noise is that of the preconditioned gradient. The sides
take turns. A turn is sixteen steps of which the measured side samples one, as it does after its first 50 steps.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.process import BIN, Process, finish, launch
from benchmarks.report import at_most, inform, publish
from benchmarks.turns import referee

SIDES = ("on", "off")
WARM = 4
"""Turns before measuring: the first 50 steps are all sampled, which is not how a job goes on."""


def start(folder: Path, model: str, side: str, block: int, blocks: int) -> Process:
    command = [BIN / "stretto", "run", "--workers", "2", "--runs", folder / "runs", "--name", side, "--stragglers", "ignore",
               "--no-tensorboard", "benchmarks/scripts/noise_stretto.py", folder, model, side, str(block), str(blocks)]
    return launch(command, log=folder / f"{side}.log")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--blocks", type=int, default=10, help="measured turns of each side")
    options.add_argument("--warm", type=int, default=WARM)
    options.add_argument("--model", default="transformer")
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stretto-noise-"))
    block = 16
    processes = [start(folder, args.model, side, block, args.blocks + args.warm) for side in SIDES]
    print(f"{args.model}: {args.warm} turns to warm up, {args.blocks} measured …", file=sys.stderr, flush=True)
    try:
        times = referee(folder, SIDES, blocks=args.blocks, warm=args.warm, alive=lambda: processes)
    finally:
        finish(processes, grace_s=20)
    shutil.rmtree(folder)
    ratio = statistics.median(a / b for a, b in zip(times["on"], times["off"], strict=True))
    on, off = (statistics.median(times[side]) * 1e3 for side in SIDES)
    publish("noise", [
        at_most("step time, measured and fitted / neither", ratio, 1.02, peers={"on ms": on, "off ms": off, "turns": args.blocks}),
        inform("ratio of the medians", on / off),
    ], notes=["25M parameters, AdamW, 2 workers, 8 slices, one thread a worker; two slices of every 16th step are sampled",
              "value: median over turns of the ratio of neighbouring turns"])


if __name__ == "__main__":
    main()
