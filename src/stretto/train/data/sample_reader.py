"""Reading samples: which ones a slice has, fetching them, and whether they are the same when they are read again.

A dataset or a collate_fn with a random generator or a counter of its own gives another sample at the second read. So each process
reads its first slice twice, from the same random state, and compares.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data as torch_data
from torch.utils.data import Dataset, TensorDataset

from stretto.core.errors import ScriptError
from stretto.core.type_guards import is_mapping, is_sequence
from stretto.train.data.permutation import Permutation
from stretto.train.rng import seed_all

AUGMENT = 0x5A3D
"""Keeps the random numbers of samples apart from those of slices."""

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples; `Any`, since scripts annotate theirs with their own types."""
default_collate = cast("Collate", torch_data.default_collate)


class IndexedDataset(Protocol):
    """A dataset whose samples are read by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """Names the samples of one slice, or of a part of one."""

    epoch: int
    first: int
    """Place of the step's first sample in the epoch's order."""
    slice: int
    low: int
    high: int
    """Places of this slice's samples: low..high-1."""

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sorts requests as they are read."""
        return self.epoch, self.first, self.slice, self.low


def cut(first: int, count: int, slices: int, slice: int) -> tuple[int, int]:
    """The places of one slice in a step of `count` samples: equal parts, or as equal as a short tail allows."""
    return first + count * slice // slices, first + count * (slice + 1) // slices


class Source(Dataset[object]):
    """Reads a dataset by slices instead of samples. A sample depends on the seed, the epoch and its number alone."""

    def __init__(self, dataset: IndexedDataset, *, seed: int, shuffle: bool, collate: Collate | None) -> None:
        self.dataset = dataset
        self.size = len(dataset)
        self.seed = seed
        self.shuffle = shuffle
        self.collate: Collate = collate or default_collate
        self.gathers = collate is None and type(dataset) is TensorDataset
        """Whether a slice is one indexing of each tensor."""
        self.proven = False
        """Whether a slice was read twice and came out alike."""
        self._order: tuple[int, Permutation] | None = None

    def indices(self, request: SliceRequest) -> npt.NDArray[np.int64]:
        """The numbers of the samples in the dataset."""
        places = np.arange(request.low, request.high, dtype=np.int64)
        if not self.shuffle:
            return places
        if self._order is None or self._order[0] != request.epoch:
            self._order = (request.epoch, Permutation(self.size, seed=self.seed, epoch=request.epoch))
        return self._order[1](places)

    def __getitem__(self, request: SliceRequest) -> object:
        indices = self.indices(request)
        if self.gathers and isinstance(self.dataset, TensorDataset):
            chosen = torch.from_numpy(indices)
            return [tensor[chosen] for tensor in self.dataset.tensors]
        if not self.proven:
            return self._prove(request.epoch, indices.tolist())
        return self.collate([self._sample(request.epoch, index) for index in indices.tolist()])

    def _sample(self, epoch: int, index: int) -> object:
        seed_all(self.seed, AUGMENT, epoch, index)
        return self.dataset[index]

    def _prove(self, epoch: int, indices: list[int]) -> object:
        """The first slice that is read: refused if its first sample, or the batch, is another one the second time."""
        first = fingerprints(self._sample(epoch, indices[0]))
        samples = [self._sample(epoch, indices[0])]
        check_sample(first, fingerprints(samples[0]), dataset=self.dataset, index=indices[0])
        samples += [self._sample(epoch, index) for index in indices[1:]]
        if self.collate is not default_collate:
            self._prove_collate(epoch, indices, samples)
        self.proven = True
        return self.collate(samples)

    def _prove_collate(self, epoch: int, indices: list[int], samples: list[object]) -> None:
        state = random_state()
        first = fingerprints(self.collate(self._copied(samples, epoch, indices)))
        set_random_state(state)
        second = fingerprints(self.collate(self._copied(samples, epoch, indices)))
        check_collated(first, second, collate=self.collate)
        set_random_state(state)

    def _copied(self, samples: list[object], epoch: int, indices: list[int]) -> list[object]:
        """The samples once more: a collate_fn may modify them."""
        try:
            return copy.deepcopy(samples)
        except Exception:  # whatever a sample's own copying raises
            return [self._sample(epoch, index) for index in indices]


MAX_LEAVES = 100_000
"""Values of a sample that are compared at most."""
DEPTH = 16
CURE = (
    "draw from torch, numpy.random or random, whose state is set for each sample, or derive it from the index "
    "(numpy.random.default_rng(index))"
)


def fingerprints(value: object) -> dict[str, str]:
    """A hash of everything in a sample that can be compared, by its path."""
    hashes: dict[str, str] = {}
    _walk(value, "", hashes, DEPTH)
    return hashes


def check_sample(first: dict[str, str], second: dict[str, str], *, dataset: object, index: int) -> None:
    """Refuses a dataset whose sample was another one the second time."""
    where = _difference(first, second)
    if where is not None:
        raise ScriptError(
            f"sample {index} of the dataset ({type(dataset).__name__}) was read twice, with the same random "
            "state set "
            f"before each time, and differs{where}. So it depends on how often and by which process it was read: the "
            "dataset keeps a random generator or a counter of its own (numpy.random.default_rng, torch.Generator or "
            f"random.Random in self, an iterator). To mend it, {CURE}"
        )


def check_collated(first: dict[str, str], second: dict[str, str], *, collate: Collate) -> None:
    """Refuses a collate_fn that made two batches of the same samples."""
    where = _difference(first, second)
    if where is not None:
        name = getattr(collate, "__name__", type(collate).__name__)
        raise ScriptError(
            f"collate_fn={name} made two different batches of the same samples, with the same random state set "
            "before "
            f"each time: they differ{where}. So a batch depends on how many the process has made before: collate_fn "
            f"keeps a random generator or a counter of its own. To mend it, {CURE}"
        )


RandomState = tuple[torch.Tensor, tuple[Any, ...], Any]
"""The states of torch, `random` and numpy, in the last two's own formats."""


def random_state() -> RandomState:
    """The states of the generators that samples may draw from."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_random_state(state: RandomState) -> None:
    """The inverse of `random_state`."""
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def _difference(first: dict[str, str], second: dict[str, str]) -> str | None:
    for where in [*first, *second]:
        if first.get(where) != second.get(where):
            return f" in {where}" if where else ""
    return None


def _walk(value: object, where: str, hashes: dict[str, str], depth: int) -> None:
    if depth < 0 or len(hashes) >= MAX_LEAVES:
        return
    if isinstance(value, torch.Tensor):
        _add_tensor(value, where, hashes)
    elif _is_array_like(value):
        _add_array(value, where, hashes)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        hashes[where] = f"{type(value).__name__} {value!r}"
    elif is_mapping(value):
        for key in value:
            _walk(value[key], f"{where}[{key!r}]", hashes, depth - 1)
    elif is_sequence(value):
        hashes[f"len({where or 'the sample'})"] = str(len(value))
        for place, entry in enumerate(value):
            _walk(entry, f"{where}[{place}]", hashes, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _walk(getattr(value, field.name, None), f"{where}.{field.name}", hashes, depth - 1)


def _is_array_like(value: object) -> TypeGuard[npt.ArrayLike]:
    return isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array_interface__")


def _add_tensor(value: torch.Tensor, where: str, hashes: dict[str, str]) -> None:
    try:
        data = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        return  # sparse, nested, quantized: not comparable byte by byte
    hashes[where] = f"{value.dtype} {tuple(value.shape)} {_digest(data)}"


def _add_array(value: npt.ArrayLike, where: str, hashes: dict[str, str]) -> None:
    try:
        array = np.ascontiguousarray(value)
    except (TypeError, ValueError):
        return
    if not array.dtype.hasobject:
        hashes[where] = f"{array.dtype} {array.shape} {_digest(array.reshape(-1).view(np.uint8))}"


def _digest(data: npt.NDArray[np.uint8]) -> str:
    return hashlib.blake2b(data.data, digest_size=16).hexdigest()
