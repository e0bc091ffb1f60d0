"""Reading samples: which ones a slice has, fetching them, and whether they are the same when they are read again.

A dataset or a collate_fn that keeps a random generator or a counter of its own gives another sample to whoever reads it second. The
first slice that a process reads is therefore read twice, with the random numbers set alike before, and compared.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from stretto.core.errors import ScriptError
from stretto.train.data.permutation import Permutation
from stretto.train.rng import seed_all

AUGMENT = 0x5A3D
"""Keeps the random numbers of samples apart from those of slices."""


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """One slice's samples."""

    epoch: int
    first: int
    """Place of the step's first sample in the epoch's order."""
    slice: int
    low: int
    high: int
    """Places of this slice's samples: low..high-1."""

    @property
    def order(self) -> tuple[int, int, int, int]:
        return self.epoch, self.first, self.slice, self.low


def cut(first: int, count: int, slices: int, slice: int) -> tuple[int, int]:
    """The places of one slice in a step of `count` samples: equal parts, or as equal as a short tail allows."""
    return first + count * slice // slices, first + count * (slice + 1) // slices


class Source(Dataset[Any]):
    """A dataset that is asked for slices instead of samples."""

    def __init__(self, dataset: Any, *, seed: int, shuffle: bool, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset = dataset
        self.size = len(dataset)
        self.seed = seed
        self.shuffle = shuffle
        self.collate = collate or default_collate
        self.whole = collate is None and type(dataset) is TensorDataset
        self.proven = False
        """Whether a slice was read twice and came out alike."""
        self._order: tuple[int, Permutation] | None = None

    def indices(self, wanted: SliceRequest) -> np.ndarray[Any, np.dtype[np.int64]]:
        places = np.arange(wanted.low, wanted.high, dtype=np.int64)
        if not self.shuffle:
            return places
        if self._order is None or self._order[0] != wanted.epoch:
            self._order = (wanted.epoch, Permutation(self.size, seed=self.seed, epoch=wanted.epoch))
        return self._order[1](places)

    def __getitem__(self, wanted: SliceRequest) -> Any:
        indices = self.indices(wanted)
        if self.whole:
            chosen = torch.from_numpy(indices)
            return [tensor[chosen] for tensor in self.dataset.tensors]
        if not self.proven:
            return self._prove(wanted.epoch, indices.tolist())
        return self.collate([self._sample(wanted.epoch, index) for index in indices.tolist()])

    def _sample(self, epoch: int, index: int) -> Any:
        seed_all(self.seed, AUGMENT, epoch, index)
        return self.dataset[index]

    def _prove(self, epoch: int, indices: list[int]) -> Any:
        """The first slice that is read: refused if its first sample, or the batch, is another one the second time."""
        first = prints(self._sample(epoch, indices[0]))
        samples = [self._sample(epoch, indices[0])]
        check_sample(first, prints(samples[0]), dataset=self.dataset, index=indices[0])
        samples += [self._sample(epoch, index) for index in indices[1:]]
        if self.collate is not default_collate:
            self._prove_collate(epoch, indices, samples)
        self.proven = True
        return self.collate(samples)

    def _prove_collate(self, epoch: int, indices: list[int], samples: list[Any]) -> None:
        state = random_state()
        first = prints(self.collate(self._copied(samples, epoch, indices)))
        set_random_state(state)
        second = prints(self.collate(self._copied(samples, epoch, indices)))
        check_collated(first, second, collate=self.collate)
        set_random_state(state)

    def _copied(self, samples: list[Any], epoch: int, indices: list[int]) -> list[Any]:
        """The samples once more: a collate_fn may take them apart."""
        try:
            return copy.deepcopy(samples)
        except Exception:  # whatever a sample's own copying raises
            return [self._sample(epoch, index) for index in indices]


LEAVES = 100_000
"""So many values of a sample are compared at most."""
DEPTH = 16
CURE = (
    "draw from torch, numpy.random or random, whose state is set for each sample, or derive it from the index "
    "(numpy.random.default_rng(index))"
)


def prints(value: Any) -> dict[str, str]:
    """A fingerprint of everything in a sample that can be compared, by where it is."""
    hashes: dict[str, str] = {}
    _walk(value, "", hashes, DEPTH)
    return hashes


def check_sample(first: dict[str, str], second: dict[str, str], *, dataset: Any, index: int) -> None:
    where = _difference(first, second)
    if where is not None:
        raise ScriptError(
            f"sample {index} of the dataset ({type(dataset).__name__}) was read twice, with the same random "
            "state set "
            f"before each time, and differs{where}. So it depends on how often and by which process it was read: the "
            "dataset keeps a random generator or a counter of its own (numpy.random.default_rng, torch.Generator or "
            f"random.Random in self, an iterator). To mend it, {CURE}"
        )


def check_collated(first: dict[str, str], second: dict[str, str], *, collate: Any) -> None:
    where = _difference(first, second)
    if where is not None:
        name = getattr(collate, "__name__", type(collate).__name__)
        raise ScriptError(
            f"collate_fn={name} made two different batches of the same samples, with the same random state set "
            "before "
            f"each time: they differ{where}. So a batch depends on how many the process has made before: collate_fn "
            f"keeps a random generator or a counter of its own. To mend it, {CURE}"
        )


def random_state() -> tuple[Any, ...]:
    """The generators that samples may draw from, as they are."""
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy is not None else None


def set_random_state(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if state[2] is not None:
        np.random.set_state(state[2])


def _difference(first: dict[str, str], second: dict[str, str]) -> str | None:
    for where in [*first, *second]:
        if first.get(where) != second.get(where):
            return f" in {where}" if where else ""
    return None


def _walk(value: Any, where: str, hashes: dict[str, str], depth: int) -> None:
    if depth < 0 or len(hashes) >= LEAVES:
        return
    if isinstance(value, torch.Tensor):
        _add_tensor(value, where, hashes)
    elif isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array_interface__"):
        _add_array(value, where, hashes)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        hashes[where] = f"{type(value).__name__} {value!r}"
    elif isinstance(value, Mapping):
        for key in value:
            _walk(value[key], f"{where}[{key!r}]", hashes, depth - 1)
    elif isinstance(value, tuple | list):
        hashes[f"len({where or 'the sample'})"] = str(len(value))
        for place, entry in enumerate(value):
            _walk(entry, f"{where}[{place}]", hashes, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _walk(getattr(value, field.name, None), f"{where}.{field.name}", hashes, depth - 1)


def _add_tensor(value: torch.Tensor, where: str, hashes: dict[str, str]) -> None:
    try:
        data = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        return  # sparse, nested, quantized: not comparable byte by byte
    hashes[where] = f"{value.dtype} {tuple(value.shape)} {_digest(data)}"


def _add_array(value: Any, where: str, hashes: dict[str, str]) -> None:
    try:
        array = np.ascontiguousarray(value)
    except (TypeError, ValueError):
        return
    if not array.dtype.hasobject:
        hashes[where] = f"{array.dtype} {array.shape} {_digest(array.reshape(-1).view(np.uint8))}"


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
