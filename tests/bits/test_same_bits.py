"""Promise 1: any number of workers, any order of joins, leaves and kills, and plain python give one digest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment, script, stretto

ZOO = Path(__file__).parent / "zoo.py"
TEXT = ZOO.read_text()
NAMES = ("mlp", "cnn", "transformer", "lstm", "bf16", "make", "judge", "eval", "digest")


def alone(*args: str) -> str:
    done = subprocess.run([sys.executable, str(ZOO), *args], capture_output=True, text=True, timeout=250, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reference() -> str:
    """What plain python gives."""
    return alone()


def described(output: str) -> list[str]:
    """The digests that the chief printed, without prefixes."""
    lines = [line.split("] ", 1)[-1] for line in output.splitlines()]
    return [line for line in lines if line.split(":")[0] in NAMES]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_gives_the_digest_of_plain_python(launch, reference, workers):
    run = launch(TEXT, "--workers", str(workers), "--digest-every", "4")
    assert run.end() == 0, run.output()
    assert described(run.output()) == reference.splitlines()
    audit = stretto("audit", str(run.folder.path), cwd=run.folder.path.parent)
    assert audit.returncode == 0, audit.stdout + audit.stderr


def test_prefetching_changes_nothing(launch, reference):
    run = launch(TEXT, "--workers", "2", args=("--loader-workers", "1"))
    assert run.end() == 0, run.output()
    assert described(run.output()) == reference.splitlines()


def test_workers_that_come_and_go_and_die_give_the_digest_of_plain_python(launch):
    expected = alone("--epochs", "4")
    run = launch(TEXT, "--workers", "1:4", "--digest-every", "5", args=("--epochs", "4", "--pause", "0.02"))
    run.until_step(1)
    run.ask("scale", workers=3)
    run.until_workers(3)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    run.until_event("died")
    run.ask("scale", workers=2)
    assert run.end() == 0, run.output()
    assert described(run.output()) == expected.splitlines()
    audit = stretto("audit", str(run.folder.path), cwd=run.folder.path.parent)
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.long
def test_a_compiled_model_gives_one_digest_alone_and_with_workers(launch, tmp_path):
    text = script("model = torch.compile(model)")
    plain = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    run = launch(text, "--workers", "2")
    assert run.end() == 0, run.output()
    assert plain.stdout.split() == ["hello", "from", "alone", "digest", run.result["digest"]]


def test_without_the_seeds_of_slices_the_digests_differ():
    """A control: random numbers of the process make every run another one."""
    kinds = ("--kinds", "cnn", "--break-seeds", "--epochs", "1")
    assert alone(*kinds) != alone(*kinds)


def test_two_threads_in_one_worker_are_refused(launch):
    """A control: the thread count changes bits, so it is noticed."""
    run = launch(TEXT, "--workers", "2", "--max-restarts", "1", args=("--break-threads",))
    assert run.end() != 0
    assert "threads" in run.output()
    assert "--allow-mixed" in run.output()


PLAIN = """
import stretto.train.reduce.tree_allreduce as exchange
import torch

def all_reduce(self, parts, *, finish):
    '''What everybody else does: each worker's gradients added up in rank order.'''
    own = self.covers[self.group.rank]
    out = parts[own[0]]
    for node in own[1:]:
        out.add_(parts[node])
    if self.group.size > 1:
        rooms = [torch.empty_like(out) if k != self.group.rank else out.clone() for k in range(self.group.size)]
        waits = [self.group.receive(rooms[k], k, 5) for k in range(self.group.size) if k != self.group.rank]
        waits += [self.group.send(rooms[self.group.rank], k, 5) for k in range(self.group.size) if k != self.group.rank]
        for wait in waits:
            wait()
        total = rooms[0]
        for room in rooms[1:]:
            total = total + room
        out.copy_(total)
    finish(out)
    return out

exchange.TreeAllreduce.sum = all_reduce
"""


def test_a_plain_all_reduce_changes_the_bits(launch, reference):
    """A control: with sums in the order of ranks, three workers end elsewhere than one."""
    run = launch(PLAIN + TEXT, "--workers", "3")
    assert run.end() == 0, run.output()
    ours, plain = reference.splitlines(), described(run.output())
    assert len(ours) == len(plain)
    assert ours[-1] != plain[-1]
