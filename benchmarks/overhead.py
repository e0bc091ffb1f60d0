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
from benchmarks.report import Row, at_most, inform, publish
from benchmarks.turns import referee

MODELS = {"cnn": "CNN, 10M parameters", "transformer": "transformer, 25M parameters"}
BARS = {2: 1.05, 1: 1.03}
WARM = 2
ALIKE = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TOP_PAD_": str(64 << 20)}
"""What stretto sets for its workers, so that they keep freed memory. Peers in rows without a bar have it too."""


def start_stretto(folder: Path, model: str, world: int, block: int, blocks: int) -> list[Process]:
    command = [
        BIN / "stretto",
        "run",
        "--workers",
        str(world),
        "--runs",
        folder / "runs",
        "--name",
        f"{model}-{world}",
        "benchmarks/scripts/overhead_stretto.py",
        folder,
        model,
        "stretto",
        str(block),
        str(blocks),
    ]
    return [launch(command, log=folder / "stretto.log")]


def start_peer(folder: Path, model: str, world: int, block: int, blocks: int, *, alike: bool) -> list[Process]:
    port = free_port()
    return [
        launch(
            [
                PYTHON,
                "-m",
                "benchmarks.scripts.overhead_ddp",
                folder,
                model,
                "peer",
                str(block),
                str(blocks),
                str(rank),
                str(world),
                str(port),
            ],
            log=folder / f"peer-{rank}.log",
            env=ALIKE if alike else None,
        )
        for rank in range(world)
    ]


def measure(model: str, world: int, *, block: int, blocks: int, folder: Path, alike: bool = False) -> dict[str, list[float]]:
    folder.mkdir(parents=True)
    processes = start_peer(folder, model, world, block, blocks + WARM, alike=alike)
    try:
        processes += start_stretto(folder, model, world, block, blocks + WARM)
        return referee(folder, ["stretto", "peer"], blocks=blocks, warm=WARM, alive=lambda: processes)
    finally:
        finish(processes, grace_s=20)


def row(times: dict[str, list[float]], model: str, world: int, *, alike: bool = False) -> Row:
    ratio = statistics.median(a / b for a, b in zip(times["stretto"], times["peer"], strict=True))
    peer = "DDP" if world > 1 else "plain loop"
    name = f"{MODELS[model]}, {world} worker{'s' * (world > 1)}: stretto / {peer}"
    peers = {
        "stretto ms": statistics.median(times["stretto"]) * 1e3,
        f"{peer} ms": statistics.median(times["peer"]) * 1e3,
        "turns": len(times["peer"]),
    }
    if alike:
        return inform(f"{name} that keeps freed memory as stretto's workers do", ratio, peers=peers)
    return at_most(name, ratio, BARS[world], peers=peers)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--blocks", type=int, default=30, help="measured turns of each side")
    options.add_argument("--alike", type=int, default=10, help="turns against a peer that keeps freed memory as we do; 0 for none")
    options.add_argument("--block", type=int, default=2, help="steps in a turn")
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options.add_argument("--workers", nargs="+", type=int, choices=list(BARS), default=list(BARS))
    args = options.parse_args()
    rows: list[Row] = []
    folder = Path(tempfile.mkdtemp(prefix="stretto-overhead-"))
    for alike, blocks in ((False, args.blocks), (True, args.alike)):
        for model in args.models if blocks else ():
            for world in args.workers:
                print(f"{MODELS[model]}, {world} worker(s), {blocks} turns …", file=sys.stderr, flush=True)
                place = folder / f"{model}-{world}-{alike}"
                times = measure(model, world, block=args.block, blocks=blocks, folder=place, alike=alike)
                rows.append(row(times, model, world, alike=alike))
    shutil.rmtree(folder)
    publish(
        "overhead",
        rows,
        notes=[
            "value: median over turns of the ratio of neighbouring turns; 8 slices, one thread a worker",
            "stretto's workers keep freed memory (mallopt); peers with a bar run as they are started by default",
            f"global batches: {', '.join(f'{name} {WORKLOADS[name].batch}' for name in args.models)}",
        ],
    )


if __name__ == "__main__":
    main()
