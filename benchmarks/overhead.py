"""Step time against DDP with `no_sync` accumulation on two workers, and against the plain loop on one.

The same model, global batch, slices, optimizer and number of threads (one) on every side; the sides take turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.models import WORKLOADS
from benchmarks.process import BIN, PYTHON, Process, finish, free_port, launch
from benchmarks.report import Row, at_most, publish
from benchmarks.turns import referee

MODELS = {"cnn": "CNN, 10M parameters", "transformer": "transformer, 25M parameters"}
BARS = {2: 1.05, 1: 1.03}
WARM = 2


def start_stretto(folder: Path, model: str, world: int, block: int, blocks: int) -> list[Process]:
    command = [BIN / "stretto", "run", "--workers", str(world), "--runs", folder / "runs", "--name", f"{model}-{world}",
               "benchmarks/scripts/overhead_stretto.py", folder, model, "stretto", str(block), str(blocks)]
    return [launch(command, log=folder / "stretto.log")]


def start_peer(folder: Path, model: str, world: int, block: int, blocks: int) -> list[Process]:
    port = free_port()
    return [launch([PYTHON, "-m", "benchmarks.scripts.overhead_ddp", folder, model, "peer", str(block), str(blocks),
                    str(rank), str(world), str(port)], log=folder / f"peer-{rank}.log") for rank in range(world)]


def measure(model: str, world: int, *, block: int, blocks: int, folder: Path) -> dict[str, list[float]]:
    folder.mkdir(parents=True)
    processes = start_peer(folder, model, world, block, blocks + WARM)
    try:
        processes += start_stretto(folder, model, world, block, blocks + WARM)
        return referee(folder, ["stretto", "peer"], blocks=blocks, warm=WARM, alive=lambda: processes)
    finally:
        finish(processes, grace_s=20)


def row(times: dict[str, list[float]], model: str, world: int) -> Row:
    ratio = statistics.median(a / b for a, b in zip(times["stretto"], times["peer"], strict=True))
    peer = "DDP" if world > 1 else "plain loop"
    name = f"{MODELS[model]}, {world} worker{'s' * (world > 1)}: stretto / {peer}"
    return at_most(name, ratio, BARS[world], peers={
        "stretto ms": statistics.median(times["stretto"]) * 1e3, f"{peer} ms": statistics.median(times["peer"]) * 1e3,
        "turns": len(times["peer"])})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--blocks", type=int, default=30, help="measured turns of each side")
    options.add_argument("--block", type=int, default=2, help="steps in a turn")
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options.add_argument("--workers", nargs="+", type=int, choices=list(BARS), default=list(BARS))
    args = options.parse_args()
    rows: list[Row] = []
    folder = Path(tempfile.mkdtemp(prefix="stretto-overhead-"))
    for model in args.models:
        for world in args.workers:
            print(f"{MODELS[model]}, {world} worker(s) …", file=sys.stderr, flush=True)
            times = measure(model, world, block=args.block, blocks=args.blocks, folder=folder / f"{model}-{world}")
            rows.append(row(times, model, world))
    shutil.rmtree(folder)
    publish("overhead", rows, notes=[
        "value: median over turns of the ratio of neighbouring turns; 8 slices, one thread a worker",
        f"global batches: {', '.join(f'{name} {WORKLOADS[name].batch}' for name in args.models)}"])


if __name__ == "__main__":
    main()
