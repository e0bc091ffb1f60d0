"""The loader: global batches cut into slices, whatever the number of workers. Its state is (epoch, step, samples consumed)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from stretto.core.errors import ScriptError
from stretto.core.slices import Span
from stretto.train.data.samples import Ahead, Source, Wanted, cut
from stretto.train.data.step import Step
from stretto.train.randomness import seed_all
from stretto.train.reduce.logs import Row
from stretto.train.reduce.sums import Partial, add, joined, small

if TYPE_CHECKING:
    from stretto.train.job import Job

TAILS = ("drop", "keep")
SWEEP = 1 << 42
"""Keeps the random numbers of the code after a sweep apart from those of steps."""


class Loader:
    """Made by `job.loader`. Iterating over it gives the steps of one epoch."""

    def __init__(
        self,
        job: Job,
        dataset: Any,
        *,
        number: int,
        batch: int,
        slices: int,
        train: bool,
        tail: str,
        shuffle: bool,
        seed: int,
        workers: int,
        collate: Callable[[list[Any]], Any] | None,
        pin_memory: bool,
    ) -> None:
        self.job = job
        self.number = number
        self.batch = batch
        self.slices = slices
        self.train = train
        self.tail = tail
        self.source = Source(dataset, seed=seed, shuffle=shuffle, collate=collate)
        self.epoch = 0
        self.step = 0
        """Steps finished in this epoch."""
        self.consumed = 0
        """Samples of this epoch in finished steps."""
        self.metrics: Row = {}
        """The mean of everything logged in the last whole sweep of an evaluation."""
        self.sums: dict[str, Any] = {}
        """The sum over the steps of the last whole sweep of an evaluation, of everything given to `step.sum`."""
        self.gathered: dict[str, Any] = {}
        """Everything given to `step.gather` in the last whole sweep of an evaluation, in the order of its samples."""
        self._ahead = Ahead(self.source, workers=workers, pin_memory=pin_memory) if workers else None
        self._expected: tuple[Any, ...] | None = None
        self._skipped = 0
        """Sweeps that the others had finished, on a worker that catches up."""
        self.reduction = "mean"

    def __len__(self) -> int:
        """Steps in an epoch at the present batch size."""
        left = self.source.size - self.consumed
        return self.step + (left // self.batch if self.tail == "drop" else -(-left // self.batch))

    @property
    def position(self) -> dict[str, int]:
        return {"epoch": self.epoch, "step": self.step, "consumed": self.consumed, "batch": self.batch}

    @property
    def state(self) -> dict[str, Any]:
        """The position and what the last sweep of an evaluation found, as newcomers and checkpoints get them."""
        if self.train:
            return self.position
        return {**self.position, "metrics": self.metrics, "sums": self.sums, **small(self.gathered)}

    @state.setter
    def state(self, held: dict[str, Any]) -> None:
        self.epoch, self.step, self.consumed = held["epoch"], held["step"], held["consumed"]
        self.batch = held["batch"]
        if "metrics" in held:  # checkpoints of version 0.1 have none
            self.metrics, self.sums = held["metrics"], held["sums"]
            self.gathered = Partial(held["gathered"], left_out=held["left_out"])

    def count(self) -> int:
        """Samples of the next step; 0 at the end of the epoch."""
        left = self.source.size - self.consumed
        if left >= self.batch:
            return self.batch
        return left if self.tail == "keep" else 0

    def close(self) -> None:
        """Ends the prefetching processes."""
        if self._ahead is not None:
            self._ahead.close()

    def __iter__(self) -> Iterator[Step]:
        self.job._check_open("for step in loader")
        self.job._settle()
        self.job._admission.admit()
        return self._training() if self.train else self._evaluation()

    def _training(self) -> Iterator[Step]:
        job = self.job
        if job._catch_up is not None and not self._reached():
            self._skipped += 1
            seed_all(job.seed, SWEEP, self.number, self.epoch if job._epoch is None else job._epoch)
            return  # the others have finished this sweep
        self._skipped = 0
        if job._epoch is not None and self.epoch > job._epoch:
            raise ScriptError(f"a second sweep over a training loader in epoch {job._epoch}: an epoch of job.epochs has each of "
                              "its samples once; make a second loader for a second sweep")
        job._active = self.number
        if job._catch_up is not None:
            job._admission.arrived()
        while True:
            job._boundary()
            job._planning.apply(self)
            count = self.count()
            if not count:
                break
            step = Step(self, index=job.step, epoch=self.epoch, first=self.consumed, count=count,
                        parts=job._planning.parts(self))
            job._passes.open = job._passes.training = step
            try:
                yield step
            except GeneratorExit:
                job._passes.left = step
                raise
            self.committed(step)
        job._active = None
        job._telling.epoch_done(self)
        seed_all(job.seed, SWEEP, self.number, self.epoch)
        self.next_epoch()

    def _reached(self) -> bool:
        """Whether this is the sweep that the job is in, on a worker that catches up with it."""
        catch_up = self.job._catch_up
        assert catch_up is not None
        if catch_up.loader != self.number:
            return False
        return self.job._epoch is not None or self._skipped == self.epoch

    def committed(self, step: Step) -> None:
        """The script is done with a training step."""
        self.job._passes.training = None
        self.job._telling.committed(step)
        self.step += 1
        self.consumed += step.count

    def next_epoch(self) -> None:
        self.epoch += 1
        self.step = self.consumed = 0

    def _evaluation(self) -> Iterator[Step]:
        if self.job._catch_up is not None:
            yield from self._look()
            return
        totals: dict[str, tuple[float, int]] = {}
        sums: dict[str, Any] = {}
        chunks: dict[str, list[Any]] = {}
        self.step = self.consumed = 0
        step: Step | None = None
        while count := self.count():
            step = Step(self, index=self.step, epoch=self.epoch, first=self.consumed, count=count)
            self.job._passes.open = step
            yield step
            self.job._telling.evaluated(step)
            for name, value in step.metrics.items():
                total, weight = totals.get(name, (0.0, 0))
                totals[name] = (total + value * count, weight + count)
            for name, value in step.sums.items():
                sums[name] = add(name, sums[name], value) if name in sums else value
            for name, value in step.gathered.items():
                chunks.setdefault(name, []).append(value)
            self.step += 1
            self.consumed += count
        self.metrics = {name: total / weight for name, (total, weight) in totals.items()}
        self.sums, self.gathered = sums, {name: joined(name, held) for name, held in chunks.items()}
        self.job._telling.swept(self)
        self.next_epoch()
        seed_all(self.job.seed, SWEEP, self.number)

    def _look(self) -> Iterator[Step]:
        """The others have done this evaluation, and its results came with the state. Of its steps the first is computed here, for
        variables that the script fills in the loop."""
        yield Step(self, index=0, epoch=max(0, self.epoch - 1), first=0, count=min(self.batch, self.source.size))
        self.job._passes.open = None
        seed_all(self.job.seed, SWEEP, self.number)

    def wanted(self, step: Step, slice: int, part: int = 0) -> Wanted:
        low, high = cut(step.first, step.count, self.slices, slice)
        if step.parts > 1:
            low, high = cut(low, high - low, step.parts, part)
        return Wanted(step.epoch, step.first, slice, low, high)

    def fetch(self, step: Step, slice: int, part: int = 0) -> Any:
        """The samples of a slice, or of one of its parts, collated."""
        wanted = self.wanted(step, slice, part)
        if self._ahead is None or step.passes:
            return self.source[wanted]
        share = self._share
        place = (share, self.batch, step.parts)
        if self._expected != place or slice == -1:
            self._expected = place
            self._ahead.expect(self._upcoming(step, slice))
        return self._ahead.get(wanted)

    @property
    def _share(self) -> Span:
        """This worker's slices."""
        assert self.job._reducer is not None
        return self.job._reducer.share

    def repeat(self) -> None:
        """The slices of this step are asked for again: prefetching starts over."""
        self._expected = None

    def _upcoming(self, step: Step, slice: int) -> Iterator[Wanted]:
        """What this worker will need from here on if nothing changes."""
        share = self._share
        epoch, first, start = step.epoch, step.first, slice
        for _ in itertools.count():
            left = self.source.size - first
            count = self.batch if left >= self.batch else (left if self.tail == "keep" else 0)
            if not count:
                epoch, first = epoch + 1, 0
                continue
            for one in range(max(share.low, start), share.high):
                whole_low, whole_high = cut(first, count, self.slices, one)
                for part in range(step.parts):
                    low, high = cut(whole_low, whole_high - whole_low, step.parts, part)
                    if high > low:
                        yield Wanted(epoch, first, one, low, high)
            start = 0
            first += count


def check_dataset(dataset: Any) -> None:
    """Refuses what cannot be read by sample numbers."""
    if isinstance(dataset, DataLoader):
        raise ScriptError("job.loader got a DataLoader: give it the dataset and the global batch_size, it makes the batches itself")
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ScriptError(f"job.loader got a {type(dataset).__name__}, which can only be read from its start: samples are read by "
                          "their number, so that any worker can have any of them; give a dataset with __len__ and __getitem__")


def check_loader(size: int, batch: int, slices: int, *, train: bool, tail: str) -> None:
    """Refuses what cannot be trained on."""
    if slices < 1:
        raise ScriptError(f"slices={slices}: a step has at least one slice; leave slices= out for the default of 8")
    if tail not in TAILS:
        raise ScriptError(f"tail={tail!r}: an epoch's last, short batch is either dropped or kept: tail='drop' or tail='keep'")
    if size < 1:
        raise ScriptError("the dataset is empty")
    if not train:
        if batch < 1:
            raise ScriptError(f"batch_size={batch}: at least 1")
        return
    if batch < slices:
        raise ScriptError(f"batch_size={batch} is smaller than slices={slices}: each slice needs a sample; "
                          f"raise batch_size to at least {slices} or lower slices= in job.loader(...)")
    if batch % slices:
        raise ScriptError(f"batch_size={batch} cannot be cut into slices={slices} equal parts: "
                          f"use {batch // slices * slices} or {-(-batch // slices) * slices}")
    if size < batch and tail == "drop":
        raise ScriptError(f"the dataset has {size} samples, fewer than batch_size={batch}, and tail='drop' drops them all: "
                          "lower batch_size or use tail='keep'")
