"""What a job's starter asks of the loader, where the script leaves it open."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stretto.batching.batch_policies import Adaptive, PerWorker
from stretto.core.errors import ScriptError
from stretto.train.data.loader_arguments import requested_batch, requested_slices

SCRIPT = """
import sys, torch, stretto
given = {"slices": int(sys.argv[1])} if len(sys.argv) > 1 else {}
job = stretto.join(seed=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.share(model=model, optimizer=optimizer)
inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
data = job.loader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, **given)
for _ in job.epochs(2):
    for step in data:
        for x, y in step:
            torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
print("digest", job.slices, job.digest())
"""


def run(*arguments: str, **env: str) -> str:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_slices_from_outside_give_the_bits_of_the_same_slices_in_the_script() -> None:
    outside = run(STRETTO_SLICES="4")
    assert outside.startswith("digest 4 ")
    assert outside == run("4")
    assert outside.split()[2] != run().split()[2], "a control: other slices, other bits"
    assert "give only one of them" in run("8", STRETTO_SLICES="4")


def test_nothing_asked_leaves_everything_to_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRETTO_SLICES", raising=False)
    monkeypatch.delenv("STRETTO_BATCH", raising=False)
    assert (requested_slices(None), requested_slices(4), requested_batch(64, slices=8, samples=1000)) == (None, 4, 64)


def test_a_plain_batch_becomes_what_was_asked_for_and_a_policy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_BATCH", "linear")
    assert requested_batch(64, slices=8, samples=1000) == PerWorker(64)
    monkeypatch.setenv("STRETTO_BATCH", "adaptive")
    assert requested_batch(64, slices=8, samples=100_000) == Adaptive(start=64, at_most=1024)
    assert requested_batch(64, slices=8, samples=300) == Adaptive(start=64, at_most=296), (
        "no larger than the dataset, in whole slices"
    )
    own = Adaptive(start=8, at_most=16)
    assert requested_batch(own, slices=8, samples=1000) is own
    monkeypatch.setenv("STRETTO_BATCH", "fixed")
    assert requested_batch(64, slices=8, samples=1000) == 64


@pytest.mark.parametrize(("name", "value"), [("STRETTO_SLICES", "0"), ("STRETTO_SLICES", "many"), ("STRETTO_BATCH", "huge")])
def test_what_makes_no_sense_is_refused_with_the_values_that_do(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ScriptError, match=value):
        requested_batch(64, slices=requested_slices(None) or 8, samples=1000)
