"""A step, from its boundary to its commit. The first section of `StepRunner` reads from top to bottom:

1. `_boundary`: follows the chief's directives, switches rosters, sends newcomers the state, takes checkpoints.
2. `_next_step`: decides the batch. The script gets the step.
3. `_run`, inside the script's loop over the step: computes this worker's slices and exchanges the results, and repeats both if the
   roster breaks or a worker has cut the pass differently.
4. The script's optimizer steps.
5. `_commit`, when the script comes back for the next step.

What the parts do in detail is in their own files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.core.errors import Broken, ScriptError
from stretto.core.heartbeat import Activity, Heartbeat
from stretto.core.journal import Digests
from stretto.core.slices import Span
from stretto.train.batch_controller import BatchController
from stretto.train.checkpoint.saver import Saver
from stretto.train.consistency import PreambleCheck
from stretto.train.data.step import Step
from stretto.train.entry.agent_channel import NullHeartbeat
from stretto.train.entry.failpoints import failpoint
from stretto.train.entry.fingerprint import TorchSettings
from stretto.train.membership import Left, Membership
from stretto.train.position import Directives, Position
from stretto.train.reduce.preamble import BARRIER, EVALUATION, TRAINING, Place
from stretto.train.reduce.reducer import Header, ReducedParameters, Reducer
from stretto.train.reduce.sums import Row, average
from stretto.train.reporting import AgentReporter, MetricsReporter
from stretto.train.rng import seed_all
from stretto.train.script_checks.variables import script_frames
from stretto.train.sharing.optimizer_hooks import OptimizerHooks
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.slice_loop import SliceLoop, equal_units, moment
from stretto.train.state_sync import StateSync

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader

OUTSIDE = 1 << 20
"""Stands for the slice in the random numbers of the code after a step's slices."""
LAST_SAVES = 3
"""Attempts at the checkpoint before an orderly end, where workers die during it."""


class Stopped(Left):
    """The job was stopped in order: all workers end at the same boundary."""


@dataclass(slots=True, kw_only=True)
class StepRunner:
    """Runs the steps of one worker, one at a time. Only the runner advances the position."""

    seed: int
    slices: int
    digest_every: int
    position: Position
    membership: Membership
    heartbeat: Heartbeat | NullHeartbeat
    shared: SharedObjects
    settings: TorchSettings
    hooks: OptimizerHooks
    reducer: Reducer
    parameters: ReducedParameters
    preambles: PreambleCheck
    state_sync: StateSync
    batches: BatchController
    slice_loop: SliceLoop
    reporter: AgentReporter
    metrics: MetricsReporter
    saver: Saver | None
    stopping: bool = field(default=False, init=False)
    """All workers know that the job ends at the next boundary."""
    last_metrics: Row = field(default_factory=dict[str, float], init=False)
    """What the last finished training step logged."""
    _running: bool = field(default=False, init=False)
    """A pass has begun and its exchange is not over."""
    _digest: tuple[int, str] | None = field(default=None, init=False)
    """The step after which a digest was taken, and the digest; compared in the next exchange."""

    # ---- a step, from its boundary to its commit

    def training_steps(self, loader: Loader) -> Iterator[Step]:
        """The steps of a training loader's present epoch."""
        self.position.active_loader = loader.number
        if self.catching_up:
            self.state_sync.arrived()
        while True:
            loader.check_open("for step in loader")
            self._boundary()
            step = self._next_step(loader)
            if step is None:
                break
            self.position.begin_step(step)
            try:
                yield step
            except GeneratorExit:
                if next(script_frames(), None) is not None:  # at its end the interpreter drops iterators
                    self.position.left = step
                raise
            self._commit(step)
        self.position.active_loader = None
        self.metrics.epoch_done()
        self.reporter.epoch_done(loader)

    def _boundary(self) -> None:
        """Between two training steps: the job stops here, rosters switch, newcomers get the state, checkpoints are taken."""
        self.settle()
        self._check_one_loop()
        self._check_script()
        if self.stopping:
            self._save_last()
            raise Stopped(0)
        directives = self._follow_directives()
        self.state_sync.at_boundary()
        self._switch_roster()
        if self.saver is not None:
            self.saver.at_boundary(directives)
        self.heartbeat.activity(Activity.OUTSIDE)
        seed_all(self.seed, self.position.step, OUTSIDE, 1)

    def _next_step(self, loader: Loader) -> Step | None:
        """The next step, with the batch that was decided for it; None at the end of the epoch."""
        self.batches.apply(loader)
        count = loader.next_count()
        if not count:
            return None
        parts = self.batches.parts(loader)
        return Step(loader, index=self.position.step, epoch=loader.epoch, first=loader.consumed, count=count, parts=parts)

    def run(self, step: Step) -> Iterator[object]:
        """This worker's slices of a step, again from the first whenever the roster breaks, until the pass has happened."""
        if not self.catching_up:
            return self._run(step)
        self.position.open = step
        return self.slice_loop.rerun_evaluation(step)

    def _run(self, step: Step) -> Iterator[object]:
        self.position.open = step
        while True:
            try:
                self._begin_pass(step)
                yield from self.slice_loop.compute(step)
                header = self._header(step)
                headers = self.reducer.reduce(header)
                if self._same_cut(step, headers):
                    self._end_pass(step, header, headers)
                    break
                self._undo_pass(step, headers)
            except Broken:
                self.recover()
                step.loader.repeat()
        self.heartbeat.activity(Activity.STEPPING)
        seed_all(self.seed, moment(step), step.passes, OUTSIDE)

    def _commit(self, step: Step) -> None:
        """The script is done with a training step: its optimizer has run."""
        self.position.training = None
        if not step.passes:
            self._check_script()
        step_s = self.reporter.step_seconds()
        batching = self.batches.committed(step, step_s=step_s)
        self.last_metrics = step.metrics
        self.reporter.committed(step, step_s=step_s, batching=batching)
        self.metrics.report(step)
        self.position.commit(step)
        if self.digest_every and self.position.step % self.digest_every == 0:
            self._digest = (self.position.step, self.shared.digest(self.position.to_dict()))
        failpoint("committed")

    def evaluation_steps(self, loader: Loader) -> Iterator[Step]:
        """The steps of one evaluation."""
        loader.position.rewind()
        while count := loader.next_count():
            step = Step(loader, index=loader.step, epoch=loader.epoch, first=loader.consumed, count=count)
            self.position.open = step
            yield step
            self.reporter.evaluated()
            if not step.passes:
                self._check_script()
            loader.position.advance(count)

    # ---- the boundary

    @property
    def catching_up(self) -> bool:
        """Whether this worker's script is on its way to the place where the job trains."""
        return self.membership.catching_up

    def settle(self) -> None:
        """Commits the step at which the script left `for step in data`. That epoch is over: the rest of it is in no step."""
        step, self.position.left = self.position.left, None
        if step is None:
            return
        self.position.training = self.position.active_loader = None
        if step.passes:
            self._commit(step)
        elif not step.opened:
            self.position.open = None
            step.loader.sweeps.check_left(step)
        step.loader.position.next_epoch()

    def _check_one_loop(self) -> None:
        other = self.position.training
        if other is not None:
            raise ScriptError(
                f"a training step begins before step {other.index} of loader {other.loader.number} has ended: sweep "
                "over one training loader at a time, or give one both datasets (torch.utils.data.StackDataset)"
            )

    def _check_script(self) -> None:
        """Refuses what a script must not do within a step; called at the next boundary."""
        step, self.position.open = self.position.open, None
        if step is not None:
            step.check_finished()
        self.settings.check()
        self.shared.check_plain()
        self.parameters.at_boundary()

    def _follow_directives(self) -> Directives:
        """What the chief decided in the last exchange for this boundary."""
        directives, self.position.directives = self.position.directives, Directives()
        self.position.save_at = int(directives.get("save", 0))
        if directives:
            self.batches.follow_directive(directives)
        return directives

    def _switch_roster(self) -> None:
        """Moves to the roster that was agreed on, if there is one. Its newcomers get the state."""
        before = time.monotonic()
        try:
            roster = self.membership.switch(self.state_sync.send)
        except Left:
            if self.saver is not None:
                self.saver.leave()
            raise
        except Broken:
            self.recover()
            return
        if roster is not None:
            self._enter_group()
            self.reporter.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)

    def _enter_group(self) -> None:
        assert self.membership.group is not None
        self.reducer.join(self.membership.group)

    def recover(self) -> None:
        """The roster is broken: waits for the next one and enters it, with the pass in flight undone."""
        before = time.monotonic()
        if self.saver is not None:
            self.saver.broke()
        if self._running:
            self.reducer.restore_buffers()
        self.reducer.undo_gradients()
        self._running = False
        self.heartbeat.activity(Activity.WAITING)
        self.membership.failed()
        failure = self.reducer.settle()
        if isinstance(failure, Left):  # this worker stands elsewhere, and the others have left the roster first
            raise failure
        roster = self.membership.rescue()
        self._enter_group()
        self.reporter.switched(roster, switch_ms=(time.monotonic() - before) * 1e3)
        self.reporter.repeat_commit()

    def _save_last(self) -> None:
        """Saves a checkpoint before all members end at this boundary; again with the survivors if a member dies meanwhile."""
        for _ in range(LAST_SAVES):
            if self.saver is None or self.saver.last():
                return
            self.recover()

    # ---- the pass

    @property
    def own_slices(self) -> Span:
        """This worker's slices."""
        return self.reducer.share

    @property
    def step_to_repeat(self) -> Step | None:
        """The training step whose pass is under way, which can be computed once more; None between passes."""
        step = self.position.open
        return step if self._running and step is not None and step.loader.train else None

    def abandon_pass(self) -> bool:
        """The script ran out of memory in a slice. Returns whether the roster had to be broken: this worker's gradient was
        already on its way."""
        broken = self.reducer.abandon() and self.membership.size > 1
        if broken:
            self.membership.failed()
        return broken

    def _begin_pass(self, step: Step) -> None:
        loader, train = step.loader, step.loader.train
        self.membership.check()
        self.heartbeat.enter_pass(train=train, loader=loader.number, step=step.index, pass_=step.passes)
        if train:
            self.reducer.undo_gradients()
            self.parameters.begin_pass(first=not step.passes)
            self.state_sync.begin_pass()
            self.hooks.begin_pass()
        mean = 1 / self.slices if equal_units(step) else 1 / step.count
        compare = self.preambles.comparison(_place(step), order=step.order, changes=loader.changes.begin())
        self.reducer.begin(scale=1.0 if loader.reduction == "sum" else mean, mean=mean, train=train, compare=compare)
        if train:
            self.batches.begin(step)
        self._running = True
        step.begin_pass()

    def _header(self, step: Step) -> Header:
        """What this worker sends to the others in the exchange."""
        train = step.loader.train
        self.heartbeat.activity(Activity.EXCHANGE)
        header = Header(
            offer=self.membership.seat.offer(),
            rows=step.drain(),
            stop=self.membership.stopping,
            digest=list(self._digest or ()),
            resend=self.state_sync.resend,
        )
        if train and self.membership.chief:
            header.note = self.batches.directive()
        if train and self.saver is not None:
            header.note.update(self.saver.note())
        header.parts, header.blob = step.parts, step.pack()
        self.slice_loop.end_pass(train=train)
        step.loader.changes.end()
        if train:
            self.batches.fill(header)
        return header

    def _same_cut(self, step: Step, headers: list[Header]) -> bool:
        """Whether all workers have cut the pass alike. It is repeated where they have not."""
        return not any(header.again or header.resend or header.parts != step.parts for header in headers)

    def _end_pass(self, step: Step, header: Header, headers: list[Header]) -> None:
        """The pass has happened on all workers: gradients, buffers and results get their values."""
        self.membership.exchanged(header.offer, [other.offer for other in headers])
        self._running = False
        self.reducer.finish(headers)
        if step.loader.train:
            self.hooks.end_pass()
            self.batches.exchanged(step, headers)
            self.position.directives = headers[0].note
            if self.saver is not None:
                self.saver.receive_notes([other.note for other in headers])
        else:
            self.hooks.steps = {}
        self.stopping = self.stopping or any(other.stop for other in headers)
        self._compare_digests(headers)
        step.passes += 1
        step.finish_pass([other.blob for other in headers])
        rows = {int(unit): row for other in headers for unit, row in other.rows.items()}
        step.metrics = {**average(rows, dict(enumerate(step.units())), self.slices * step.parts), **step.metrics}

    def _undo_pass(self, step: Step, headers: list[Header]) -> None:
        """A worker has cut the pass differently: it is repeated with what all workers have learnt."""
        self.reducer.undo(headers)
        behind = [rank for rank, header in enumerate(headers) if header.resend]
        if behind:
            self._running = False
            self.state_sync.send_again(behind)
        parts = max(header.parts for header in headers)
        if parts != step.parts:
            self.batches.agree(step, parts)

    def _compare_digests(self, headers: list[Header]) -> None:
        """Compares the digests that the workers took after the last step."""
        if self._digest is None:
            return
        workers = self.membership.roster.workers
        digests = {name: str(header.digest[1]) for name, header in zip(workers, headers, strict=True) if header.digest}
        (step, _), self._digest = self._digest, None
        equal = len(set(digests.values())) == 1
        if self.membership.chief:
            self.reporter.send(Digests(step=step, digests=digests, equal=equal))
        if not equal:
            raise ScriptError(
                f"the workers' states differ after step {step}: {digests}; something in the script depends on the worker"
            )

    def barrier(self) -> None:
        """An exchange without numbers: no member goes on before all are here."""
        if self.catching_up:
            return
        while True:
            try:
                self.membership.check()
                self.heartbeat.activity(Activity.EXCHANGE)
                compare = self.preambles.comparison(Place(BARRIER, step=self.position.step))
                self.reducer.begin(scale=1.0, mean=1.0, train=False, compare=compare)
                headers = self.reducer.reduce(Header(offer=self.membership.seat.offer(), stop=self.membership.stopping))
                self.membership.exchanged(headers[self.membership.rank].offer, [header.offer for header in headers])
                break
            except Broken:
                self.recover()
        self.hooks.steps = {}
        self.stopping = self.stopping or any(header.stop for header in headers)
        self.heartbeat.activity(Activity.OUTSIDE)


def _place(step: Step) -> Place:
    kind = TRAINING if step.loader.train else EVALUATION
    return Place(kind, step.loader.number, step.epoch, step.index, step.passes, step.first, step.count)
