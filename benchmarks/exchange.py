"""The sum along the fixed tree against gloo's all-reduce of the same bytes, in the same processes, in turns.

What is measured is the exchange alone, from the moment that all workers are ready until the last one has the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.process import PYTHON, finish, free_port, launch, wait_for
from benchmarks.report import Row, at_most, inform, publish

SLICES = 8
SIZES_MB = (4, 100)
WORKERS = (2, 3, 4)
BARS = {(4, 2): 1.4, (4, 4): 1.4, (100, 2): 1.1, (100, 4): 1.1, (4, 3): 1.6, (100, 3): 1.6}


def work(rank: int, world: int, port: int, megabytes: int, turns: int, out: Path) -> None:
    """One process of the group: rank 0 writes the times of both sides."""
    import torch
    import torch.distributed as dist

    from stretto.core.roster import Member, Roster
    from stretto.core.slices import cover, deal
    from stretto.train.reduce.process_group import ProcessGroup, Rendezvous
    from stretto.train.reduce.tree_allreduce import TreeAllreduce

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    rendezvous = Rendezvous("127.0.0.1")
    addresses: list[tuple[str, int]] = [("", 0)] * world
    dist.all_gather_object(addresses, rendezvous.address)
    shares = deal(SLICES, world)
    members = tuple(Member(str(k), "bench", addresses[k], shares[k]) for k in range(world))
    exchange = TreeAllreduce(ProcessGroup(Roster(1, members), str(rank), rendezvous), SLICES)
    length = megabytes * 1_000_000 // 4
    parts = {node: torch.ones(length) for node in cover(SLICES, shares[rank])}
    vector = torch.ones(length)
    scale = 1 / SLICES

    def tree() -> None:
        exchange.sum(parts, finish=lambda segment: segment.mul_(scale))

    def all_reduce() -> None:
        dist.all_reduce(vector)
        vector.mul_(1 / world)

    def timed(side: Callable[[], None]) -> float:
        dist.barrier()
        begun = time.monotonic()
        side()
        seconds = torch.tensor(time.monotonic() - begun, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds)

    times: dict[str, list[float]] = {"tree": [], "all-reduce": []}
    for turn in range(turns + 2):
        sides = [("tree", tree), ("all-reduce", all_reduce)]
        for name, side in sides if turn % 2 else reversed(sides):
            seconds = timed(side)
            if turn >= 2:  # the first two warm up memory and connections
                times[name].append(seconds)
    if rank == 0:
        out.write_text(json.dumps(times))
    dist.barrier()
    os._exit(0)


def measure(world: int, megabytes: int, turns: int, folder: Path) -> dict[str, list[float]]:
    port, out = free_port(), folder / f"{world}-{megabytes}.json"
    words = [str(word) for word in (world, port, megabytes, turns, out)]
    processes = [
        launch([PYTHON, "-m", "benchmarks.exchange", "--work", str(rank), *words], log=folder / f"{world}-{megabytes}-{rank}.log")
        for rank in range(world)
    ]
    try:
        wait_for(
            lambda: all(process.poll() is not None for process in processes),
            limit_s=600,
            what=f"{megabytes} MB on {world} workers (logs in {folder})",
        )
    finally:
        finish(processes)
    if not out.exists():
        raise RuntimeError((folder / f"{world}-{megabytes}-0.log").read_text()[-2000:])
    return json.loads(out.read_text())


def rows(times: dict[str, list[float]], world: int, megabytes: int) -> list[Row]:
    tree_ms, all_reduce_ms = (statistics.median(times[side]) * 1e3 for side in ("tree", "all-reduce"))
    ratio = statistics.median(a / b for a, b in zip(times["tree"], times["all-reduce"], strict=True))
    peers = {"tree ms": tree_ms, "gloo all-reduce ms": all_reduce_ms, "turns": len(times["tree"])}
    return [
        at_most(f"{megabytes} MB, {world} workers: tree / all-reduce", ratio, BARS[megabytes, world], peers=peers),
        inform(f"{megabytes} MB, {world} workers: best tree / best all-reduce", min(times["tree"]) / min(times["all-reduce"])),
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=20, help="measured turns of each side")
    options.add_argument("--work", nargs=6, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.work:
        rank, world, port, megabytes, turns = map(int, args.work[:5])
        work(rank, world, port, megabytes, turns, Path(args.work[5]))
        return
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="stretto-exchange-") as name:
        for megabytes in SIZES_MB:
            for world in WORKERS:
                turns = args.turns * 3 if megabytes < 10 else args.turns
                print(f"{megabytes} MB on {world} workers, {turns} turns …", file=sys.stderr, flush=True)
                found += rows(measure(world, megabytes, turns, Path(name)), world, megabytes)
    publish(
        "exchange",
        found,
        notes=[
            "value: median of the ratios of neighbouring turns; slowest worker of each turn",
            f"{SLICES} slices; on 3 workers shares are no subtrees, so more than one partial sum travels",
        ],
    )


if __name__ == "__main__":
    main()
