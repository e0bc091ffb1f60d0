"""A sample that is another one when it is read again is refused before anything is trained on it."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from stretto.core.errors import ScriptError
from stretto.train.data.loader_arguments import Prefetch
from stretto.train.data.prefetch import Prefetcher
from stretto.train.data.sample_reader import SliceRequest, Source, fingerprints

FIRST = SliceRequest(0, 0, 0, 0, 4)


class Reading(Dataset):  # type: ignore[type-arg]
    """Samples that a function makes of the dataset and the index."""

    def __init__(self, read: Callable[[Any, int], Any]) -> None:
        self.read = read
        self.numpy = np.random.default_rng(1)
        self.torch = torch.Generator().manual_seed(1)
        self.python = random.Random(1)
        self.count = itertools.count()
        self.x = torch.zeros(64)
        self.cache: dict[int, Any] = {}
        self.reads = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.read(self, index)


def in_place(self: Any, index: int) -> torch.Tensor:
    self.x[index] += 1
    return self.x[index]


STATEFUL: dict[str, Callable[[Any, int], Any]] = {
    "numpy": lambda self, index: self.numpy.random(3),
    "torch": lambda self, index: torch.rand(3, generator=self.torch),
    "random": lambda self, index: (index, {"noise": self.python.random()}),
    "counter": lambda self, index: next(self.count),
    "text": lambda self, index: f"sample {next(self.count)}",
    "in place": in_place,
    "length": lambda self, index: [0.0] * (next(self.count) + 1),
}
STATELESS: dict[str, Callable[[Any, int], Any]] = {
    "seeded": lambda self, index: (torch.rand(3), np.random.rand(3), random.random()),
    "derived": lambda self, index: np.random.default_rng(index).random(3),
    "counted": lambda self, index: index + 0 * self.reads,
    "cached": lambda self, index: self.cache.setdefault(index, torch.rand(3)),
    "nan": lambda self, index: torch.tensor(float("nan")),
}


def source(read: Callable[[Any, int], Any], collate: Callable[[list[Any]], Any] | None = None) -> Source:
    return Source(Reading(read), seed=1, shuffle=False, collate=collate)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_dataset_with_a_generator_or_a_counter_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(ScriptError, match=r"sample 0 of the dataset \(Reading\) was read twice.*from the index"):
        source(STATEFUL[name])[FIRST]


def test_a_refusal_says_where_the_sample_differs() -> None:
    with pytest.raises(ScriptError, match=r"differs in \[1\]\['noise'\]"):
        source(STATEFUL["random"])[FIRST]


@pytest.mark.parametrize("name", STATELESS)
def test_a_dataset_without_is_not_and_is_read_as_ever_after_its_first_slice(name: str) -> None:
    read = source(STATELESS[name])
    first = fingerprints(read[FIRST])
    assert read.proven
    read.dataset.reads = 0
    assert fingerprints(read[FIRST]) == first
    assert read.dataset.reads == 4, "later slices are read once"


class Noisy:
    """A collate_fn with a generator of its own."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(2)

    def __call__(self, samples: list[int]) -> Any:
        return torch.tensor(samples) + self.random.random()


def popping(samples: list[dict[str, int]]) -> torch.Tensor:
    """Takes its samples apart, as collators for labels do."""
    return torch.tensor([sample.pop("x") for sample in samples]) + torch.rand(())


def test_a_collate_fn_with_a_state_is_refused_and_one_that_takes_its_samples_apart_is_not() -> None:
    with pytest.raises(ScriptError, match=r"collate_fn=Noisy made two different batches"):
        source(lambda self, index: index, Noisy())[FIRST]
    read = source(lambda self, index: {"x": index}, popping)
    assert torch.equal(read[FIRST], read[FIRST]), "the check leaves the random numbers of the first slice as they are"


def test_what_cannot_be_copied_is_read_again_for_the_second_batch() -> None:
    class Handle:
        def __init__(self, index: int) -> None:
            self.index = index

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("an open file")

    read = source(lambda self, index: Handle(index), lambda samples: torch.tensor([one.index for one in samples]))
    assert read[FIRST].tolist() == [0, 1, 2, 3]


@dataclasses.dataclass
class Item:
    image: Any
    label: int


class Opaque:
    pass


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.zeros(2), torch.zeros(2, 1), False),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), False),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), False),
        (np.float32(1), np.float32(2), False),
        ((1, [2, {"a": "b"}]), (1, [2, {"a": "b"}]), True),
        ((1, [2, {"a": "b"}]), (1, [2, {"a": "c"}]), False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (Item(np.zeros(2), 1), Item(np.ones(2), 1), False),
        (Item(np.zeros(2), 1), Item(np.zeros(2), 1), True),
        (Opaque(), Opaque(), True),
        (np.array([Opaque()]), np.array([Opaque()]), True),
        (torch.zeros(2).to_sparse(), torch.ones(2).to_sparse(), True),
    ],
)
def test_everything_that_can_be_compared_is(one: Any, other: Any, same: bool) -> None:
    assert (fingerprints(one) == fingerprints(other)) is same


def test_a_process_that_reads_ahead_refuses_in_the_same_words() -> None:
    with pytest.raises(ScriptError) as here:
        source(STATEFUL["torch"])[FIRST]
    ahead = Prefetcher(source(STATEFUL["torch"]), Prefetch(workers=1))
    ahead.expect(iter([FIRST]))
    with pytest.raises(ScriptError) as there:
        ahead.get(FIRST)
    ahead.close()
    assert str(there.value) == str(here.value)
    assert "Traceback" not in str(there.value)
