"""Starts and ends short training scripts, again and again, beside a busy machine: `python exits.py RUNS`.

Each is forked from a process that has torch, and then ends as a script does, through the interpreter's own finalisation. The exit
code is 1 if any ended otherwise than it should, and its standard error is printed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # every optimizer imports it at its first step

import stretto

AT_ONCE = 4


def train(*, steps: int, rule: stretto.AdaScale | None = None, workers: int = 0, fail: bool = False) -> stretto.Job:
    job = stretto.join(seed=0)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job.share(model=model, optimizer=optimizer, lr_rule=rule)
    inputs = torch.randn(16 * steps, 8)
    data = job.loader(torch.utils.data.TensorDataset(inputs), batch_size=16, num_workers=workers)
    for step in data:
        for (x,) in step:
            loss = model(x).square().mean()
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if fail and job.step == 24:
            raise ValueError("on purpose")
    return job


def fits() -> None:
    """Ends while the throughput model is fitted: the thread is in the middle of importing scipy, or in its code."""
    train(steps=30, rule=stretto.AdaScale())


def fits_longer() -> None:
    train(steps=200, rule=stretto.AdaScale())


def fails_while_it_fits() -> None:
    train(steps=30, rule=stretto.AdaScale(), fail=True)


def prefetches() -> None:
    """Ends with its prefetching processes still there."""
    train(steps=2, workers=1)


def closes() -> None:
    train(steps=30, rule=stretto.AdaScale()).close()


SCRIPTS: tuple[tuple[Callable[[], None], int], ...] = (
    (fits, 0),
    (fits_longer, 0),
    (fails_while_it_fits, 1),
    (fits, 0),
    (prefetches, 0),
    (closes, 0),
)
"""What runs, in turn, and the exit code that it should have."""


def spin() -> int:
    """A child that keeps one core busy until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))
    os._exit(0)


def main(runs: int) -> None:
    folder = Path(tempfile.mkdtemp())
    busy = [spin() for _ in range(os.cpu_count() or 1)]
    started: dict[int, int] = {}
    wrong = 0
    for number in range(runs):
        pid = os.fork()
        if not pid:
            sys.stderr = open(folder / str(number), "w")  # noqa: SIM115
            os.dup2(sys.stderr.fileno(), 2)
            return SCRIPTS[number % len(SCRIPTS)][0]()
        started[pid] = number
        if len(started) == AT_ONCE:
            wrong += not ended_well(started, folder)
    while started:
        wrong += not ended_well(started, folder)
    for pid in busy:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    shutil.rmtree(folder)
    print(f"{runs} scripts, {wrong} ended otherwise than they should")
    sys.exit(bool(wrong))


def ended_well(started: dict[int, int], folder: Path) -> bool:
    pid = status = 0
    while pid not in started:
        pid, status = os.wait()
    number, code = started.pop(pid), os.waitstatus_to_exitcode(status)
    script, expected = SCRIPTS[number % len(SCRIPTS)]
    text = (folder / str(number)).read_text()
    (folder / str(number)).unlink()
    if code == expected:
        return True
    print(f"run {number}, {script.__name__}: exit code {code}, not {expected}\n{text}", flush=True)
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]))
