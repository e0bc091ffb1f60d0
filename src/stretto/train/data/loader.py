"""The loader: global batches cut into slices, whatever the number of workers. Its state is (epoch, step, samples consumed)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from stretto.core.errors import ScriptError
from stretto.core.slices import Span
from stretto.train.data.dataset_changes import Changes
from stretto.train.data.dataset_checks import check_length
from stretto.train.data.loader_arguments import Arguments
from stretto.train.data.prefetch import Prefetcher
from stretto.train.data.sample_reader import SliceRequest, Source, cut
from stretto.train.data.step import Step
from stretto.train.data.sweeps import Sweeps
from stretto.train.reduce.logged_metrics import Row
from stretto.train.reduce.sums import Partial, add, joined, small
from stretto.train.rng import seed_all
from stretto.train.script_checks.variables import script_frames
from stretto.train.sharing.torchmetrics_state import computed

if TYPE_CHECKING:
    from stretto.train.job import Job

SWEEP = 1 << 42
"""Keeps the random numbers of the code after a sweep apart from those of steps."""


class Loader:
    """Made by `job.loader`. Iterating over it gives the steps of one epoch.

    Beside the properties below it has these attributes:

    metrics, sums, gathered    what step.log, step.sum and step.gather were given in the last whole sweep of an evaluation
    slices, train, tail, reduction, num_workers    as given to job.loader
    torchmetrics               as given to job.loader, as metrics
    number                     its place among the job's loaders, from 0
    epoch, step                sweeps that are finished; steps of the present one that are
    """

    def __init__(self, job: Job, given: Arguments, *, number: int, seed: int) -> None:
        self.job = job
        self.number = number
        self.batch = given.policy.reference
        self.slices = given.slices
        self.train = given.train
        self.tail = given.tail
        self.reduction = given.reduction
        """How the script's loss comes from those of its samples: "mean" or "sum"."""
        self.num_workers = given.prefetch.workers
        self.source = Source(given.dataset, seed=seed, shuffle=given.shuffle, collate=given.collate)
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
        self._ahead = Prefetcher(self.source, given.prefetch) if given.prefetch.workers else None
        self.torchmetrics: dict[str, Any] = {}
        """Metrics of this loader: reset before every sweep, computed after it."""
        self._counted: dict[str, Any] = {}
        """What the shared torchmetrics objects had counted at the end of the last sweep, while that is small."""
        self._expected: tuple[Any, ...] | None = None
        self._skipped = 0
        """Sweeps that the others had finished, on a worker that catches up."""
        self._watched: Step | None = None
        self._pinned = given.prefetch.pin_memory and torch.accelerator.is_available()
        self.sweeps = Sweeps(self)
        self.changes = Changes(given.dataset)

    @property
    def dataset(self) -> Any:
        """As given to job.loader."""
        return self.source.dataset

    @property
    def batch_size(self) -> int:
        """Samples in a step over all workers, at present."""
        return self.batch

    @property
    def drop_last(self) -> bool:
        """Whether an epoch's last, short batch is dropped."""
        return self.tail == "drop"

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        """What makes a slice of a list of samples."""
        return self.source.collate

    def __getattr__(self, name: str) -> Any:
        if name in ("sampler", "batch_sampler", "set_epoch"):
            raise AttributeError(
                f"a loader has no {name}: its order of samples follows from the job's seed and the epoch; leave set_epoch out"
            )
        raise AttributeError(f"'Loader' object has no attribute {name!r}")

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
        return {**self.position, "metrics": self.metrics, "sums": self.sums, **small(self.gathered), "torchmetrics": self._counted}

    @state.setter
    def state(self, held: dict[str, Any]) -> None:
        self.epoch, self.step, self.consumed = held["epoch"], held["step"], held["consumed"]
        self.batch = held["batch"]
        if "metrics" in held:  # checkpoints of version 0.1 have none
            self.metrics, self.sums = held["metrics"], held["sums"]
            self.gathered = Partial(held["gathered"], left_out=held["left_out"])
            self._counted = held["torchmetrics"]

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
        check_length(self.dataset, self.source.size)
        self.job._telling.sweep_begins()
        return self.sweeps.sweep(self._training() if self.train else self._evaluation())

    def begin_sweep(self) -> None:
        if self._ahead is not None:
            self._ahead.begin()
            if not self._ahead.persistent:
                self._expected = None

    def end_sweep(self, *, early: bool) -> None:
        self.job._telling.sweep_ended()
        if self._ahead is not None:
            self._ahead.end()
        if early or self.job._catch_up is not None:
            self.repeat()

    def _training(self) -> Iterator[Step]:
        job = self.job
        if job._catch_up is not None:
            job._admission.check_draw()
        if job._catch_up is not None and not self._reached():
            self._skipped += 1
            seed_all(job.seed, SWEEP, self.number, self.epoch if job._epoch is None else job._epoch)
            return  # the others have finished this sweep
        self._skipped = 0
        if job._epoch is not None and self.epoch > job._epoch:
            raise ScriptError(
                f"a second sweep over a training loader in epoch {job._epoch}: an epoch of job.epochs has each of "
                "its samples once; make a second loader for a second sweep"
            )
        job._active = self.number
        if job._catch_up is not None:
            job._admission.arrived()
        while True:
            job._boundary()
            job._planning.apply(self)
            count = self.count()
            if not count:
                break
            step = Step(self, index=job.step, epoch=self.epoch, first=self.consumed, count=count, parts=job._planning.parts(self))
            job._passes.open = job._passes.training = step
            try:
                yield step
            except GeneratorExit:
                if next(script_frames(), None) is not None:  # at its end the interpreter drops iterators
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
        for metric in self.torchmetrics.values():
            metric.reset()
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
        self.metrics |= computed(self.torchmetrics)
        self.sums, self.gathered = sums, {name: joined(name, held) for name, held in chunks.items()}
        self._counted = self.job._torchmetrics.snapshot()
        self.job._telling.swept(self)
        self.next_epoch()
        seed_all(self.job.seed, SWEEP, self.number)

    def _look(self) -> Iterator[Step]:
        """The others have done this evaluation, and its results came with the state. Of its steps the first is computed here, for
        variables that the script fills in the loop."""
        yield Step(self, index=0, epoch=max(0, self.epoch - 1), first=0, count=min(self.batch, self.source.size))
        self.job._passes.open = None
        self.job._torchmetrics.load_state_dict(self._counted)
        seed_all(self.job.seed, SWEEP, self.number)

    def wanted(self, step: Step, slice: int, part: int = 0) -> SliceRequest:
        low, high = cut(step.first, step.count, self.slices, slice)
        if step.parts > 1:
            low, high = cut(low, high - low, min(step.parts, high - low), part)  # no part without a sample
        return SliceRequest(step.epoch, step.first, slice, low, high)

    def fetch(self, step: Step, slice: int, part: int = 0) -> Any:
        """The samples of a slice, or of one of its parts, collated."""
        wanted = self.wanted(step, slice, part)
        if self._ahead is None or step.passes:
            slice_ = self.source[wanted]
            if self._ahead is not None:
                self._ahead.watch()  # reading may have changed the dataset, which no script did
            return pin_memory(slice_) if self._pinned else slice_
        if self._watched is not step:
            self._ahead.check()
            self._watched = step
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

    def _upcoming(self, step: Step, slice: int) -> Iterator[SliceRequest]:
        """What this worker will need from here on if nothing changes."""
        assert self._ahead is not None
        share = self._share
        epoch, first, start = step.epoch, step.first, slice
        for _ in itertools.count():
            left = self.source.size - first
            count = self.batch if left >= self.batch else (left if self.tail == "keep" else 0)
            if not count:
                if not self._ahead.persistent:
                    return  # the next sweep has processes of its own
                epoch, first = epoch + 1, 0
                continue
            for one in range(max(share.low, start), share.high):
                whole_low, whole_high = cut(first, count, self.slices, one)
                parts = min(step.parts, whole_high - whole_low)
                for part in range(parts):
                    low, high = cut(whole_low, whole_high - whole_low, parts, part)
                    if high > low:
                        yield SliceRequest(epoch, first, one, low, high)
            start = 0
            first += count
