"""A job of known speed: a slice takes a given time on a worker, however busy the machine is.

paced.py --slice-s 0.03 --slow w3 --times 3       one worker takes three times as long
paced.py --slice-s 0.03 --serial                  only one worker computes at a time: it does not scale at all
"""

from __future__ import annotations

import argparse
import fcntl
import os
import time

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import stretto


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--slice-s", type=float, default=0.03)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--slices", type=int, default=16)
    options.add_argument("--slow", default="")
    options.add_argument("--times", type=float, default=3.0)
    options.add_argument("--serial", action="store_true")
    args = options.parse_args()

    job = stretto.join(seed=0)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job.share(model=model, optimizer=optimizer)
    inputs = torch.randn(args.slices * args.steps, 16)
    dataset = TensorDataset(inputs, torch.randint(4, (len(inputs),)))
    data = job.loader(dataset, batch_size=args.slices, slices=args.slices)
    pace = args.slice_s * (args.times if os.environ.get("STRETTO_WORKER") == args.slow else 1.0)
    lock = open(os.path.join(os.environ["STRETTO_RUN"], "lock"), "w") if args.serial else None  # noqa: SIM115
    for _ in job.epochs(1):
        for step in data:
            for x, y in step:
                if lock is not None:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                time.sleep(pace)
                if lock is not None:
                    fcntl.flock(lock, fcntl.LOCK_UN)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
