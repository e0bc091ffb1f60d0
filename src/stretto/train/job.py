"""The job as its script sees it, and the order of things at the edges of passes and steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from stretto.batching.batch_policies import Policy
from stretto.batching.lr_rules import LrRule
from stretto.core.errors import Broken, ScriptError
from stretto.core.heartbeat import Activity, Heartbeat
from stretto.train.batch_controller import BatchController
from stretto.train.catch_up import CatchUp
from stretto.train.checkpoint.saver import Saver
from stretto.train.consistency import Consistency
from stretto.train.data.loader import Loader
from stretto.train.data.loader_arguments import arguments, prefetch, refuse_words
from stretto.train.entry.agent_channel import AgentChannel, NullHeartbeat
from stretto.train.entry.fingerprint import TorchSettings
from stretto.train.membership import Left, Membership
from stretto.train.metrics import reported
from stretto.train.oom_retry import OomCarryover
from stretto.train.reduce.buffers import Buffers
from stretto.train.reduce.gradients import Gradients
from stretto.train.reduce.logged_metrics import Row
from stretto.train.reduce.reducer import Reducer
from stretto.train.reporting import AgentReporter
from stretto.train.rng import seed_all
from stretto.train.script_checks.variables import suspects
from stretto.train.sharing.optimizer_hooks import OptimizerHooks
from stretto.train.sharing.plain_state import JobStateAttributes
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.torchmetrics_state import TorchMetrics
from stretto.train.state_sync import StateSync
from stretto.train.step_runner import OUTSIDE, StepRunner

EPOCH = 1 << 41
"""Keeps the random numbers of the code at the beginning of an epoch apart from those of steps."""
LAST_SAVES = 3
"""How often the checkpoint before an orderly end is tried when workers die during it."""


class Stopped(Left):
    """The job was stopped in order: all workers end at the same boundary."""


class Job:
    """The job as its script sees it. Made by `stretto.join`; docs/reference/python.md has an example.

    Beside the properties and methods below it has these attributes:

    step            training steps that the job has finished
    seed            as given to stretto.join
    worker          this worker's name, for logs; "alone" under plain `python`
    slices          parts of every global batch; 0 before there is a loader
    last_metrics    what the last finished training step logged, as means over all samples
    closed          whether the job is over in this process
    """

    def __init__(
        self,
        *,
        seed: int,
        options: dict[str, Any],
        worker: str,
        link: AgentChannel | None,
        beat: Heartbeat | NullHeartbeat,
        carried: OomCarryover | None = None,
    ) -> None:
        self.seed = seed
        self.options = options
        self.worker = worker
        self.step = 0
        """Training steps finished by the job."""
        self.slices = 0
        """How many parts every global batch is cut into; known once there is a loader."""
        self.last_metrics: Row = {}
        self._epoch: int | None = None
        self._settings = TorchSettings()
        self._changed: list[str] = []
        """What was set for the user when the script joined."""
        self._link = link
        self._beat = beat
        self._team = carried.job._team if carried else Membership(worker, link=link, host=str(options.get("host", "127.0.0.1")))
        self._shared = SharedObjects()
        self._hooks: OptimizerHooks
        self._consistency: Consistency
        self._catch_up: CatchUp | None = None
        """Between the state that this worker was given and its first own step."""
        self._active: int | None = None
        """The training loader whose loop the script is in."""
        self._torchmetrics = TorchMetrics()
        self._loaders: list[Loader] = []
        self._reducer: Reducer | None = None
        self._reduced: set[int] = set()
        """Parameters, by place, whose gradients are reduced: all that have been trained at some time."""
        self._between: set[int] | None = None
        """Those that were trained at the last boundary between two steps."""
        self._thawed: set[int] = set()
        """Those that a step has thawed before its first pass: frozen between two steps they are nothing that was set once."""
        self._stop = False
        self._telling = AgentReporter(self)
        self._admission = StateSync(self, carried=carried)
        self._passes = StepRunner(self)
        self.note: Callable[[], dict[str, Any]] | None = None
        """What the chief says for the next boundary; `noted` hears it there on every worker."""
        self.noted: list[Callable[[dict[str, Any]], None]] = []
        self._notes: dict[str, Any] = {}
        self._planning = BatchController(self)
        self._last_epoch: int | None = None
        self._saver: Saver | None = None
        self.closed = False
        self._resources = contextlib.ExitStack()
        """What ends with the job in this process: hooks, threads, prefetching processes."""
        self._resources.callback(self._planning.close)
        self._save_at = 0
        """The boundary at which all members save; newcomers that are admitted there hear of it with the state."""

    # ---- what a script uses

    @property
    def chief(self) -> bool:
        """Whether this is the worker that prints, plots and saves: exactly one of the job's, from the first line of the script on.

        A worker that joins a running job is never chief at the top of its script. When the chief dies during training, another
        worker becomes chief; if it dies before, the worker that replaces it does. After a resume nobody is chief between
        `job.epochs` and the first step: what the chief does there was done before.
        """
        return self._catch_up is None and self.rank == 0

    @property
    def rank(self) -> int:
        """This worker's number: 0 for the chief, another for everybody else. It may change when workers come or go."""
        return self._team.early.rank if self._team.group is None else self._team.rank

    @property
    def workers(self) -> int:
        """How many workers train; before training begins, how many the job wants."""
        return self._team.early.workers if self._team.group is None else self._team.group.size

    @property
    def resumed(self) -> bool:
        """Whether the job went on from a checkpoint this time, so that files of earlier are to be appended to."""
        return bool(self.options.get("resume"))

    def barrier(self) -> None:
        """Before training: waits until the chief has come to the same barrier ("the chief downloads, all read"); the chief itself
        does not wait, nor does a worker that joins a running job. During training: every worker waits for all others."""
        self._check_open("job.barrier")
        if self._admission.done:
            self._passes.barrier()
        else:
            self._team.early.barrier()

    @property
    def epoch(self) -> int:
        """The present epoch of `job.epochs`; 0 without it."""
        return self._epoch or 0

    @property
    def state(self) -> JobStateAttributes:
        """Plain values that every worker holds alike, as attributes: `job.state.best = 0.0`. Set them before training."""
        return self._shared.state

    @property
    def progress(self) -> float:
        """Steps of the reference batch that the steps so far are worth: what a schedule should follow when batches change."""
        return self._planning.progress

    def share(self, *, lr_rule: LrRule | None = None, **objects: Any) -> None:
        """What every worker holds alike, by name: modules, optimizers, schedulers, scalers, torchmetrics, dictionaries of plain
        values and tensors, anything with a state_dict of these. Before the first step.

        `lr_rule` says how the optimizers' learning rates follow the batch (docs/guides/batching.md).
        """
        self._check_open("job.share")
        if self._admission.done:
            raise ScriptError("job.share was called after training began: call it before the first `for step in data`")
        self._shared.add(objects)
        if lr_rule is not None:
            self._planning.follow(lr_rule)

    def loader(
        self,
        dataset: Any,
        batch_size: int | Policy | None = None,
        *positional: Any,
        slices: int | None = None,
        train: bool = True,
        tail: str | None = None,
        drop_last: bool | None = None,
        shuffle: bool | None = None,
        reduction: str = "mean",
        metrics: dict[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        timeout: float = 0,
        pin_memory: bool = False,
        **others: Any,
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
        self._check_open("job.loader")
        refuse_words(positional, others)
        given = arguments(
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
        loader = Loader(self, given, number=len(self._loaders), seed=self.seed)
        if metrics:
            loader.torchmetrics = self._torchmetrics.take(metrics, loader.number, train=train, share=self.share)
        self._planning.use(loader, given.policy)
        self.slices = given.slices
        self._loaders.append(loader)
        self._resources.callback(loader.close)
        if self._admission.done:
            self._telling.loader(loader)
        return loader

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs from the job's present one on: a newcomer begins with the others'."""
        self._check_open("job.epochs")
        if not self._loaders:
            raise ScriptError("job.epochs was reached before any job.loader: make the loaders first")
        self._last_epoch = count
        self._admission.admit()
        for epoch in range(self._epoch or 0, count):
            self._epoch = epoch
            seed_all(self.seed, EPOCH, epoch)
            yield epoch
            self._settle()
            if self._catch_up is not None:
                raise self._astray(f"ended epoch {epoch}")
            self._epoch = epoch + 1

    def _astray(self, what: str) -> BaseException:
        """This worker's script has passed the place where the job trains without training there."""
        assert self._catch_up is not None
        return self._admission.refusal(
            f"its script {what} without reaching the loop over loader {self._catch_up.loader} where the job is, step {self.step}: "
            "whatever decides that must be the same on every worker (job.epochs, job.step, shared state)"
        )

    def digest(self) -> str:
        """SHA-256 of everything shared and of the job's place: equal on all workers at a step boundary."""
        self._check_open("job.digest")
        self._settle()
        return self._shared.digest(self._admission.place(public=True))

    def report(self, **metrics: float) -> None:
        """Application metrics for the scheduler and the page (docs/reference/metrics.md)."""
        self._check_open("job.report")
        values = reported(metrics)
        if self.chief:
            self._telling.say("report", step=self.step, metrics=values)

    def close(self) -> None:
        """Ends the job in this process, with all of its hooks, threads and prefetching processes. A second call does nothing.

        Afterwards a script under plain `python` may join another job. A launched worker has then finished, as it would have at the
        end of its script, and the code that follows still runs. `with stretto.join(...) as job:` calls this at its end.
        """
        if self.closed:
            return
        if self._link is not None:
            self._finish(closed=True)
            self._link.close()
        self.closed = True
        self._resources.close()

    def __enter__(self) -> Job:
        self._check_open("with job")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the job. A launched worker that fails has not finished: what becomes of it is decided where its script ends."""
        if kind is None or self._link is None:
            self.close()

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ScriptError(
                f"{what}: this job is closed; use it before job.close() or the end of its `with` block, or join anew "
                "with stretto.join(...)"
            )

    # ---- boundaries

    def _boundary(self) -> None:
        """Between two training steps: rosters switch here, the job stops here."""
        self._check_open("for step in loader")
        self._settle()
        other = self._passes.training
        if other is not None:
            raise ScriptError(
                f"a training step begins before step {other.index} of loader {other.loader.number} has ended: sweep "
                "over one training loader at a time, or give one both datasets (torch.utils.data.StackDataset)"
            )
        self._check_script()
        reducer = self._reducer
        assert reducer is not None
        if self._stop:
            self._save_last()
            raise Stopped(0)
        notes, self._notes = self._notes, {}
        self._save_at = int(notes.get("save", 0))
        if notes:
            for hear in self.noted:
                hear(notes)
        self._admission.at_boundary()
        before = time.monotonic()
        try:
            roster = self._team.switch(self._admission.send)
        except Left:
            if self._saver is not None:
                self._saver.leave()
            raise
        except Broken:
            self._recover()
        else:
            if roster is not None:
                assert self._team.group is not None
                reducer.join(self._team.group)
                self._telling.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)
        if self._saver is not None:
            self._saver.at_boundary(notes)
        self._beat.activity(Activity.OUTSIDE)
        seed_all(self.seed, self.step, OUTSIDE, 1)

    def _settle(self) -> None:
        """Counts the step at which the script left `for step in data`. That epoch is over: the rest of it is in no step."""
        step, self._passes.left = self._passes.left, None
        if step is None:
            return
        self._passes.training = self._active = None
        if step.passes:
            step.loader.committed(step)
        elif not step.opened:
            self._passes.open = None
            step.loader.sweeps.check_left(step)
        step.loader.next_epoch()

    def _save_last(self) -> None:
        """All members end at this boundary: a checkpoint of it first. Again with the survivors if somebody dies meanwhile."""
        for _ in range(LAST_SAVES):
            if self._saver is None or self._saver.last():
                return
            self._recover()

    def _check_script(self) -> None:
        """What a script must not do, noticed at the next boundary."""
        step, self._passes.open = self._passes.open, None
        if step is not None and not step.passes:
            if not step.opened:
                raise ScriptError(
                    f"step {step.index} was never iterated over: every step needs its loop `for x, y in step`, so "
                    "that every worker brings its part. To look at samples use loader.dataset[0]; to leave some "
                    "out, a Subset"
                )
            raise ScriptError(
                f"step {step.index} was left early: the loop over its slices must run to its end, so that every "
                "worker brings its part (use `continue` instead of `break`)"
            )
        self._settings.check()
        self._shared.check_plain()
        self._between = self._trained()

    def _trained(self) -> set[int]:
        """Parameters, by place, that are trained now: scripts freeze and thaw them, also between two passes of a step."""
        return {place for place, parameter in enumerate(self._shared.all_parameters()) if parameter.requires_grad}

    def _prepare_gradients(self, reduced: set[int] | None = None) -> None:
        assert self._reducer is not None
        self._reduced = self._reduced | self._trained() if reduced is None else reduced
        parameters = [parameter for place, parameter in enumerate(self._shared.all_parameters()) if place in self._reduced]
        if self._reducer.gradients is not None:
            self._reducer.gradients.close()
        moving = self._reducer.buffers.moving if self._reducer.buffers is not None else set()
        self._reducer.gradients = self._hooks.gradients = Gradients(parameters)
        self._reducer.buffers = Buffers(self._shared.modules)
        self._reducer.buffers.moving |= moving

    def _recover(self) -> None:
        """The roster is broken: waits for the next one and enters it, with the pass in flight undone."""
        reducer, before = self._reducer, time.monotonic()
        assert reducer is not None
        if self._saver is not None:
            self._saver.broke()
        if self._passes.running and reducer.buffers is not None:
            reducer.buffers.restore()
        if reducer.gradients is not None:
            reducer.gradients.undo()
        self._passes.running = False
        self._beat.activity(Activity.WAITING)
        self._team.failed()
        failure = reducer.settle()
        if isinstance(failure, Left):  # it was found to stand elsewhere, and the others were faster to break up: it goes
            raise failure
        roster = self._team.rescue()
        assert self._team.group is not None
        reducer.join(self._team.group)
        self._telling.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)
        if self._telling.last_commit is not None and self._telling.first_here:
            self._telling.say("commit", **self._telling.last_commit)

    def _finish(self, *, closed: bool = False) -> None:
        """The script has ended, or only its job where it is `closed`."""
        if self._catch_up is not None:
            raise self._astray("ended")
        self._settle()
        self._beat.activity(Activity.ENDED)
        if self._saver is not None and self._admission.done and not self._stop:
            self._saver.last(final=True)
        self._telling.say(
            "finished",
            tick=self._team.seat.tick,
            step=self.step,
            digest=self.digest(),
            stopped=self._stop,
            closed=closed,
            hint=suspects(),
        )
