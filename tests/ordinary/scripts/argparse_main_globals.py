# equal
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import stretto

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=29)
seen = 0


def train(args, job, model, data, optimizer, epoch):
    global seen
    model.train()
    for step in data:
        optimizer.zero_grad()
        for inputs, targets in step:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        seen += step.count
    if job.chief:
        print(f"epoch {epoch}: {seen} samples, loss {step.metrics['loss']:.4f}")


def main():
    args = parser.parse_args()
    job = stretto.join(seed=args.seed)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    job.share(model=model, optimizer=optimizer)
    data = job.loader(TensorDataset(x, y), batch_size=args.batch_size)
    for epoch in job.epochs(args.epochs):
        train(args, job, model, data, optimizer, epoch)
    print("digest", job.digest())


if __name__ == "__main__":
    main()
