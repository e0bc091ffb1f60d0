"""A plain Accelerate script: it knows nothing of stretto. Saves its state after every epoch, loads it at its start."""

import argparse
import os
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--path", default="accelerated")
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    world = accelerator.num_processes
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    saved = sorted(int(name) for name in os.listdir(args.path) if name.isdigit()) if os.path.isdir(args.path) else []
    first = saved[-1] if saved else 0
    if saved:
        accelerator.load_state(os.path.join(args.path, str(first)))
    accelerator.print(f"from epoch {first} with {world}", flush=True)
    for epoch in range(first, args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(inputs), targets))
            optimizer.step()
        accelerator.save_state(os.path.join(args.path, "new"))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            os.rename(os.path.join(args.path, "new"), os.path.join(args.path, str(epoch + 1)))
        accelerator.wait_for_everyone()
        accelerator.print(f"epoch {epoch} with {world}", flush=True)
        time.sleep(args.pause)
    accelerator.print("done", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
