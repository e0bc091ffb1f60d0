"""A pass over a step: this worker's slices, then the exchange, and all of it again if the roster breaks on the way."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stretto.core.errors import Broken, ScriptError
from stretto.core.heartbeat import Activity
from stretto.train.consistency import ATTRIBUTES, DATASET, PARTS, SET_AGAIN, STEPS, TENSORS
from stretto.train.data.sample_reader import cut
from stretto.train.data.step import Step
from stretto.train.membership import Misplaced
from stretto.train.reduce.logged_metrics import average
from stretto.train.reduce.preamble import (
    BARRIER,
    EVALUATION,
    TRAINING,
    Place,
    Preamble,
    first_difference,
    judge,
    places_text,
)
from stretto.train.reduce.reducer import Header
from stretto.train.reduce.tree_allreduce import TreeAllreduce
from stretto.train.rng import seed_all
from stretto.train.script_checks.hidden_state import HiddenState
from stretto.train.script_checks.variables import suspects

if TYPE_CHECKING:
    from stretto.train.job import Job

OUTSIDE = 1 << 20
"""Stands for the slice in the random numbers of the code after a step's slices."""
EVALUATIONS = 1 << 40
"""Keeps the random numbers of evaluations apart from those of training."""


class StepRunner:
    """The passes of one worker, one at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.open: Step | None = None
        """The step that the script is in."""
        self.training: Step | None = None
        """The training step between its boundary and its commit."""
        self.left: Step | None = None
        """The training step at which the script left `for step in data`: counted when the script goes on, not if it raises."""
        self.running = False
        self.digest: list[Any] = []
        """The step after which a digest was taken, and the digest; compared in the next exchange."""
        self.resend = False
        """The state that was given was changed on the way to the first step: it is asked for once more."""
        self._hidden = HiddenState(lambda: dict(job._shared.modules))

    def run(self, step: Step) -> Iterator[Any]:
        """This worker's slices, again from the start whenever the roster breaks, until the pass has happened."""
        job = self._job
        if job._catch_up is not None:
            return self._look(step)
        return self._run(step)

    def _run(self, step: Step) -> Iterator[Any]:
        job = self._job
        self.open = step
        while True:
            try:
                yield from self._slices(step)
                if self._finish(step):
                    break
            except Broken:
                job._recover()
                step.loader.repeat()
        job._beat.activity(Activity.STEPPING)
        seed_all(job.seed, self.moment(step), step.passes, OUTSIDE)

    def _look(self, step: Step) -> Iterator[Any]:
        """This worker's slices of an evaluation that the others have done already, for the script's own variables only."""
        job = self._job
        reducer = job._reducer
        assert reducer is not None and reducer.buffers is not None
        self.open = step
        reducer.begin(scale=1.0, mean=1.0, train=False)
        step.begin_pass()
        for move in reducer.program.moves:
            if not self._sizes(step)[move.slice]:
                continue
            data = step.loader.fetch(step, move.slice)
            reducer.buffers.enter()
            seed_all(job.seed, self.moment(step), step.passes, move.slice)
            step.enter_slice(move.slice)
            try:
                yield data
            finally:
                step.leave_slice()
        reducer.buffers.restore()
        step.finish_pass([step.pack()])
        rows = {int(k): row for k, row in step.drain().items()}
        step.passes += 1
        step.metrics = {**average(rows, dict(enumerate(step.units())), job.slices), **step.metrics}

    def moment(self, step: Step) -> int:
        return step.index if step.loader.train else EVALUATIONS + (step.loader.number << 32) + step.index

    def _place(self, step: Step) -> Place:
        return Place(
            TRAINING if step.loader.train else EVALUATION,
            step.loader.number,
            step.epoch,
            step.index,
            step.passes,
            step.first,
            step.count,
        )

    def _sizes(self, step: Step) -> list[int]:
        slices = self._job.slices
        return [high - low for low, high in (cut(step.first, step.count, slices, k) for k in range(slices))]

    def _begin(self, step: Step, *, equal: bool) -> None:
        job = self._job
        reducer, train = job._reducer, step.loader.train
        assert reducer is not None
        job._team.check()
        job._beat.enter_pass(train=train, loader=step.loader.number, step=step.index, pass_=step.passes)
        if train:
            assert reducer.gradients is not None
            reducer.gradients.undo()
            trained = job._trained()
            if not trained <= job._reduced:
                job._prepare_gradients()
            if not step.passes and job._between is not None:
                job._thawed |= trained - job._between
            job._admission.begin_pass()
            job._hooks.begin_pass()
        mean = 1 / job.slices if equal else 1 / step.count
        preamble = self._preamble(self._place(step), order=step.order, changes=step.loader.changes.begin())
        reducer.begin(
            scale=1.0 if step.loader.reduction == "sum" else mean,
            mean=mean,
            train=train,
            meet=lambda exchange: self._meet(exchange, preamble),
        )
        if train:
            job._planning.begin(step)
        self.running = True
        step.begin_pass()

    def _slices(self, step: Step) -> Iterator[Any]:
        job = self._job
        reducer, train = job._reducer, step.loader.train
        assert reducer is not None
        sizes = self._sizes(step)
        equal = len(set(sizes)) == 1 and step.parts == 1
        summed = step.loader.reduction == "sum"
        self._begin(step, equal=equal)
        moves = reducer.program.moves
        for place, move in enumerate(moves):
            last, weight = place == len(moves) - 1, None if equal else float(sizes[move.slice])
            if not sizes[move.slice]:
                reducer.skip(move, last=last)
                continue
            seed_all(job.seed, self.moment(step), step.passes, move.slice)
            parts = min(step.parts, sizes[move.slice])
            for part in range(parts):
                low, high = cut(0, sizes[move.slice], parts, part)
                data = step.loader.fetch(step, move.slice, part)
                share = float(high - low) if weight is not None and not summed else None
                reducer.enter(move, weight=share, last=last, part=(part, parts))
                if train:
                    job._planning.enter(move.slice * step.parts + part)
                if part == 0:
                    seed_all(job.seed, self.moment(step), step.passes, move.slice)
                job._beat.enter_slice(step.index, step.passes, move.slice)
                step.enter_slice(move.slice * step.parts + part)
                self._hidden.enter(train=train)
                began = time.monotonic()
                try:
                    yield data
                except GeneratorExit:  # `break`: what follows is outside the loop, and the next boundary says that it was left
                    if reducer.gradients is not None:
                        reducer.gradients.inside = False
                    raise
                finally:
                    step.leave_slice()
                job._beat.leave_slice(Activity.EXCHANGE if last and part == parts - 1 else Activity.OUTSIDE)
                reducer.leave(move, weight=weight, part=(part, parts))
                if train:
                    job._planning.computed(time.monotonic() - began, slices=1 / parts)
                job._team.check()

    # ---- the exchange

    def _preamble(self, place: Place, *, order: str = "", changes: dict[str, str] | None = None) -> Preamble | None:
        """None in a roster of one: there is nobody to compare with."""
        job = self._job
        if job._team.group is None or job._team.group.size == 1:
            return None
        tick = job._team.seat.tick or 0
        checks = {} if self.resend else job._consistency.checks(part=tick, order=order, changes=changes or {})
        return Preamble(place, job._admission.joined, checks)

    def _meet(self, exchange: TreeAllreduce, mine: Preamble | None) -> None:
        """Everybody's preamble. Raises where they do not fit, before a number was added up."""
        assert mine is not None
        preambles = [Preamble.decode(text) for text in exchange.tell(mine.encode())]
        verdict = judge(preambles, tick=self._job._team.seat.tick or 0)
        if not (verdict.misplaced or verdict.scattered or verdict.differing):
            if mine.checks:
                self._job._admission.compared(with_older=any(one.joined < mine.joined for one in preambles))
            return
        workers = list(exchange.group.roster.workers)
        places = places_text(preambles, workers)
        if verdict.scattered:
            raise ScriptError(
                f"the workers' scripts have gone different ways: {places}: whatever decides that must be the same on "
                f"every worker{suspects()}"
            )
        if verdict.differing:
            text = self._explain(exchange, verdict.differing[0], workers, step=mine.place.step)
        else:
            text = f"its script is at another place than the job's: {places}{suspects()}"
        if exchange.group.rank in verdict.misplaced:
            raise Misplaced(text)
        raise Broken(f"a worker has to go: {text}") if verdict.misplaced else ScriptError(text)

    def _explain(self, exchange: TreeAllreduce, name: str, workers: list[str], *, step: int) -> str:
        """What differs, from whom: everybody tells the others what its hash was made of."""
        part = self._job._team.seat.tick or 0
        details = [json.loads(text) for text in exchange.tell(json.dumps(self._job._consistency.details(name, part=part)).encode())]
        found = first_difference(details, workers)
        text = f"the workers differ at step {step}, before it is committed: {name}" + (f": {found}" if found else "")
        if name == TENSORS:
            since = max(0, self._job.step - PARTS)
            return (
                f"{text}. They were equal at step {since} or later: once the cause is found, go on from a checkpoint of step "
                f"{since} or before"
            )
        if name in (ATTRIBUTES, DATASET):
            return f"{text}. {SET_AGAIN}"
        if name == STEPS:
            return (
                f"{text}. A counter of the script's own begins anew on a worker that joins: use step.index, job.step or shared "
                f"state (job.state){suspects()}"
            )
        return text

    def _finish(self, step: Step) -> bool:
        """The exchange. False if the pass has to be repeated because it was taken apart wrongly."""
        job = self._job
        reducer, train = job._reducer, step.loader.train
        assert reducer is not None
        job._beat.activity(Activity.EXCHANGE)
        header = Header(
            offer=job._team.seat.offer(), rows=step.drain(), stop=job._team.stopping, digest=self.digest, resend=self.resend
        )
        if train and job.note is not None and job.chief:
            header.note = job.note()
        if train and job._saver is not None:
            header.note = {**header.note, **job._saver.note()}
        header.parts, header.blob = step.parts, step.pack()
        self._hidden.leave(train=train)
        step.loader.changes.end()
        if train:
            job._planning.fill(header)
        headers = reducer.reduce(header)
        if any(one.again or one.resend or one.parts != step.parts for one in headers):
            self._repeat(headers)
            parts = max(one.parts for one in headers)
            if parts != step.parts:
                job._planning.agree(step, parts)
            return False
        job._team.exchanged(header.offer, [one.offer for one in headers])
        self.running = False
        reducer.finish(headers)
        if train:
            job._hooks.end_pass()
            job._planning.exchanged(step, headers)
            job._notes = headers[0].note
            if job._saver is not None:
                job._saver.heard([one.note for one in headers])
        else:
            job._hooks.steps = {}
        job._stop = job._stop or any(one.stop for one in headers)
        self._compare(headers)
        step.passes += 1
        step.finish_pass([one.blob for one in headers])
        rows = {int(k): row for one in headers for k, row in one.rows.items()}
        step.metrics = {**average(rows, dict(enumerate(step.units())), job.slices * step.parts), **step.metrics}
        return True

    def _repeat(self, headers: list[Header]) -> None:
        job = self._job
        reducer = job._reducer
        assert reducer is not None and reducer.gradients is not None and reducer.buffers is not None
        reducer.buffers.restore()
        reducer.gradients.undo()
        for one in headers:
            reducer.buffers.moving |= set(one.moving)
        if any(one.again and not one.moving for one in headers):
            reducer.gradients.twice = True
            reducer.gradients.eager = False
        behind = [rank for rank, one in enumerate(headers) if one.resend]
        if behind:
            self.running = False
            job._admission.send_again(behind)
            self.resend = False

    def _compare(self, headers: list[Header]) -> None:
        """The digests that workers took at the last boundary."""
        job = self._job
        if not self.digest:
            return
        digests = {name: one.digest[1] for name, one in zip(job._team.roster.workers, headers, strict=True) if one.digest}
        step, self.digest = self.digest[0], []
        equal = len(set(digests.values())) == 1
        if job.chief:
            job._telling.say("digest", step=step, digests=digests, equal=equal)
        if not equal:
            raise ScriptError(
                f"the workers' states differ after step {step}: {digests}; something in the script depends on the worker"
            )

    def barrier(self) -> None:
        """An exchange without numbers: nobody goes on before all members are here."""
        job = self._job
        if job._catch_up is not None:
            return
        reducer = job._reducer
        assert reducer is not None
        while True:
            try:
                job._team.check()
                job._beat.activity(Activity.EXCHANGE)
                meet = functools.partial(self._meet, mine=self._preamble(Place(BARRIER, step=job.step)))
                reducer.begin(scale=1.0, mean=1.0, train=False, meet=meet)
                headers = reducer.reduce(Header(offer=job._team.seat.offer(), stop=job._team.stopping))
                job._team.exchanged(headers[job._team.rank].offer, [one.offer for one in headers])
                break
            except Broken:
                job._recover()
        job._hooks.steps = {}
        job._stop = job._stop or any(one.stop for one in headers)
        job._beat.activity(Activity.OUTSIDE)
