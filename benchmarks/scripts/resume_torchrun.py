"""The workload of the resume benchmark as torchrun's users write it: DDP, a checkpoint every 20 steps, loaded at the start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.models import WORKLOADS
from benchmarks.step_log import StepLog


def main(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    model = DistributedDataParallel(workload.build())
    optimizer = workload.optimize(model)
    saved, first = folder / "state.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    inputs, targets = workload.samples(workload.batch // world).tensors
    step_log = StepLog(folder, f"steps-{rank}-{os.getpid()}")
    for step in range(first, 1_000_000):
        optimizer.zero_grad()
        workload.loss(model(inputs), targets).backward()
        optimizer.step()
        step_log.mark(world=world)
        if rank == 0 and step % 20 == 19:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, folder / "state.new")
            os.replace(folder / "state.new", saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
