"""Mixed precision: bfloat16 autocast and a GradScaler, used as they are.

python examples/mixed.py
stretto run --workers 1:4 examples/mixed.py --epochs 10
"""

from __future__ import annotations

import argparse
import os

# Some virtual machines announce AMX and then trap on it. This has to be said before the first multiplication.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import stretto


def read_digits() -> TensorDataset:
    data = load_digits()
    return TensorDataset(torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target))


def main() -> None:
    options = argparse.ArgumentParser(description="Train a classifier of digits in mixed precision.")
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--lr", type=float, default=0.05)
    options.add_argument("--batch-size", type=int, default=128)
    options.add_argument("--slices", type=int, default=8)
    args = options.parse_args()

    job = stretto.join(seed=args.seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    # A short growth interval, so that the scale really moves within a few epochs.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20)
    job.share(model=model, optimizer=optimizer, scaler=scaler)
    data = job.loader(read_digits(), batch_size=args.batch_size, slices=args.slices)

    for _ in job.epochs(args.epochs):
        for step in data:
            for images, targets in step:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(images), targets)
                scaler.scale(loss).backward()
                step.log(loss=loss)
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    if job.chief:
        print(f"digest {job.digest()}")


if __name__ == "__main__":
    main()
