"""A GAN on handwritten digits: two passes over every step, one for each network.

python examples/gan.py
stretto run --workers 1:4 examples/gan.py --epochs 10
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import stretto

NOISE = 16


def read_digits() -> TensorDataset:
    return TensorDataset(torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1)


def build_generator() -> nn.Module:
    return nn.Sequential(nn.Linear(NOISE, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh())


def build_critic() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1))


def judge(scores: Tensor, *, real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def main() -> None:
    options = argparse.ArgumentParser(description="Train a GAN on handwritten digits.")
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--lr", type=float, default=1e-3)
    options.add_argument("--batch-size", type=int, default=128)
    options.add_argument("--slices", type=int, default=8)
    args = options.parse_args()

    job = stretto.join(seed=args.seed)
    generator, critic = build_generator(), build_critic()
    to_make = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    to_judge = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.5, 0.999))
    job.share(generator=generator, critic=critic, to_make=to_make, to_judge=to_judge)
    data = job.loader(read_digits(), batch_size=args.batch_size, slices=args.slices)

    for _ in job.epochs(args.epochs):
        for step in data:
            for (real,) in step:
                with torch.no_grad():
                    made = generator(torch.randn(len(real), NOISE))
                loss = judge(critic(real), real=True) + judge(critic(made), real=False)
                loss.backward()
                step.log(critic=loss)
            to_judge.step()
            to_judge.zero_grad()
            for (real,) in step:  # the second pass: the critic has just changed
                loss = judge(critic(generator(torch.randn(len(real), NOISE))), real=True)
                loss.backward()
                step.log(generator=loss)
            to_make.step()
            to_make.zero_grad()
            to_judge.zero_grad()  # the second pass went through the critic

    if job.chief:
        print(f"digest {job.digest()}")


if __name__ == "__main__":
    main()
