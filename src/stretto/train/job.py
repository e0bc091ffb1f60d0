"""The job as its script sees it, and the order of things at the edges of passes and steps."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stretto.batching.plans import Policy, check, policy_of
from stretto.batching.rules import Rule
from stretto.core.beat import Activity, Beat
from stretto.core.errors import Broken, ScriptError
from stretto.core.roster import Roster
from stretto.core.slices import Span
from stretto.train import transfer
from stretto.train.buffers import Buffers
from stretto.train.checkpoint.edges import open_saver, resume
from stretto.train.checkpoint.saver import Saver
from stretto.train.failpoints import failpoint
from stretto.train.fingerprint import fingerprint, prepare
from stretto.train.gradients import Gradients
from stretto.train.group import Group
from stretto.train.link import Link, Quiet
from stretto.train.loader import Loader, check_loader
from stretto.train.logs import Row, average
from stretto.train.memory import Carried
from stretto.train.planning import Planning
from stretto.train.randomness import seed_all
from stretto.train.reducer import Header, Reducer
from stretto.train.samples import cut
from stretto.train.shared import Shared
from stretto.train.step import Step
from stretto.train.team import Left, Team

SLICES = 8
OUTSIDE = 1 << 20
"""Stands for the slice in the random numbers of the code after a step's slices."""
EVALUATION = 1 << 40
"""Keeps the random numbers of evaluations apart from those of training."""


LAST_SAVES = 3
"""How often the checkpoint before an orderly end is tried when workers die during it."""


class Stopped(Left):
    """The job was stopped in order: all workers end at the same boundary."""


class Job:
    """Made by `stretto.join`."""

    def __init__(self, *, seed: int, options: dict[str, Any], worker: str, link: Link | None, beat: Beat | Quiet,
                 carried: Carried | None = None) -> None:
        self.seed = seed
        self.options = options
        self.worker = worker
        self.step = 0
        """Training steps finished by the job."""
        self.slices = 0
        """How many parts every global batch is cut into; known once there is a loader."""
        self.last_metrics: Row = {}
        self._epoch: int | None = None
        self._threads = torch.get_num_threads()
        self._link = link
        self._beat = beat
        self._carried = carried
        self._team = carried.job._team if carried else Team(worker, link=link, host=str(options.get("host", "127.0.0.1")))
        self._shared = Shared()
        self._loaders: list[Loader] = []
        self._reducer: Reducer | None = None
        self._flags: list[bool] = []
        self._admitted = False
        self._restored: set[int] = set()
        self._open: Step | None = None
        self._in_pass = False
        self._stop = False
        self._last_commit: dict[str, Any] | None = None
        self._stepped_at = time.monotonic()
        self._digest: list[Any] = []
        self.note: Callable[[], dict[str, Any]] | None = None
        """What the chief says for the next boundary; `noted` hears it there on every worker."""
        self.noted: list[Callable[[dict[str, Any]], None]] = []
        self._notes: dict[str, Any] = {}
        self._planning = Planning(self)
        self._last_epoch: int | None = None
        self._saver: Saver | None = None
        self._save_at = 0
        """The boundary at which all members save; newcomers that are admitted there hear of it with the state."""

    # ---- what a script uses

    @property
    def chief(self) -> bool:
        """Whether this is the roster's first worker: the one to print and to plot."""
        return self._team.group is None or self._team.rank == 0

    @property
    def workers(self) -> int:
        """How many workers the roster has."""
        return 1 if self._team.group is None else self._team.group.size

    @property
    def epoch(self) -> int:
        return self._epoch or 0

    @property
    def progress(self) -> float:
        """Steps of the reference batch that the steps so far are worth: what a schedule should follow when batches change."""
        return self._planning.progress

    def share(self, *, lr_rule: Rule | None = None, **objects: Any) -> None:
        """What every worker holds alike: modules, optimizers, schedulers, scalers, anything with a state_dict of plain values.

        `lr_rule` says how the optimizers' learning rates follow the batch (docs/batching.md).
        """
        if self._admitted:
            raise ScriptError("job.share was called after training began: call it before the first `for step in data`")
        self._shared.add(objects)
        if lr_rule is not None:
            self._planning.rule = lr_rule

    def loader(
        self,
        dataset: Any,
        *,
        batch_size: int | Policy,
        slices: int | None = None,
        train: bool = True,
        tail: str | None = None,
        shuffle: bool | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
    ) -> Loader:
        """Global batches of `batch_size` samples, whatever the number of workers. `train=False` spreads an evaluation."""
        if slices is None:
            slices = self.slices or SLICES
        if self.slices and slices != self.slices:
            raise ScriptError(f"slices={slices} here and {self.slices} in an earlier loader: all loaders of a job have one number")
        tail = tail or ("drop" if train else "keep")
        policy = policy_of(batch_size)
        if not isinstance(batch_size, int):
            if not train:
                raise ScriptError("an evaluation's batch_size is a whole number: how it is cut changes nothing that is trained")
            check(policy, slices=slices, samples=len(dataset))
        check_loader(len(dataset), policy.reference, slices, train=train, tail=tail)
        self.slices = slices
        loader = Loader(
            self, dataset, number=len(self._loaders), batch=policy.reference, slices=slices, train=train, tail=tail,
            shuffle=train if shuffle is None else shuffle, seed=self.seed, workers=num_workers, collate=collate_fn,
            pin_memory=pin_memory,
        )
        self._loaders.append(loader)
        if train:
            self._planning.use(loader, policy)
        if self._admitted:
            self._tell_loader(loader)
        return loader

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs from the job's present one on: a newcomer begins with the others'."""
        if not self._loaders:
            raise ScriptError("job.epochs was reached before any job.loader: make the loaders first")
        self._last_epoch = count
        self._admit()
        for epoch in range(self._epoch or 0, count):
            self._epoch = epoch
            yield epoch
            self._restored.clear()
            self._epoch = epoch + 1

    def digest(self) -> str:
        """SHA-256 of everything shared and of the job's place: equal on all workers at a step boundary."""
        return self._shared.digest(self._place(public=True))

    def report(self, **metrics: float) -> None:
        """Application metrics for the scheduler and the page (docs/metrics.md)."""
        if self.chief:
            self._say("report", step=self.step, metrics={name: float(value) for name, value in metrics.items()})

    # ---- admission

    def _place(self, *, public: bool = False) -> dict[str, Any]:
        place: dict[str, Any] = {"step": self.step, "epoch": self._epoch, "loaders": [one.state for one in self._loaders]}
        if not public:
            buffers = self._reducer.buffers if self._reducer is not None else None
            place["tick"] = self._team.seat.tick
            place["save"] = self._save_at
            place["moving"] = sorted(buffers.moving) if buffers is not None else []
        return place

    def _admit(self) -> None:
        """Once: this worker becomes a member, and has the state that the others have."""
        if self._admitted:
            return
        if not self.slices:
            raise ScriptError("training began before any job.loader was made")
        self._reducer = Reducer(self.slices)
        self._planning.start()
        self._prepare_gradients()
        self._saver = open_saver(self)
        if self._carried is not None:
            self._carry_on(self._carried)
        elif self._link is None:
            self._team.alone(self.slices)
            self._team.seat.tick = resume(self, self._saver)
            self._admitted = True
        else:
            described = [[one.train, one.batch, one.slices, one.tail, one.source.size] for one in self._loaders]
            self._beat.activity(Activity.WAITING)
            self._link.send("ready", shape=self._shared.shape(described), slices=self.slices,
                            fingerprint=fingerprint(), seed=self.seed)
            before = time.monotonic()
            roster = self._team.admit(self._receive)
            self._admitted = True
            self._say_switched(roster, (time.monotonic() - before) * 1e3)
        assert self._team.group is not None
        self._reducer.join(self._team.group)
        for loader in self._loaders:
            self._tell_loader(loader)
        self._stepped_at = time.monotonic()

    def _carry_on(self, carried: Carried) -> None:
        """This process was a member before its script ran out of memory, and still is."""
        self._restore(self._shared.load(carried.skeleton, carried.tensors))
        self._notes = {}  # what was ordered for this boundary has been done there
        self._planning.carry_on(carried.plan)
        self._last_commit = carried.job._last_commit
        self._carried = None
        self._admitted = True
        if carried.broken:
            roster = self._team.rescue()
            self._say_switched(roster, 0.0)

    def _prepare_gradients(self) -> None:
        assert self._reducer is not None
        parameters = self._shared.parameters()
        if self._reducer.gradients is not None:
            self._reducer.gradients.close()
        moving = self._reducer.buffers.moving if self._reducer.buffers is not None else set()
        self._reducer.gradients = Gradients(parameters)
        self._reducer.buffers = Buffers(self._shared.modules)
        self._reducer.buffers.moving |= moving
        self._flags = self._trainable()

    def _trainable(self) -> list[bool]:
        return [parameter.requires_grad for _, module in self._shared.modules for parameter in module.parameters()]

    def _ranks(self, roster: Roster) -> tuple[list[int], list[int]]:
        """Those who have the state, and those who get it. In a first roster the first member has it from its script."""
        newcomers = [place for place, name in enumerate(roster.workers) if name in roster.joined]
        if len(newcomers) == len(roster.members):
            newcomers = newcomers[1:]
        return [place for place in range(len(roster.members)) if place not in newcomers], newcomers

    def _receive(self, group: Group, roster: Roster) -> int:
        """The state from those who have it; the first roster's first member has it from its script."""
        holders, _ = self._ranks(roster)
        if group.rank in holders:
            if self._team.seat.tick is None:
                self._team.seat.tick = resume(self, self._saver)
            self._send(group, roster)
            return self._team.seat.tick
        self._beat.activity(Activity.SWITCH)
        failpoint("receive")
        skeleton, tensors = transfer.receive(group, holders=holders, room=self._shared.room)
        failpoint("received")
        return self._restore(self._shared.load(skeleton, tensors))

    def _restore(self, place: dict[str, Any]) -> int:
        """Goes to a place in the job; its tick."""
        assert self._reducer is not None and self._reducer.buffers is not None
        self.step, self._epoch = place["step"], place["epoch"]
        for loader, held in zip(self._loaders, place["loaders"], strict=False):
            loader.state = held
        self._restored = {loader.number for loader in self._loaders}
        self._reducer.buffers.moving = set(place["moving"])
        self._notes = {"save": place["save"]} if place["save"] else {}
        return int(place["tick"])

    def _send(self, group: Group, roster: Roster) -> None:
        holders, newcomers = self._ranks(roster)
        if not newcomers:
            return
        self._beat.activity(Activity.SWITCH)
        failpoint("send")
        skeleton, tensors = self._shared.flatten(self._place())
        transfer.send(group, skeleton, tensors, holders=holders, newcomers=newcomers)
        failpoint("sent")

    # ---- boundaries

    def _boundary(self) -> None:
        """Between two training steps: rosters switch here, the job stops here."""
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
        before = time.monotonic()
        try:
            roster = self._team.switch(self._send)
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
                self._say_switched(roster, (time.monotonic() - before) * 1e3)
        if self._saver is not None:
            self._saver.at_boundary(notes)
        self._beat.activity(Activity.OUTSIDE)
        seed_all(self.seed, self.step, OUTSIDE, 1)

    def _save_last(self) -> None:
        """All members end at this boundary: a checkpoint of it first. Again with the survivors if somebody dies meanwhile."""
        for _ in range(LAST_SAVES):
            if self._saver is None or self._saver.last():
                return
            self._recover()

    def _check_script(self) -> None:
        """What a script must not do, noticed at the next boundary."""
        step, self._open = self._open, None
        if step is not None and not step.passes:
            what = "was left early" if step.opened else "was never iterated over"
            raise ScriptError(f"step {step.index} {what}: the loop over its slices must run to its end, so that every worker "
                              "brings its part (use `continue` instead of `break`)")
        gradients = self._reducer.gradients if self._reducer is not None else None
        if gradients is not None and gradients.stray is not None:
            raise ScriptError(f"backward was called outside the loop over a step's slices (a parameter of {gradients.stray} got a "
                              "gradient): call it inside, once for every slice")
        if torch.get_num_threads() != self._threads:
            raise ScriptError(f"this worker computes with {torch.get_num_threads()} threads, the job with {self._threads}, which "
                              f"would change the bits: leave torch.set_num_threads out and use --threads {torch.get_num_threads()}")
        if gradients is not None and self._flags != self._trainable():
            self._prepare_gradients()

    def _recover(self) -> None:
        """The roster is broken: waits for the next one and enters it, with the pass in flight undone."""
        reducer = self._reducer
        assert reducer is not None
        if self._saver is not None:
            self._saver.broke()
        if self._in_pass and reducer.buffers is not None:
            reducer.buffers.restore()
        self._in_pass = False
        self._beat.activity(Activity.WAITING)
        self._team.failed()
        roster = self._team.rescue()
        assert self._team.group is not None
        reducer.join(self._team.group)
        paused, self._team.paused_at = self._team.paused_at, 0.0
        self._say_switched(roster, (time.monotonic() - paused) * 1e3 if paused else 0.0)
        if self._last_commit is not None and self.chief:
            self._say("commit", **self._last_commit)

    # ---- passes

    def _share_now(self) -> Span:
        assert self._reducer is not None
        return self._reducer.share

    def _pass(self, step: Step) -> Iterator[Any]:
        """This worker's slices, again from the start whenever the roster breaks, until the pass has happened."""
        self._open = step
        while True:
            try:
                yield from self._slices(step)
                if self._finish_pass(step):
                    break
            except Broken:
                self._recover()
                step.loader.repeat()
        self._beat.activity(Activity.STEPPING)
        seed_all(self.seed, self._moment(step), step.passes, OUTSIDE)

    def _moment(self, step: Step) -> int:
        return step.index if step.loader.train else EVALUATION + (step.loader.number << 32) + step.index

    def _slices(self, step: Step) -> Iterator[Any]:
        reducer, train = self._reducer, step.loader.train
        assert reducer is not None
        self._team.check()
        sizes = [high - low for low, high in (cut(step.first, step.count, self.slices, k) for k in range(self.slices))]
        equal = len(set(sizes)) == 1
        equal = equal and step.parts == 1
        reducer.begin(scale=1 / self.slices if equal else 1 / step.count, train=train)
        if train:
            self._planning.begin(step)
        self._in_pass = True
        step.rows = {}
        moves = reducer.program.moves
        for place, move in enumerate(moves):
            last, weight = place == len(moves) - 1, None if equal else float(sizes[move.slice])
            if not sizes[move.slice]:
                reducer.skip(move, last=last)
                continue
            seed_all(self.seed, self._moment(step), step.passes, move.slice)
            parts = min(step.parts, sizes[move.slice])
            for part in range(parts):
                low, high = cut(0, sizes[move.slice], parts, part)
                data = step.loader.fetch(step, move.slice, part)
                share = float(high - low) if weight is not None else None
                reducer.enter(move, weight=share, last=last, part=(part, parts))
                if train:
                    self._planning.enter(move.slice * step.parts + part)
                if part == 0:
                    seed_all(self.seed, self._moment(step), step.passes, move.slice)
                self._beat.enter_slice(step.index, step.passes, move.slice)
                step.slice = move.slice * step.parts + part
                began = time.monotonic()
                try:
                    yield data
                finally:
                    step.slice = None
                self._beat.leave_slice(Activity.EXCHANGE if last and part == parts - 1 else Activity.OUTSIDE)
                reducer.leave(move, weight=weight, part=(part, parts))
                if train:
                    self._planning.computed(time.monotonic() - began, slices=1 / parts)
                self._team.check()

    def _finish_pass(self, step: Step) -> bool:
        """The exchange. False if the pass has to be repeated because it was taken apart wrongly."""
        reducer, train = self._reducer, step.loader.train
        assert reducer is not None
        self._beat.activity(Activity.EXCHANGE)
        header = Header(offer=self._team.seat.offer(), rows=step.drain(), stop=self._team.stopping, digest=self._digest)
        if train and self.note is not None and self.chief:
            header.note = self.note()
        if train and self._saver is not None:
            header.note = {**header.note, **self._saver.note()}
        header.parts = step.parts
        if train:
            self._planning.fill(header)
        headers = reducer.reduce(header)
        if any(one.again or one.parts != step.parts for one in headers):
            self._repeat(headers)
            self._planning.agree(step, max(one.parts for one in headers))
            return False
        self._team.exchanged(header.offer, [one.offer for one in headers])
        self._in_pass = False
        reducer.finish(headers)
        if train:
            self._planning.exchanged(step, headers)
            self._notes = headers[0].note
            if self._saver is not None:
                self._saver.heard([one.note for one in headers])
        self._stop = self._stop or any(one.stop for one in headers)
        self._compare(headers)
        step.passes += 1
        if not step.metrics:
            rows = {int(k): row for one in headers for k, row in one.rows.items()}
            step.metrics = average(rows, dict(enumerate(step.units())), self.slices * step.parts)
        return True

    def _repeat(self, headers: list[Header]) -> None:
        reducer = self._reducer
        assert reducer is not None and reducer.gradients is not None and reducer.buffers is not None
        reducer.buffers.restore()
        for one in headers:
            reducer.buffers.moving |= set(one.moving)
        if any(one.again and not one.moving for one in headers):
            reducer.gradients.twice = True
            reducer.gradients.eager = False

    def _compare(self, headers: list[Header]) -> None:
        """The digests that workers took at the last boundary."""
        if not self._digest:
            return
        digests = {name: one.digest[1] for name, one in zip(self._team.roster.workers, headers, strict=True) if one.digest}
        step, self._digest = self._digest[0], []
        equal = len(set(digests.values())) == 1
        if self.chief:
            self._say("digest", step=step, digests=digests, equal=equal)
        if not equal:
            raise ScriptError(f"the workers' states differ after step {step}: {digests}; something in the script depends on "
                              "the worker")

    # ---- what is told

    def _say(self, kind: str, **fields: Any) -> None:
        if self._link is not None:
            self._link.send(kind, **fields)

    def _say_switched(self, roster: Roster, pause_ms: float) -> None:
        change = "join" if roster.joined else "leave" if roster.left else "balance"
        cause = "rescue" if roster.rescue else "start" if not roster.base else change
        self._say("switched", number=roster.number, tick=self._team.seat.tick, step=self.step, pause_ms=round(pause_ms, 3),
                  joined=list(roster.joined), left=list(roster.left), cause=cause, workers=len(roster.members))

    def _tell_loader(self, loader: Loader) -> None:
        if self.chief:
            self._say("loader", loader=loader.number, samples=loader.source.size, batch=loader.batch, slices=loader.slices,
                      tail=loader.tail, train=loader.train, seed=self.seed)

    def _committed(self, step: Step) -> None:
        """A training step is over: its optimizer has run."""
        if not step.passes:
            self._check_script()
        now = time.monotonic()
        self._last_commit = {
            "step": step.index, "tick": self._team.seat.tick, "epoch": step.epoch, "loader": step.loader.number,
            "first": step.first, "count": step.count, "batch": step.loader.batch, "roster": self._team.roster.number,
            "workers": self.workers, "metrics": step.metrics, "step_s": round(now - self._stepped_at, 6),
            **self._planning.committed(step, step_s=now - self._stepped_at),
        }
        self._stepped_at = now
        self.last_metrics = step.metrics
        if self.chief:
            self._say("commit", **self._last_commit)
            self._planning.report(step)
        self.step += 1
        every = int(self.options.get("digest_every") or 0)
        if every and self.step % every == 0:
            step.loader.step += 1
            step.loader.consumed += step.count
            self._digest = [self.step, self.digest()]
            step.loader.step -= 1
            step.loader.consumed -= step.count
        failpoint("committed")

    def _epoch_done(self, loader: Loader) -> None:
        self._planning.epoch_done()
        self._say("epoch", epoch=loader.epoch, loader=loader.number)

    def _evaluated(self, step: Step) -> None:
        if not step.passes:
            self._check_script()

    def _swept(self, loader: Loader) -> None:
        if self.chief:
            self._say("eval", loader=loader.number, epoch=self.epoch, step=self.step, samples=loader.source.size,
                      metrics=loader.metrics)

    def _finish(self) -> None:
        """The script has ended."""
        self._beat.activity(Activity.ENDED)
        if self._saver is not None and self._admitted and not self._stop:
            self._saver.last(final=True)
        self._say("finished", tick=self._team.seat.tick, step=self.step, digest=self.digest(), stopped=self._stop)


_job: Job | None = None
_carried: Carried | None = None


def join(seed: int = 0, *, threads: int | None = None) -> Job:
    """Makes this process a worker of the job that launched it, or a job of its own under plain `python`."""
    global _job, _carried
    if _carried is not None:
        old, carried, _carried = _carried.job, _carried, None
        prepare(int(old.options.get("threads") or threads or 1))
        _job = Job(seed=seed, options=old.options, worker=old.worker, link=old._link, beat=old._beat, carried=carried)
        seed_all(seed)
        return _job
    if _job is not None:
        raise ScriptError("stretto.join was called a second time: a process is one worker of one job; keep the first job object")
    options: dict[str, Any] = json.loads(os.environ.get("STRETTO_OPTIONS", "{}"))
    prepare(int(options.get("threads") or threads or 1))
    link: Link | None = None
    beat: Beat | Quiet = Quiet()
    if "STRETTO_LINK" in os.environ:
        real = Beat(int(os.environ["STRETTO_BEAT"])) if "STRETTO_BEAT" in os.environ else None
        beat = real or beat
        link = Link(int(os.environ["STRETTO_LINK"]), real)
    worker = os.environ.get("STRETTO_WORKER", "alone")
    _job = Job(seed=seed, options=options, worker=worker, link=link, beat=beat)
    if link is not None:
        link.start(_job._team.hear)
        link.send("hello", pid=os.getpid(), address=list(_job._team.address), fingerprint=fingerprint(),
                  version=_version(), python=sys.version.split()[0])
    seed_all(seed)
    return _job


def carry_on(carried: Carried) -> None:
    """The next `join` of this process takes this over."""
    global _job, _carried
    _job, _carried = None, carried


def current() -> Job | None:
    """The job that this process has joined."""
    return _job


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("stretto")
    except PackageNotFoundError:
        return "0"
