"""The workload of the overhead benchmark, as a user of stretto writes it."""

from __future__ import annotations

import sys
from pathlib import Path

import stretto
from benchmarks.models import WORKLOADS
from benchmarks.turns import Player


def main(folder: Path, name: str, side: str, block: int, blocks: int) -> None:
    workload = WORKLOADS[name]
    job = stretto.join(seed=0)
    model = workload.build()
    optimizer = workload.optimize(model)
    job.share(model=model, optimizer=optimizer)
    data = job.loader(workload.samples(workload.batch * (block * blocks + 1)), batch_size=workload.batch)
    player = Player(folder, side, steps=block)
    for _ in job.epochs(1):
        for step in data:
            player.arrive(speaks=job.chief)
            for inputs, targets in step:
                loss = workload.loss(model(inputs), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
