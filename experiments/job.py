"""The job of experiment 4: digits on a simulated device, where each slice takes a fixed time and a time per sample.

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
    options.add_argument("--fixed-s", type=float, default=0.008, help="seconds per slice, whatever its size")
    options.add_argument("--sample-s", type=float, default=0.0002, help="seconds per sample")
    args = options.parse_args()

    job = stretto.join(seed=0)
    task = digits()
    model = task.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=0.9)
    job.share(model=model, optimizer=optimizer, lr_rule=stretto.AdaScale(reference=task.reference))
    batch = stretto.Adaptive(start=16, at_most=512) if args.adaptive else args.batch
    data = job.loader(TensorDataset(task.inputs, task.targets), batch_size=batch)
    recent_loss = 3.0
    for _ in job.epochs(40):
        for step in data:
            for inputs, targets in step:
                time.sleep(args.fixed_s + args.sample_s * len(inputs))
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            # Averaged over samples, not steps: runs with different batches are smoothed alike.
            keep = 0.5 ** (step.count / 1440)
            recent_loss = keep * recent_loss + (1 - keep) * step.metrics["loss"]
            if recent_loss < args.target:
                return


if __name__ == "__main__":
    main()
