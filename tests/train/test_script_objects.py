"""What a script holds beside its shared state is described so that workers can compare it."""

from __future__ import annotations

import random
from collections import deque

import numpy
import pytest
import torch

from stretto.train.script_checks.object_hashes import describe, storages


def changed_in_one_place(large: torch.Tensor) -> torch.Tensor:
    other = large.clone()
    other[0] += 1
    return other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.arange(8.0), torch.arange(8.0).flip(0)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(1 << 16), changed_in_one_place(torch.zeros(1 << 16))),
        (torch.zeros(4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16)),
        (numpy.zeros(3), numpy.ones(3)),
        (deque([(torch.zeros(2), 1)]), deque([(torch.ones(2), 1)])),
        ({"a": torch.zeros(2)}, {"a": torch.ones(2)}),
        (list(range(1000)), [*range(999), 0, 0]),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        (random.Random(1), random.Random(2)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    ],
)
def test_different_values_are_described_differently_and_equal_ones_alike(one, other):
    assert describe(one) == describe(one) != describe(other)
    assert describe(one)


def test_nothing_is_said_of_shared_tensors_and_of_what_cannot_be_compared():
    model = torch.nn.Linear(2, 2)
    shared = storages(model.parameters())
    assert describe(model, shared=shared) == ""
    assert describe(object()) == describe(3) == describe(torch.nn.ReLU()) == ""
