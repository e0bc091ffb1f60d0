"""The loader: global batches cut into slices, independently of the number of workers. Its state is (epoch, step, samples)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch.utils.data._utils import pin_memory as pinning

from stretto.core.errors import ScriptError
from stretto.core.slices import Span
from stretto.train.data.dataset_changes import DatasetChanges
from stretto.train.data.dataset_checks import check_length
from stretto.train.data.loader_arguments import Arguments
from stretto.train.data.prefetch import Prefetcher
from stretto.train.data.sample_reader import Collate, SliceRequest, Source, cut
from stretto.train.data.step import Step, Total
from stretto.train.data.sweeps import Sweeps
from stretto.train.position import LoaderPosition
from stretto.train.reduce.sums import Partial, Row, add, joined, small
from stretto.train.rng import seed_all
from stretto.train.sharing.torchmetrics_state import SavedMetric, TorchMetrics, computed

if TYPE_CHECKING:
    from stretto.train.step_runner import StepRunner

SWEEP = 1 << 42
"""Keeps the random numbers of the code after a sweep apart from those of steps."""


class Loader:
    """Made by `job.loader`. Iterating over it gives the steps of one epoch.

    Beside the properties below it has these attributes:

    metrics, sums, gathered    what step.log, step.sum and step.gather were given in the last whole sweep of an evaluation
    slices, train, tail, reduction, num_workers    as given to job.loader
    torchmetrics               as given to job.loader, as metrics
    number                     its place among the job's loaders, from 0
    """

    def __init__(
        self,
        given: Arguments,
        *,
        number: int,
        seed: int,
        position: LoaderPosition,
        metric_states: TorchMetrics,
        check_open: Callable[[str], None],
        begin: Callable[[], StepRunner],
    ) -> None:
        """`check_open` refuses what is used after the job's end. `begin` makes this worker a member, once."""
        self.number = number
        self.position = position
        """How far the job is in this loader."""
        self.metric_states = metric_states
        """All torchmetrics objects of the job."""
        self.check_open = check_open
        self._begin = begin
        self._runner: StepRunner | None = None
        self.slices = given.slices
        self.train = given.train
        self.tail = given.tail
        self.reduction = given.reduction
        """How the script's loss comes from those of its samples: "mean" or "sum"."""
        self.num_workers = given.prefetch.workers
        self.source = Source(given.dataset, seed=seed, shuffle=given.shuffle, collate=given.collate)
        self.metrics: Row = {}
        """The mean of everything logged in the last whole sweep of an evaluation."""
        self.sums: dict[str, Any] = {}
        """The sum over the steps of the last whole sweep of an evaluation, of everything given to `step.sum`."""
        self.gathered: dict[str, Any] = {}
        """Everything given to `step.gather` in the last whole sweep of an evaluation, in the order of its samples."""
        self._prefetcher = Prefetcher(self.source, given.prefetch) if given.prefetch.workers else None
        self.torchmetrics: dict[str, Any] = {}
        """Metrics of this loader: reset before every sweep, computed after it."""
        self._metric_snapshot: dict[str, SavedMetric] = {}
        """The states of the shared torchmetrics objects at the end of the last sweep, if small."""
        self._expected: tuple[Span, int, int] | None = None
        """The worker's slices, the batch and the parts of a slice that prefetching goes by; None if it has to start over."""
        self._skipped = 0
        """Sweeps that the others had finished, on a worker that catches up."""
        self._checked: Step | None = None
        self._pinned = given.prefetch.pin_memory and torch.accelerator.is_available()
        self.sweeps = Sweeps(self)
        self.changes = DatasetChanges(given.dataset)

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
    def collate_fn(self) -> Collate:
        """Makes a slice of a list of samples."""
        return self.source.collate

    def __getattr__(self, name: str) -> NoReturn:
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
    def batch(self) -> int:
        """Samples in the next step over all workers."""
        return self.position.batch

    @property
    def epoch(self) -> int:
        """Sweeps that are finished."""
        return self.position.epoch

    @property
    def step(self) -> int:
        """Steps of the present sweep that are finished."""
        return self.position.step

    @property
    def consumed(self) -> int:
        """Samples of the present sweep in finished steps."""
        return self.position.consumed

    def to_dict(self) -> dict[str, object]:
        """The position and the results of the last evaluation, for newcomers and checkpoints."""
        if self.train:
            return {**self.position.to_dict()}
        results = {"metrics": self.metrics, "sums": self.sums, **small(self.gathered), "torchmetrics": self._metric_snapshot}
        return {**self.position.to_dict(), **results}

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes to what `to_dict` described."""
        self.position.restore(saved)
        if "metrics" in saved:  # checkpoints of version 0.1 have none
            self.metrics, self.sums = saved["metrics"], saved["sums"]
            self.gathered = Partial(saved["gathered"], left_out=saved["left_out"])
            self._metric_snapshot = saved["torchmetrics"]

    def next_count(self) -> int:
        """Samples of the next step; 0 at the end of the epoch."""
        left = self.source.size - self.consumed
        if left >= self.batch:
            return self.batch
        return left if self.tail == "keep" else 0

    def close(self) -> None:
        """Ends the prefetching processes."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    @property
    def runner(self) -> StepRunner:
        """Runs the steps. It exists once the script has begun a sweep."""
        assert self._runner is not None
        return self._runner

    def __iter__(self) -> Iterator[Step]:
        self.check_open("for step in loader")
        self._runner = runner = self._begin()
        check_length(self.dataset, self.source.size)
        runner.reporter.sweep_begins()
        return self.sweeps.sweep(self._training(runner) if self.train else self._evaluation(runner))

    def begin_sweep(self) -> None:
        """The script asks for the first step of a sweep."""
        if self._prefetcher is not None:
            self._prefetcher.begin()
            if not self._prefetcher.persistent:
                self._expected = None

    def end_sweep(self, *, early: bool) -> None:
        """The sweep is over, or was left `early`."""
        self.runner.reporter.sweep_ended()
        if self._prefetcher is not None:
            self._prefetcher.end()
        if early or self.runner.catching_up:
            self.repeat()

    def _training(self, runner: StepRunner) -> Iterator[Step]:
        epoch = runner.position.epoch
        if runner.catching_up:
            runner.state_sync.check_draw()
            if not self._reached(runner):
                self._skipped += 1
                seed_all(runner.seed, SWEEP, self.number, self.epoch if epoch is None else epoch)
                return  # the others have finished this sweep
        self._skipped = 0
        if epoch is not None and self.epoch > epoch:
            raise ScriptError(
                f"a second sweep over a training loader in epoch {epoch}: an epoch of job.epochs has each of "
                "its samples once; make a second loader for a second sweep"
            )
        yield from runner.training_steps(self)
        seed_all(runner.seed, SWEEP, self.number, self.epoch)
        self.position.next_epoch()

    def _reached(self, runner: StepRunner) -> bool:
        """Whether this is the sweep that the job is in, on a worker that catches up with it."""
        if runner.state_sync.active_loader != self.number:
            return False
        return runner.position.epoch is not None or self._skipped == self.epoch

    def _evaluation(self, runner: StepRunner) -> Iterator[Step]:
        if runner.catching_up:
            yield from self._repeat_evaluation(runner)
            return
        for metric in self.torchmetrics.values():
            metric.reset()
        results = SweepResults()
        for step in runner.evaluation_steps(self):
            yield step
            results.add(step)
        self.metrics = {**results.means(), **computed(self.torchmetrics)}
        self.sums, self.gathered = results.sums, results.gathered()
        self._metric_snapshot = self.metric_states.snapshot()
        runner.reporter.swept(self)
        self.position.next_epoch()
        seed_all(runner.seed, SWEEP, self.number)

    def _repeat_evaluation(self, runner: StepRunner) -> Iterator[Step]:
        """The others have done this evaluation, and its results came with the state. Of its steps the first is computed here, for
        variables that the script fills in the loop."""
        yield Step(self, index=0, epoch=max(0, self.epoch - 1), first=0, count=min(self.batch, self.source.size))
        runner.position.open = None
        self.metric_states.load_state_dict(self._metric_snapshot)
        seed_all(runner.seed, SWEEP, self.number)

    def request(self, step: Step, slice: int, part: int = 0) -> SliceRequest:
        """Names the samples of a slice, or of one of its parts."""
        low, high = cut(step.first, step.count, self.slices, slice)
        if step.parts > 1:
            low, high = cut(low, high - low, min(step.parts, high - low), part)  # no part without a sample
        return SliceRequest(step.epoch, step.first, slice, low, high)

    def fetch(self, step: Step, slice: int, part: int = 0) -> object:
        """The samples of a slice, or of one of its parts, collated."""
        request = self.request(step, slice, part)
        if self._prefetcher is None or step.passes:
            samples = self.source[request]
            if self._prefetcher is not None:
                self._prefetcher.watch()  # a change by reading is not one by the script
            return cast("object", pinning.pin_memory(samples)) if self._pinned else samples
        if self._checked is not step:
            self._prefetcher.check()
            self._checked = step
        share = self.runner.own_slices
        expected = (share, self.batch, step.parts)
        if self._expected != expected or slice == -1:
            self._expected = expected
            self._prefetcher.expect(self._upcoming(step, slice))
        return self._prefetcher.get(request)

    def repeat(self) -> None:
        """Lets prefetching start over: the slices of this step will be fetched again."""
        self._expected = None

    def _upcoming(self, step: Step, slice: int) -> Iterator[SliceRequest]:
        """The slices that this worker will need from here on if nothing changes."""
        assert self._prefetcher is not None
        share = self.runner.own_slices
        epoch, first, start = step.epoch, step.first, slice
        while True:
            left = self.source.size - first
            count = self.batch if left >= self.batch else (left if self.tail == "keep" else 0)
            if not count:
                if not self._prefetcher.persistent:
                    return  # the next sweep has processes of its own
                epoch, first = epoch + 1, 0
                continue
            for slice_ in range(max(share.low, start), share.high):
                whole_low, whole_high = cut(first, count, self.slices, slice_)
                parts = min(step.parts, whole_high - whole_low)
                for part in range(parts):
                    low, high = cut(whole_low, whole_high - whole_low, parts, part)
                    if high > low:
                        yield SliceRequest(epoch, first, slice_, low, high)
            start = 0
            first += count


class SweepResults:
    """Accumulates what a script logs, sums and gathers in the steps of one evaluation."""

    def __init__(self) -> None:
        self.sums: dict[str, Total] = {}
        self._totals: dict[str, tuple[float, int]] = {}
        self._chunks: dict[str, list[torch.Tensor | list[Any]]] = {}

    def add(self, step: Step) -> None:
        """Adds a finished step."""
        for name, value in step.metrics.items():
            total, weight = self._totals.get(name, (0.0, 0))
            self._totals[name] = (total + value * step.count, weight + step.count)
        for name, value in step.sums.items():
            self.sums[name] = add(name, self.sums[name], value) if name in self.sums else value
        for name, value in step.gathered.items():
            self._chunks.setdefault(name, []).append(value)

    def means(self) -> Row:
        """The means over all samples of everything that was logged."""
        return {name: total / weight for name, (total, weight) in self._totals.items()}

    def gathered(self) -> dict[str, torch.Tensor | list[Any]]:
        """Everything that was gathered, in the order of the samples."""
        return {name: joined(name, chunks) for name, chunks in self._chunks.items()}
