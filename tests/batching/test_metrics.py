"""The parts of the application metrics that are functions of values; the document itself is validated in test_batching_runs.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stretto.batching.batch_policies import Adaptive, Fixed, PerWorker, Policy
from stretto.batching.goodput import BatchRange, GoodputModel
from stretto.batching.throughput import ThroughputModel
from stretto.core.errors import ScriptError
from stretto.train.reporting import left_of, range_of, reported


def step(*, tail: str, epoch: int = 0, first: int = 0, count: int = 48, batch: int = 48, size: int = 100) -> Any:
    return SimpleNamespace(
        epoch=epoch, first=first, count=count, loader=SimpleNamespace(batch=batch, tail=tail, source=SimpleNamespace(size=size))
    )


def test_what_is_left_is_what_will_be_trained():
    assert left_of(step(tail="drop"), epochs=None) is None
    assert left_of(step(tail="drop"), epochs=2) == 48 + 96
    assert left_of(step(tail="keep"), epochs=2) == 52 + 100
    assert left_of(step(tail="drop", epoch=1, first=48), epochs=2) == 0
    assert left_of(step(tail="keep", epoch=1, first=48), epochs=2) == 4


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Adaptive(start=32, at_most=256), {"initial": 32, "most": 256, "fixed": None, "per_worker": None}),
        (PerWorker(16, at_most=64), {"initial": 16, "most": 64, "fixed": None, "per_worker": 16}),
        (PerWorker(16), {"initial": 16, "most": 128, "fixed": None, "per_worker": 16}),
        (Fixed(64), {"initial": 256, "most": 256, "fixed": 64, "per_worker": None}),
    ],
)
def test_the_range_is_one_that_a_goodput_model_takes(policy: Policy, expected: dict[str, Any]):
    found = range_of(policy, batch=64, reference=256, slices=8)
    assert found == BatchRange(**expected)
    speeds = ThroughputModel(0.01, 0.001, 0.0, 0.0, 0.03, 0.0, 1.0)
    model = GoodputModel(speeds, 1.0, 2.0, replace(found, slices=8))
    assert model.sane
    assert model.choose(nodes=1, workers=2).goodput > 0


def test_what_a_script_reports_are_numbers():
    assert reported({"loss": torch.tensor(0.5), "accuracy": 1}) == {"loss": 0.5, "accuracy": 1.0}
    for wrong in ("high", None, torch.ones(2)):
        with pytest.raises(ScriptError, match=r"job.report\(loss=.*is not a number: give one, or a tensor with one element"):
            reported({"loss": wrong})
