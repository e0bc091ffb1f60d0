"""The workload of the checkpoint benchmark: trains, marks every step, and in its last steps saves with `torch.save` in the loop."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import stretto
from benchmarks.models import WORKLOADS


def main(folder: Path, name: str, steps: int, plain: int) -> None:
    """`steps` steps that stretto may save, then `plain` steps with a `torch.save` each, which is what training waits for."""
    workload = WORKLOADS[name]
    job = stretto.join(seed=0)
    model = workload.build()
    optimizer = workload.optimize(model)
    job.share(model=model, optimizer=optimizer)
    data = job.loader(workload.samples(workload.batch * (steps + plain)), batch_size=workload.batch, slices=2)
    ends: list[float] = []
    saves: list[float] = []
    for _ in job.epochs(1):
        for step in data:
            for inputs, targets in step:
                workload.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step.index >= steps:
                began = time.monotonic()
                if job.chief:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "plain.pt")
                    os.unlink(folder / "plain.pt")
                saves.append(time.monotonic() - began)
            ends.append(time.monotonic())
    if job.chief:
        (folder / "times.json").write_text(json.dumps({"ends": ends, "saves": saves}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
