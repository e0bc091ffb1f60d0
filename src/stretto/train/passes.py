"""A pass over a step: this worker's slices, then the exchange, and all of it again if the roster breaks on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stretto.core.beat import Activity
from stretto.core.errors import Broken, ScriptError
from stretto.train.data.samples import cut
from stretto.train.data.step import Step
from stretto.train.randomness import seed_all
from stretto.train.reduce.logs import average
from stretto.train.reduce.reducer import Header

if TYPE_CHECKING:
    from stretto.train.job import Job

OUTSIDE = 1 << 20
"""Stands for the slice in the random numbers of the code after a step's slices."""
EVALUATION = 1 << 40
"""Keeps the random numbers of evaluations apart from those of training."""


class Passes:
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

    def run(self, step: Step) -> Iterator[Any]:
        """This worker's slices, again from the start whenever the roster breaks, until the pass has happened."""
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
        seed_all(job.seed, self._moment(step), step.passes, OUTSIDE)

    def _moment(self, step: Step) -> int:
        return step.index if step.loader.train else EVALUATION + (step.loader.number << 32) + step.index

    def _slices(self, step: Step) -> Iterator[Any]:
        job = self._job
        reducer, train = job._reducer, step.loader.train
        assert reducer is not None
        job._team.check()
        sizes = [high - low for low, high in (cut(step.first, step.count, job.slices, k) for k in range(job.slices))]
        equal = len(set(sizes)) == 1
        equal = equal and step.parts == 1
        reducer.begin(scale=1 / job.slices if equal else 1 / step.count, train=train)
        if train:
            job._planning.begin(step)
        self.running = True
        step.begin_pass()
        moves = reducer.program.moves
        for place, move in enumerate(moves):
            last, weight = place == len(moves) - 1, None if equal else float(sizes[move.slice])
            if not sizes[move.slice]:
                reducer.skip(move, last=last)
                continue
            seed_all(job.seed, self._moment(step), step.passes, move.slice)
            parts = min(step.parts, sizes[move.slice])
            for part in range(parts):
                low, high = cut(0, sizes[move.slice], parts, part)
                data = step.loader.fetch(step, move.slice, part)
                share = float(high - low) if weight is not None else None
                reducer.enter(move, weight=share, last=last, part=(part, parts))
                if train:
                    job._planning.enter(move.slice * step.parts + part)
                if part == 0:
                    seed_all(job.seed, self._moment(step), step.passes, move.slice)
                job._beat.enter_slice(step.index, step.passes, move.slice)
                step.slice = move.slice * step.parts + part
                began = time.monotonic()
                try:
                    yield data
                finally:
                    step.slice = None
                job._beat.leave_slice(Activity.EXCHANGE if last and part == parts - 1 else Activity.OUTSIDE)
                reducer.leave(move, weight=weight, part=(part, parts))
                if train:
                    job._planning.computed(time.monotonic() - began, slices=1 / parts)
                job._team.check()

    def _finish(self, step: Step) -> bool:
        """The exchange. False if the pass has to be repeated because it was taken apart wrongly."""
        job = self._job
        reducer, train = job._reducer, step.loader.train
        assert reducer is not None
        job._beat.activity(Activity.EXCHANGE)
        header = Header(offer=job._team.seat.offer(), rows=step.drain(), stop=job._team.stopping, digest=self.digest)
        if train and job.note is not None and job.chief:
            header.note = job.note()
        if train and job._saver is not None:
            header.note = {**header.note, **job._saver.note()}
        header.parts, header.blob = step.parts, step.pack()
        if train:
            job._planning.fill(header)
        headers = reducer.reduce(header)
        if any(one.again or one.parts != step.parts for one in headers):
            self._repeat(headers)
            job._planning.agree(step, max(one.parts for one in headers))
            return False
        job._team.exchanged(header.offer, [one.offer for one in headers])
        self.running = False
        reducer.finish(headers)
        if train:
            job._planning.exchanged(step, headers)
            job._notes = headers[0].note
            if job._saver is not None:
                job._saver.heard([one.note for one in headers])
        job._stop = job._stop or any(one.stop for one in headers)
        self._compare(headers)
        step.passes += 1
        step.finish_pass([one.blob for one in headers])
        rows = {int(k): row for one in headers for k, row in one.rows.items()}
        step.metrics = {**average(rows, dict(enumerate(step.units())), job.slices * step.parts), **step.metrics}
        return True

    def _repeat(self, headers: list[Header]) -> None:
        reducer = self._job._reducer
        assert reducer is not None and reducer.gradients is not None and reducer.buffers is not None
        reducer.buffers.restore()
        for one in headers:
            reducer.buffers.moving |= set(one.moving)
        if any(one.again and not one.moving for one in headers):
            reducer.gradients.twice = True
            reducer.gradients.eager = False

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
            raise ScriptError(f"the workers' states differ after step {step}: {digests}; something in the script depends on "
                              "the worker")
