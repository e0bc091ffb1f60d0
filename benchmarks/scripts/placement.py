"""One worker of the placement benchmark: sums vectors over a roster whose order is given. `placement.py RANK TURNS BYTES DOCUMENT`.

The document names every member's host and the address of the first one's store. Prints the time of an exchange at its end.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from stretto.core.roster import Member, Roster
from stretto.core.slices import deal
from stretto.train.reduce.process_group import ProcessGroup, Rendezvous
from stretto.train.reduce.tree_allreduce import TreeAllreduce


def main(rank: int, turns: int, size: int, document: str) -> None:
    torch.set_num_threads(1)
    plan = json.loads(document)
    hosts, port = plan["hosts"], plan["port"]
    rendezvous = Rendezvous.__new__(Rendezvous)
    rendezvous.host = hosts[rank]
    rendezvous._own = dist.TCPStore(hosts[0], port, None, rank == 0, timedelta(seconds=60), wait_for_workers=False)
    rendezvous._clients = {(hosts[0], port): rendezvous._own}
    shares = deal(len(hosts), len(hosts))
    places = zip(hosts, shares, strict=True)
    members = tuple(Member(f"w{k}", host, (hosts[0], port), share) for k, (host, share) in enumerate(places))
    group = ProcessGroup(Roster(1, members), f"w{rank}", rendezvous)
    exchange = TreeAllreduce(group, len(hosts))
    vector = torch.ones(size // 4)
    times: list[float] = []
    for turn in range(turns):
        began = time.monotonic()
        exchange.sum({exchange.covers[rank][0]: vector}, finish=lambda part: part.mul_(1 / len(hosts)))
        times.append(time.monotonic() - began)
        if turn == 0 and rank == 0:
            print("begun", flush=True)
    print(f"{statistics.median(times):.6f}", flush=True)
    rendezvous._own.set(f"done{rank}", "1")
    if rank == 0:
        rendezvous._own.wait([f"done{k}" for k in range(len(hosts))], timedelta(seconds=60))
    time.sleep(0.5)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
