"""Slices that are read ahead of time, in processes of their own.

They go through a torch DataLoader that is fed with the slices that this worker will probably need next; when the roster changes,
what was asked for in vain is dropped on arrival, and nothing is rebuilt. As in DataLoader, the processes begin anew with each
sweep, and so see what the script has changed in the dataset, unless persistent_workers=True keeps them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from stretto.core.errors import ScriptError
from stretto.train.data.dataset_changes import Attributes, changed
from stretto.train.data.loader_arguments import Prefetch
from stretto.train.data.sample_reader import SliceRequest, Source


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What is wrong with the script, noticed in a process that reads ahead."""

    text: str


class _Keyed(Dataset[Any]):
    """Gives every answer the name of what was asked."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, wanted: SliceRequest) -> tuple[SliceRequest, Any]:
        try:
            return wanted, self.source[wanted]
        except ScriptError as error:
            return wanted, _Refusal(str(error))


@dataclass(frozen=True, slots=True)
class _Begin:
    """The beginning of a process that reads ahead: ours, then the script's."""

    init: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        torch.set_num_threads(1)
        info = get_worker_info()
        if info is not None:
            keyed: Any = info.dataset
            object.__setattr__(info, "dataset", keyed.source.dataset)  # the script's own, as it expects
        if self.init is not None:
            self.init(number)


class _Feed:
    """What the processes are asked for next. It may be given more after its end."""

    def __init__(self) -> None:
        self.upcoming: Iterator[SliceRequest] = iter(())

    def __iter__(self) -> Iterator[SliceRequest]:
        return self

    def __next__(self) -> SliceRequest:
        return next(self.upcoming)


class Prefetcher:
    """Fetches slices ahead of time."""

    def __init__(self, source: Source, given: Prefetch) -> None:
        self.persistent = given.persistent
        self._source = source
        self._feed = _Feed()
        self._loader: DataLoader[Any] | None = DataLoader(
            _Keyed(source),
            batch_size=None,
            sampler=self._feed,  # type: ignore[arg-type]
            num_workers=given.workers,
            prefetch_factor=given.factor,
            persistent_workers=given.persistent,
            pin_memory=given.pin_memory,
            worker_init_fn=_Begin(given.init),
            timeout=given.timeout_s,
            multiprocessing_context=given.context,
            generator=torch.Generator(),  # its processes' seeds are not drawn from the script's random numbers
        )
        self._answers: Iterator[tuple[SliceRequest, Any]] | None = None
        self._kept: dict[SliceRequest, Any] = {}
        self._now = Attributes(source.dataset)
        self._attributes: dict[str, Any] | None = None
        """The dataset's, as the processes have them."""

    def begin(self) -> None:
        """A sweep begins: its processes start with its first slice."""
        if self._answers is not None and self.persistent:
            return self.check()
        self._drop()
        return self.watch()

    def watch(self) -> None:
        """The dataset is as the processes have it."""
        self._attributes = self._now.now()

    def check(self) -> None:
        """Refuses a change of the dataset that the running processes cannot see."""
        if self._attributes is None:
            return
        change = changed(self._attributes, self._now.now())
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
        """What will be asked for from now on: called whenever the share, the batch or the place has changed."""
        coming = list(itertools.islice(upcoming, len(self._kept)))
        self._kept = {request: self._kept[request] for request in coming if request in self._kept}
        self._feed.upcoming = itertools.chain([request for request in coming if request not in self._kept], upcoming)

    def get(self, wanted: SliceRequest) -> Any:
        """The slice; what arrives before it is kept if its turn is still to come."""
        if wanted in self._kept:
            return self._kept.pop(wanted)
        for _ in range(2):  # again where the roster changed after all of a sweep had been fetched
            if self._answers is None:
                if self._loader is None:
                    raise RuntimeError("this loader is closed")
                self._answers = iter(self._loader)
            for key, answer in self._answers:
                if isinstance(answer, _Refusal):
                    raise ScriptError(answer.text)
                self._source.proven = True
                if key == wanted:
                    self._kept = {request: data for request, data in self._kept.items() if request.order > wanted.order}
                    return answer
                if key.order > wanted.order:
                    self._kept[key] = answer
            self._answers = None
        raise RuntimeError("the prefetching processes ended")

    def close(self) -> None:
        """Ends the processes for good: torch does so when nobody holds the DataLoader and its iterator any more."""
        self._drop()
        self._loader = None

    def _drop(self) -> None:
        self._answers = None
        self._kept = {}
