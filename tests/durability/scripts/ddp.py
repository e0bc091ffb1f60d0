"""A plain DDP script as torchrun's users write them: it knows nothing of stretto. Saves after every epoch, loads at its start."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--path", default="ddp.pt")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fail-once", default="")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if os.path.exists(args.path):
        held = torch.load(args.path, weights_only=True)
        model.module.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        first = held["epoch"]
    print(f"rank {rank} of {world} from epoch {first}", flush=True)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if args.fail_once and epoch == 1 and rank == world - 1 and not os.path.exists(args.fail_once):
            open(args.fail_once, "w").close()
            os._exit(7)
        if rank == 0:
            held = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(held, args.path + ".new")
            os.replace(args.path + ".new", args.path)
            print(f"epoch {epoch} with {world}", flush=True)
        dist.barrier()
        time.sleep(args.pause)
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
