"""What a script does before, between and after its loops comes out as under plain python, whoever joins, dies or resumes.

Each case puts a scheduler's step, an evaluation, counters, random numbers and a saved file into one place of the script: a cell of
the table in docs/guides/porting.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching import environment, gone, stretto

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch, torch.nn as nn, torch.nn.functional as F
import stretto
from torch.utils.data import TensorDataset

WHERE, OUT = sys.argv[1].split(","), Path(sys.argv[2])
PAUSE = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
job = stretto.join(seed=5)
model = nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, 3))
averaged = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
counts = {"calls": 0, "losses": []}
job.share(model=model, averaged=averaged, optimizer=optimizer, scheduler=scheduler, counts=counts)
job.state.noise = 0.0
g = torch.Generator().manual_seed(1)
x, y = torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g)
data = job.loader(TensorDataset(x, y), batch_size=16)
val = job.loader(TensorDataset(x[:40], y[:40]), batch_size=16, train=False)

def visit(where):
    if where not in WHERE:
        return
    scheduler.step()
    counts["calls"] += 1
    job.state.noise = job.state.noise + torch.rand(()).item()
    if UPDATE:
        averaged.update_parameters(model)
    model.eval()
    for step in val:
        for a, b in step:
            step.log(loss=F.cross_entropy(model(a), b))
    model.train()
    counts["losses"].append(val.metrics["loss"])
    if job.chief:
        torch.save(model.state_dict(), OUT / f"{where}-{job.step}.pt")

visit("top")
for epoch in EPOCHS_LOOP:
    visit("epoch")
    for step in data:
        visit("before")
        for a, b in step:
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        visit("stepped")
        time.sleep(PAUSE)
    visit("after")
visit("end")
print("digest", job.digest())
"""


def script(*, loop: str = "job.epochs(4)", width: int = 16, update: bool = False) -> str:
    return SCRIPT.replace("EPOCHS_LOOP", loop).replace("WIDTH", str(width)).replace("UPDATE", str(update))


def plain(text: str, where: str, folder: Path) -> str:
    folder.mkdir()
    path = folder / "plain.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(path), where, str(folder)], capture_output=True, text=True, timeout=250, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def files(folder: Path) -> dict[str, bytes]:
    import torch

    found = {}
    for path in sorted(folder.glob("*.pt")):
        held = torch.load(path)
        found[path.name] = b"".join(tensor.numpy().tobytes() for tensor in held.values())
    return found


def check(run, expected: str) -> None:
    assert run.end() == 0, run.output()
    assert run.result["digest"] == expected, run.output()
    audit = stretto("audit", str(run.folder.path), cwd=run.folder.path.parent)
    assert audit.returncode == 0, audit.stdout + audit.stderr


def join_and_kill(launch, text: str, where: str, tmp_path: Path, *, loop_steps: int = 8) -> None:
    expected = plain(text, where, tmp_path / "plain")
    (tmp_path / "out").mkdir()
    run = launch(text, "--workers", "1:3", args=(where, str(tmp_path / "out"), "0.2"))
    run.until_step(loop_steps)
    run.ask("scale", workers=3)
    run.until_workers(3)
    os.kill(run.pids()["w0"], signal.SIGKILL)
    run.until_event("died")
    check(run, expected)
    assert files(tmp_path / "out") == files(tmp_path / "plain")


def kill_everything(run) -> None:
    pids = [run.process.pid, *run.pids().values()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    run.process.wait()
    while not all(map(gone, pids)):
        time.sleep(0.02)


def kill_and_resume(launch, text: str, where: str, tmp_path: Path) -> None:
    expected = plain(text, where, tmp_path / "plain")
    (tmp_path / "out").mkdir()
    run = launch(
        text,
        "--workers",
        "2",
        "--checkpoint",
        str(tmp_path / "saved"),
        "--checkpoint-every",
        "4",
        args=(where, str(tmp_path / "out"), "0.2"),
    )
    run.until_step(10)
    kill_everything(run)
    done = stretto("resume", "--runs", str(run.folder.path.parent), "--quiet", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.result["digest"] == expected, done.stdout + done.stderr
    audit = stretto("audit", str(run.folder.path), cwd=run.folder.path.parent)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert files(tmp_path / "out") == files(tmp_path / "plain")


PLACES = ("epoch", "top,after,end", "before,stepped")


@pytest.mark.parametrize("where", ["epoch", *(pytest.param(place, marks=pytest.mark.long) for place in PLACES[1:])])
def test_what_a_script_does_around_its_loops_is_not_done_twice_by_who_joins(launch, tmp_path, where):
    join_and_kill(launch, script(), where, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["epoch", *(pytest.param(place, marks=pytest.mark.long) for place in PLACES[1:])])
def test_what_a_script_does_around_its_loops_is_not_done_twice_after_a_resume(launch, tmp_path, where):
    kill_and_resume(launch, script(), where, tmp_path)


@pytest.mark.slow
def test_large_tensors_that_were_changed_on_the_way_are_received_again(launch, tmp_path):
    """The averaged model is too large for a copy: the others send it once more."""
    join_and_kill(launch, script(width=4096, update=True), "epoch", tmp_path)


@pytest.mark.long
def test_large_tensors_that_were_changed_on_the_way_are_read_again_after_a_resume(launch, tmp_path):
    kill_and_resume(launch, script(width=4096, update=True), "epoch", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("happens", [join_and_kill, kill_and_resume])
def test_epochs_counted_by_range_come_out_the_same(launch, tmp_path, happens):
    happens(launch, script(loop="range(4)"), "top,epoch,after,end", tmp_path)


@pytest.mark.parametrize(
    ("loaders", "active"),
    [
        ([(5, 0), (5, 0)], 0),
        ([(5, 3), (5, 0)], 0),
        ([(6, 0), (5, 0)], 1),
        ([(6, 0), (5, 1)], 1),
        ([(6, 0), (6, 0)], 0),
    ],
)
def test_a_checkpoint_of_the_first_version_goes_on_in_the_loader_that_it_was_in(loaders, active):
    """It has the places of both loaders, and not which of them was swept."""
    from stretto.train.state_sync import trained_loader

    made = [SimpleNamespace(number=number, train=train) for number, train in enumerate((True, True, False))]
    place = {"step": 30, "loaders": [{"epoch": epoch, "step": step} for epoch, step in [*loaders, (0, 2)]]}
    assert trained_loader(made, place) == active
    assert trained_loader(made, {**place, "step": 0}) is None
