"""The job as its script sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any

from stretto.batching.batch_policies import Policy
from stretto.batching.lr_rules import LrRule
from stretto.core.errors import ScriptError
from stretto.core.journal import JournalReport
from stretto.train.data.loader import Loader
from stretto.train.data.loader_arguments import arguments, prefetch, refuse_words
from stretto.train.reduce.sums import Row
from stretto.train.reporting import reported
from stretto.train.rng import seed_all
from stretto.train.session import TrainingSession
from stretto.train.sharing.shared_objects import JobStateAttributes

EPOCH = 1 << 41
"""Keeps the random numbers of the code at the beginning of an epoch apart from those of steps."""


class Job:
    """The job as its script sees it. Made by `stretto.join`; docs/reference/python.md has an example."""

    def __init__(self, session: TrainingSession) -> None:
        self._session = session

    @property
    def step(self) -> int:
        """Training steps that the job has finished."""
        return self._session.position.step

    @property
    def epoch(self) -> int:
        """The present epoch of `job.epochs`; 0 without it."""
        return self._session.position.epoch or 0

    @property
    def seed(self) -> int:
        """As given to stretto.join."""
        return self._session.seed

    @property
    def slices(self) -> int:
        """Parts of every global batch; 0 before there is a loader."""
        return self._session.slices

    @property
    def worker(self) -> str:
        """This worker's name, for logs; "alone" under plain `python`."""
        return self._session.process.worker

    @property
    def last_metrics(self) -> Row:
        """What the last finished training step logged, as means over all samples."""
        return self._session.runner.last_metrics if self._session.runner is not None else {}

    @property
    def closed(self) -> bool:
        """Whether the job is over in this process."""
        return self._session.closed

    @property
    def chief(self) -> bool:
        """Whether this is the worker that prints, plots and saves: exactly one per job, from the first line of the script on.

        A worker that joins a running job is never chief at the top of its script. When the chief dies during training, another
        worker becomes chief; if it dies before, the worker that replaces it does. After a resume nobody is chief between
        `job.epochs` and the first step: what the chief does there was done before.
        """
        return self._session.membership.chief

    @property
    def rank(self) -> int:
        """This worker's number: 0 for the chief, another for everybody else. It may change when workers come or go."""
        return self._session.membership.rank

    @property
    def workers(self) -> int:
        """How many workers train; before training begins, how many the job wants."""
        return self._session.membership.size

    @property
    def resumed(self) -> bool:
        """Whether the job was resumed from a checkpoint, so that its earlier files are to be appended to."""
        return bool(self._session.process.options.get("resume"))

    def barrier(self) -> None:
        """Before training: waits until the chief has come to the same barrier ("the chief downloads, all read"); the chief itself
        does not wait, nor does a worker that joins a running job. During training: every worker waits for all others."""
        session = self._session
        session.check_open("job.barrier")
        if session.admitted and session.runner is not None:
            session.runner.barrier()
        else:
            session.membership.early.barrier()

    @property
    def state(self) -> JobStateAttributes:
        """Plain values that are the same on every worker, as attributes: `job.state.best = 0.0`. Set them before training."""
        return self._session.shared.state

    @property
    def progress(self) -> float:
        """The steps so far, counted in steps of the reference batch: what a schedule should follow when batches change."""
        return self._session.batches.progress

    def share(self, *, lr_rule: LrRule | None = None, **objects: object) -> None:
        """Shares objects that are the same on every worker, by name: modules, optimizers, schedulers, scalers, torchmetrics,
        dictionaries of plain values and tensors, anything with a state_dict of these. Call it before the first step.

        `lr_rule` says how the optimizers' learning rates follow the batch (docs/guides/batching.md).
        """
        self._session.share(**objects)
        if lr_rule is not None:
            self._session.batches.follow(lr_rule)

    def loader(
        self,
        dataset: object,
        batch_size: int | Policy | None = None,
        *positional: object,
        slices: int | None = None,
        train: bool = True,
        tail: str | None = None,
        drop_last: bool | None = None,
        shuffle: bool | None = None,
        reduction: str = "mean",
        metrics: Mapping[str, object] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        timeout: float = 0,
        pin_memory: bool = False,
        **others: object,
    ) -> Loader:
        """Global batches of `batch_size` samples, whatever the number of workers: `for step in loader: for x, y in step: …`.

        dataset: anything with `len` and `[index]`: a Dataset, a list, an array, a tensor. Its length stays as it is.
        batch_size: samples in a step over all workers, or `stretto.PerWorker(…)` or `stretto.Adaptive(…)`. May come by place.
        slices: equal parts that every step is cut into, at most one worker each; 8. A part of what decides the bits.
        train: True for training; False spreads an evaluation over the workers, without gradients.
        tail: "drop" or "keep" an epoch's last, short batch. Training drops it, an evaluation keeps it.
        drop_last: DataLoader's word for tail: True drops, False keeps.
        shuffle: whether every epoch has an order of its own, from the job's seed. Training shuffles, an evaluation does not.
        reduction: "mean" or "sum", as in the loss function: how a slice's loss comes from those of its samples.
        metrics: torchmetrics objects by name, for an evaluation: they are shared, reset before every sweep over the loader, and
            their values are in `loader.metrics` after it (docs/guides/evaluation.md).
        collate_fn: makes a slice of a list of samples; by default torch.utils.data.default_collate.
        num_workers: processes that read ahead, for each worker; 0 reads in the worker itself.
        prefetch_factor: slices that each of those processes holds ready; 2.
        persistent_workers: keep those processes over epochs. Without it they begin anew with each sweep over the loader and
            see what the script has changed in the dataset; with it the dataset must stay as it is.
        worker_init_fn: called in each of those processes, with its number. Seeds that it sets have no effect: random numbers
            are set for each sample. It must not make samples differ from process to process.
        multiprocessing_context: how those processes start: "fork", "spawn", "forkserver".
        timeout: seconds to wait for a slice from them; 0 waits for ever.
        pin_memory: copy slices to page-locked memory if torch finds an accelerator.

        `sampler`, `batch_sampler`, `generator`, `in_order` and `pin_memory_device` are refused, with the way that exists.
        The loader has `dataset`, `batch_size`, `num_workers`, `drop_last`, `collate_fn`, `reduction`, and `len(loader)` steps.
        """
        self._session.check_open("job.loader")
        refuse_words(positional, others)
        loader_arguments = arguments(
            dataset,
            batch_size=batch_size,
            slices=slices,
            earlier=self.slices,
            train=train,
            tail=tail,
            drop_last=drop_last,
            shuffle=shuffle,
            reduction=reduction,
            collate=collate_fn,
            prefetch=prefetch(
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                timeout=timeout,
                pin_memory=pin_memory,
            ),
        )
        return self._session.add_loader(loader_arguments, metrics)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs from the job's present one on: a newcomer begins in the epoch of the others."""
        session, position = self._session, self._session.position
        session.check_open("job.epochs")
        if not session.loaders:
            raise ScriptError("job.epochs was reached before any job.loader: make the loaders first")
        position.epochs = count
        runner = session.begin()
        for epoch in range(position.epoch or 0, count):
            position.epoch = epoch
            seed_all(self.seed, EPOCH, epoch)
            yield epoch
            runner.settle()
            if runner.catching_up:
                raise runner.state_sync.astray(f"ended epoch {epoch}")
            position.epoch = epoch + 1

    def digest(self) -> str:
        """SHA-256 of everything shared and of the job's place: equal on all workers at a step boundary."""
        self._session.check_open("job.digest")
        return self._session.digest()

    def report(self, **metrics: float) -> None:
        """Application metrics for the scheduler and the page (docs/reference/metrics.md)."""
        self._session.check_open("job.report")
        values = reported(metrics)
        if self.chief:
            self._session.reporter.send(JournalReport(step=self.step, metrics=values))

    def close(self) -> None:
        """Ends the job in this process, with all of its hooks, threads and prefetching processes. A second call does nothing.

        Afterwards a script under plain `python` may join another job. A launched worker has then finished, as it would have at the
        end of its script, and the code that follows still runs. `with stretto.join(...) as job:` calls this at its end.
        """
        self._session.close()

    def __enter__(self) -> Job:
        self._session.check_open("with job")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the job. A launched worker that fails has not finished: what becomes of it is decided where its script ends."""
        if kind is None or self._session.process.channel is None:
            self.close()
