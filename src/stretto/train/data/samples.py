"""Reading samples: which ones a slice has, and fetching them, in this process or ahead of time in others.

Prefetching goes through one torch DataLoader that lives as long as the loader. It is fed with the slices that this worker will
probably need next; when the roster changes, what was asked for in vain is dropped on arrival, and nothing is rebuilt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from stretto.train.data.permutation import Permutation
from stretto.train.randomness import seed_all

AUGMENT = 0x5A3D
"""Keeps the random numbers of samples apart from those of slices."""


@dataclass(frozen=True, slots=True)
class Wanted:
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

    def __init__(
        self, dataset: Any, *, seed: int, shuffle: bool, collate: Callable[[list[Any]], Any] | None
    ) -> None:
        self.dataset = dataset
        self.size = len(dataset)
        self.seed = seed
        self.shuffle = shuffle
        self.collate = collate or default_collate
        self.whole = collate is None and type(dataset) is TensorDataset
        self._order: tuple[int, Permutation] | None = None

    def indices(self, wanted: Wanted) -> np.ndarray[Any, np.dtype[np.int64]]:
        places = np.arange(wanted.low, wanted.high, dtype=np.int64)
        if not self.shuffle:
            return places
        if self._order is None or self._order[0] != wanted.epoch:
            self._order = (wanted.epoch, Permutation(self.size, seed=self.seed, epoch=wanted.epoch))
        return self._order[1](places)

    def __getitem__(self, wanted: Wanted) -> Any:
        indices = self.indices(wanted)
        if self.whole:
            chosen = torch.from_numpy(indices)
            return [tensor[chosen] for tensor in self.dataset.tensors]
        return self.collate([self._sample(wanted.epoch, int(index)) for index in indices])

    def _sample(self, epoch: int, index: int) -> Any:
        seed_all(self.seed, AUGMENT, epoch, index)
        return self.dataset[index]


class _Keyed(Dataset[Any]):
    """Gives every answer the name of what was asked."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, wanted: Wanted) -> tuple[Wanted, Any]:
        return wanted, self.source[wanted]


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)


class Ahead:
    """Fetches slices ahead of time in `workers` processes."""

    def __init__(self, source: Source, *, workers: int, pin_memory: bool) -> None:
        self._upcoming: Iterator[Wanted] = iter(())
        self._loader: DataLoader[Any] | None = DataLoader(
            _Keyed(source),
            batch_size=None,
            sampler=self,  # type: ignore[arg-type]
            num_workers=workers,
            prefetch_factor=2,
            persistent_workers=True,
            pin_memory=pin_memory,
            worker_init_fn=_one_thread,
        )
        self._answers: Iterator[tuple[Wanted, Any]] | None = None
        self._kept: dict[Wanted, Any] = {}

    def __iter__(self) -> Iterator[Wanted]:
        while True:
            yield next(self._upcoming)

    def expect(self, upcoming: Iterator[Wanted]) -> None:
        """What will be asked for from now on, without end: called whenever the share, the batch or the place has changed."""
        coming = list(itertools.islice(upcoming, len(self._kept)))
        self._kept = {one: self._kept[one] for one in coming if one in self._kept}
        self._upcoming = itertools.chain([one for one in coming if one not in self._kept], upcoming)

    def get(self, wanted: Wanted) -> Any:
        """The slice; what arrives before it is kept if its turn is still to come."""
        if wanted in self._kept:
            return self._kept.pop(wanted)
        if self._answers is None:
            if self._loader is None:
                raise RuntimeError("this loader is closed")
            self._answers = iter(self._loader)
        for key, answer in self._answers:
            if key == wanted:
                self._kept = {one: held for one, held in self._kept.items() if one.order > wanted.order}
                return answer
            if key.order > wanted.order:
                self._kept[key] = answer
        raise RuntimeError("the prefetching processes ended")

    def close(self) -> None:
        """Ends the processes: torch does so when nobody holds the DataLoader and its iterator any more."""
        self._answers = self._loader = None
        self._kept = {}
