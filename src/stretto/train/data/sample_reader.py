"""Reading samples: which ones a slice has, and fetching them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from stretto.train.data.determinism_check import check_collated, check_sample, prints, random_state, set_random_state
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
