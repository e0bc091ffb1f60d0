"""Training scripts with checkpoints for tests: alone in a forked process, where a whole life costs a fraction of a second."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GUARD_S = 120.0
STEPS = 24

SCRIPT = """
import sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
import stretto

WIDTH, PAUSE, SLICES, SEED = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
job = stretto.join(seed=SEED)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(128, 8, generator=generator)
targets = torch.randint(0, 4, (128,), generator=generator)
model = nn.Sequential(nn.Linear(8, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                      nn.Linear(WIDTH, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
job.share(model=model, optimizer=optimizer, scheduler=scheduler)
data = job.loader(TensorDataset(inputs, targets), batch_size=16, slices=SLICES)
for epoch in job.epochs(3):
    for step in data:
        for x, y in step:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(PAUSE)
    scheduler.step()
if job._session.saver is not None:
    job._session.saver.leave()
print("digest", job.digest())
"""
"""24 steps in three epochs; arguments: width, pause after a step, slices, seed."""


def arguments(*, width: int = 64, pause_s: float = 0.03, slices: int = 8, seed: int = 0) -> tuple[str, ...]:
    return str(width), str(pause_s), str(slices), str(seed)


@dataclass(frozen=True)
class Ended:
    code: int
    output: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def digest(self) -> str:
        assert self.code == 0, self.output
        return self.output.split("digest ")[1].split()[0]


def wish(folder: Path | str, *, every_steps: int | None = 4, **fields: Any) -> dict[str, Any]:
    return {"url": str(folder), "run": "job", "run_id": "job-1", "every_steps": every_steps, **fields}


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["torch", "torch.distributed", "torch.utils.data", "torch._dynamo", "stretto.train.entry.script_runner"]
)


def alone(tmp: Path, *, args: tuple[str, ...] | None = None, failpoint: str = "", script: str = SCRIPT, **options: Any) -> Ended:
    """One life of the script in a process of its own, without an agent."""
    path, log = tmp / "script.py", tmp / "alone.log"
    path.write_text(script)
    process = _context.Process(target=_child, args=(str(path), args or arguments(), str(log), json.dumps(options), failpoint))
    process.start()
    process.join(GUARD_S)
    assert not process.is_alive(), log.read_text()
    assert process.exitcode is not None
    return Ended(process.exitcode, log.read_text())


def _child(path: str, args: tuple[str, ...], log: str, options: str, failpoint: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["STRETTO_OPTIONS"] = options
    if failpoint:
        os.environ["STRETTO_FAILPOINT"] = failpoint
    from stretto.train.entry.script_runner import run_script

    code = run_script(path, args)
    sys.stdout.flush()
    os._exit(code)
