"""The workload of the rescale benchmark as torchrun's users write it: DDP, and a checkpoint that a restart begins with.

Each step is logged in a file named after the node. Rank 0 saves every 50 steps; the time of a save is far below the
pauses that are measured.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.models import WORKLOADS
from benchmarks.step_log import StepLog, read_marks


def main(folder: Path, workload_name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    workload = WORKLOADS[workload_name]
    torch.manual_seed(0)
    model = DistributedDataParallel(workload.build())
    optimizer = workload.optimize(model)
    saved = folder / "state.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    inputs, targets = workload.samples(workload.batch // world).tensors
    name = f"steps-{os.environ['BENCH_NODE']}"
    earlier = read_marks(folder / name)
    pause_s = time.monotonic() - earlier[-1].at if earlier else 0.0
    step_log = StepLog(folder, name)
    for step in range(1_000_000):
        optimizer.zero_grad()
        workload.loss(model(inputs), targets).backward()
        optimizer.step()
        step_log.mark(world=world, pause_s=pause_s)
        pause_s = 0.0
        if rank == 0 and step % 50 == 49:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.new")
            os.replace(folder / "state.new", saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
