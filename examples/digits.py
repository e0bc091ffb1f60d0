"""Handwritten digits on a small CNN with batch normalisation and dropout.

python examples/digits.py
stretto run --workers 1:4 examples/digits.py --epochs 20
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import stretto


def read_digits() -> tuple[TensorDataset, TensorDataset]:
    """1,797 images of 8 × 8 pixels that come with scikit-learn: the first 1,500 to train on, the rest to check."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    targets = torch.tensor(data.target)
    return TensorDataset(images[:1500], targets[:1500]), TensorDataset(images[1500:], targets[1500:])


def build(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(8 * width, 10),
    )


def main() -> None:
    options = argparse.ArgumentParser(description="Train a CNN on handwritten digits.")
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--lr", type=float, default=1e-3)
    options.add_argument("--width", type=int, default=16)
    options.add_argument("--batch-size", type=int, default=120)
    options.add_argument("--slices", type=int, default=8)
    args = options.parse_args()

    job = stretto.join(seed=args.seed)
    trainset, valset = read_digits()
    model = build(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    job.share(model=model, optimizer=optimizer)
    data = job.loader(trainset, batch_size=args.batch_size, slices=args.slices, tail="keep")
    held_out = job.loader(valset, batch_size=297, slices=args.slices, train=False)

    for _ in job.epochs(args.epochs):
        model.train()
        for step in data:
            for images, targets in step:
                loss = F.cross_entropy(model(images), targets)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for step in held_out:
            for images, targets in step:
                with torch.no_grad():
                    right = (model(images).argmax(1) == targets).float().mean()
                step.log(accuracy=right)

    if job.chief:
        print(f"digest {job.digest()}")


if __name__ == "__main__":
    main()
