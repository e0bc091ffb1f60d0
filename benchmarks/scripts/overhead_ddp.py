"""The workload of the overhead benchmark with DDP: accumulation under `no_sync`, the last slice's backward reduces.

With one process there is no DDP around the model: that is the plain loop.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.models import WORKLOADS
from benchmarks.turns import Player

SLICES = 8


def main(folder: Path, name: str, side: str, block: int, blocks: int, rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    model = workload.build()
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = workload.optimize(model)
    samples = workload.samples(workload.batch * (block * blocks + 1))
    sampler = DistributedSampler(samples, num_replicas=world, rank=rank)
    data = iter(DataLoader(samples, batch_size=workload.batch // SLICES, sampler=sampler))
    player = Player(folder, side, steps=block)
    mine = SLICES // world
    for _ in range(block * blocks + 1):
        player.arrive(speaks=rank == 0)
        optimizer.zero_grad()
        total = 0.0
        for place in range(mine):
            inputs, targets = next(data)
            quiet = model.no_sync() if world > 1 and place < mine - 1 else contextlib.nullcontext()
            with quiet:
                loss = workload.loss(model(inputs), targets)
                (loss / mine).backward()
            total += loss.item()
        optimizer.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:]))
