"""The job of experiment 4: digits with a device whose speed is known (a part of a step that does not shrink with the batch).

stretto run --workers 2 experiments/job.py --batch 128
stretto run --workers 2 experiments/job.py --adaptive
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import stretto
from experiments.tasks import digits


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--adaptive", action="store_true")
    options.add_argument("--target", type=float, default=0.2)
    options.add_argument("--fixed-s", type=float, default=0.008, help="seconds of a slice whatever its size")
    options.add_argument("--sample-s", type=float, default=0.0002)
    args = options.parse_args()

    job = stretto.join(seed=0)
    task = digits()
    model = task.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=0.9)
    job.share(model=model, optimizer=optimizer, lr_rule=stretto.AdaScale(reference=task.reference))
    batch = stretto.Adaptive(start=16, at_most=512) if args.adaptive else args.batch
    data = job.loader(TensorDataset(task.inputs, task.targets), batch_size=batch)
    lately = 3.0
    for _ in job.epochs(40):
        for step in data:
            for inputs, targets in step:
                time.sleep(args.fixed_s + args.sample_s * len(inputs))
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            # By the samples seen, so that runs with other batches are held to the same smoothness.
            keep = 0.5 ** (step.count / 1440)
            lately = keep * lately + (1 - keep) * step.metrics["loss"]
            if lately < args.target:
                return


if __name__ == "__main__":
    main()
