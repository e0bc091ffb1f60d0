"""The workload of the noise benchmark: the same loop, with everything measured and fitted or with nothing."""

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
    measured = side == "on"
    job.share(model=model, optimizer=optimizer, lr_rule=stretto.SqrtScale() if measured else None)
    # The bounds are equal, so that both sides train with the same batch: all is measured and fitted, nothing is changed.
    batch = stretto.Adaptive(start=workload.batch, at_most=workload.batch) if measured else workload.batch
    data = job.loader(workload.samples(workload.batch * (block * blocks + 1)), batch_size=batch)
    player = Player(folder, side, steps=block)
    for _ in job.epochs(1):
        for step in data:
            player.arrive(speaks=job.chief)
            for inputs, targets in step:
                loss = workload.loss(model(inputs), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
