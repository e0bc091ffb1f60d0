"""Slices that are read ahead of time, in processes of their own.

They go through a torch DataLoader whose sampler yields the slices that this worker will probably need next. When the roster
changes, slices that are no longer needed are dropped on arrival; nothing is rebuilt. As in DataLoader, the processes start again
with each sweep, and so see what the script has changed in the dataset, unless persistent_workers=True keeps them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from stretto.core.errors import ScriptError
from stretto.train.data.dataset_changes import AttributeCache, first_change
from stretto.train.data.loader_arguments import Prefetch
from stretto.train.data.sample_reader import SliceRequest, Source


@dataclass(frozen=True, slots=True)
class _ReadError:
    """A mistake in the script that a process noticed while it read ahead."""

    text: str


class _KeyedSource(Dataset[tuple[SliceRequest, object]]):
    """Returns each slice together with its request."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, request: SliceRequest) -> tuple[SliceRequest, object]:
        try:
            return request, self.source[request]
        except ScriptError as error:
            return request, _ReadError(str(error))


@dataclass(frozen=True, slots=True)
class _WorkerInit:
    """Initialises a process that reads ahead, and then calls the script's worker_init_fn."""

    init: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        torch.set_num_threads(1)
        info = get_worker_info()
        if info is not None:
            keyed = cast("object", info.dataset)
            assert isinstance(keyed, _KeyedSource)
            object.__setattr__(info, "dataset", keyed.source.dataset)  # the script's own, as it expects
        if self.init is not None:
            self.init(number)


class _Requests:
    """The sampler: the slices to read next. It may be given more after its end."""

    def __init__(self) -> None:
        self.upcoming: Iterator[SliceRequest] = iter(())

    def __iter__(self) -> Iterator[SliceRequest]:
        return self

    def __next__(self) -> SliceRequest:
        return next(self.upcoming)


class Prefetcher:
    """Reads this worker's next slices in other processes, and returns each when it is asked for."""

    def __init__(self, source: Source, given: Prefetch) -> None:
        self.persistent = given.persistent
        self._source = source
        self._requests = _Requests()
        self._loader: DataLoader[tuple[SliceRequest, object]] | None = DataLoader(
            _KeyedSource(source),
            batch_size=None,
            sampler=self._requests,  # type: ignore[arg-type]
            num_workers=given.workers,
            prefetch_factor=given.factor,
            persistent_workers=given.persistent,
            pin_memory=given.pin_memory,
            worker_init_fn=_WorkerInit(given.init),
            timeout=given.timeout_s,
            multiprocessing_context=given.context,
            generator=torch.Generator(),  # its processes' seeds are not drawn from the script's random numbers
        )
        self._answers: Iterator[tuple[SliceRequest, object]] | None = None
        self._kept: dict[SliceRequest, object] = {}
        """Slices that have arrived before their turn."""
        self._cache = AttributeCache(source.dataset)
        self._attributes: dict[str, object] | None = None
        """The dataset's, as the processes have them."""

    def begin(self) -> None:
        """A sweep begins: its processes start with its first slice."""
        if self._answers is not None and self.persistent:
            return self.check()
        self._drop()
        return self.watch()

    def watch(self) -> None:
        """Notes the dataset's attributes: the processes have them as they are now."""
        self._attributes = self._cache.read()

    def check(self) -> None:
        """Refuses a change of the dataset that the running processes cannot see."""
        if self._attributes is None:
            return
        change = first_change(self._attributes, self._cache.read())
        if change is None:
            return
        name, before, now = change
        what = f"dataset.{name} was {before} when the processes that read ahead began and is {now} now: they would not see it"
        if self.persistent:
            raise ScriptError(
                f"{what}, and a worker that joins would. Leave persistent_workers=True out, and they begin anew with "
                "each sweep; or leave the dataset as it is"
            )
        raise ScriptError(
            f"{what} before the next sweep, and a worker that joins now would. Change the dataset between two "
            "sweeps, or use num_workers=0"
        )

    def end(self) -> None:
        """The sweep is over."""
        if not self.persistent:
            self._drop()

    def expect(self, upcoming: Iterator[SliceRequest]) -> None:
        """Sets what will be asked for from now on, whenever the worker's slices, the batch or the position have changed."""
        first = list(itertools.islice(upcoming, len(self._kept)))
        self._kept = {request: self._kept[request] for request in first if request in self._kept}
        self._requests.upcoming = itertools.chain([request for request in first if request not in self._kept], upcoming)

    def get(self, request: SliceRequest) -> object:
        """The slice. Others that arrive before it are kept if their turn is still to come."""
        if request in self._kept:
            return self._kept.pop(request)
        for _ in range(2):  # again where the roster changed after all of a sweep had been fetched
            if self._answers is None:
                if self._loader is None:
                    raise RuntimeError("this loader is closed")
                self._answers = iter(self._loader)
            for arrived, data in self._answers:
                if isinstance(data, _ReadError):
                    raise ScriptError(data.text)
                self._source.proven = True
                if arrived == request:
                    self._kept = {later: kept for later, kept in self._kept.items() if later.order > request.order}
                    return data
                if arrived.order > request.order:
                    self._kept[arrived] = data
            self._answers = None
        raise RuntimeError("the prefetching processes ended")

    def close(self) -> None:
        """Ends the processes for good: torch does so when the DataLoader and its iterator are not referenced any more."""
        self._drop()
        self._loader = None

    def _drop(self) -> None:
        self._answers = None
        self._kept = {}
