"""One gloo broadcast of a number of bytes between processes that do nothing else: the lower bound for transferring a state."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main(out: Path, rank: int, world: int, port: int, size: int, turns: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    tensor = torch.ones(size, dtype=torch.uint8)
    times: list[float] = []
    for _ in range(turns + 1):
        dist.barrier()
        begun = time.monotonic()
        dist.broadcast(tensor, 0)
        dist.barrier()
        times.append(time.monotonic() - begun)
    if rank == 0:
        out.write_text("\n".join(str(seconds) for seconds in times[1:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
