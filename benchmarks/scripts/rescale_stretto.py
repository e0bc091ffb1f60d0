"""The workload of the rescale benchmark under stretto. Each worker logs its steps in a file named after its process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import stretto
from benchmarks.models import WORKLOADS
from benchmarks.step_log import StepLog


def main(folder: Path, name: str) -> None:
    workload = WORKLOADS[name]
    job = stretto.join(seed=0)
    model = workload.build()
    optimizer = workload.optimize(model)
    job.share(model=model, optimizer=optimizer)
    data = job.loader(workload.samples(workload.batch * 50), batch_size=workload.batch)
    step_log = StepLog(folder, f"steps-{os.getpid()}")
    for _ in job.epochs(1_000_000):
        for step in data:
            for inputs, targets in step:
                loss = workload.loss(model(inputs), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            step_log.mark(world=job.workers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
