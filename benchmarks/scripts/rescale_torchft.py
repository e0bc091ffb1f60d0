"""The workload of the rescale benchmark under torchft: one replica group of one process, managed step by step.

The gradient is one flat buffer that goes through `Manager.allreduce`: on gloo, the DDP wrapper of torchft 0.2.0 ends the
process with an assertion when a peer dies (`assert fut._fut` in its communication hook).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torchft
from torch.distributed import TCPStore

from benchmarks.models import WORKLOADS
from benchmarks.step_log import StepLog


def main(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    model = workload.build()
    inner = workload.optimize(model)

    def save() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Five seconds for a collective: with the default of sixty, a frozen peer would cost a minute.
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        timeout=timedelta(seconds=5),
        quorum_timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=os.environ["BENCH_NODE"],
        hostname="127.0.0.1",
    )
    parameters = list(model.parameters())
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    optimizer = torchft.Optimizer(manager, inner)
    leaving = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
    step_log = StepLog(folder, f"steps-{os.environ['BENCH_NODE']}")
    inputs, targets = workload.samples(workload.batch // 2).tensors
    pause_s = 0.0
    while not leaving:
        optimizer.zero_grad(set_to_none=False)
        workload.loss(model(inputs), targets).backward()
        waiting_since = time.monotonic()
        manager.wait_quorum()  # the first thing that allreduce does
        pause_s += time.monotonic() - waiting_since
        manager.allreduce(flat).wait()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:  # only a committed step counts
            step_log.mark(world=manager.num_participants(), pause_s=pause_s)
            pause_s = 0.0
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
