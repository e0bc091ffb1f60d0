"""A script of one's own loop that saves exactly when it has to stop: `should_stop`, `on_save` and `on_load`."""

import argparse
import json
import time

import torch
import torch.distributed as dist

import stretto


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    held = {"step": 0}

    @stretto.on_load
    def load(folder) -> None:
        held.update(json.loads((folder / "rank0.json").read_text()))

    @stretto.on_save
    def save(folder) -> None:
        (folder / f"rank{rank}.json").write_text(json.dumps(held))

    print(f"rank {rank} of {world} from step {held['step']}", flush=True)
    while held["step"] < args.steps:
        total = torch.ones(1)
        dist.all_reduce(total)
        held["step"] += 1
        if rank == 0:
            print(f"epoch {held['step']} with {world}", flush=True)
        time.sleep(args.pause * (1 + rank))
        if stretto.should_stop():
            print(f"rank {rank} saved step {held['step']}", flush=True)
            return
    if rank == 0:
        print("done", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # without it torch aborts now and then, where a peer has ended first
