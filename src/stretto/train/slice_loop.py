"""The loop over a step's slices: gives the script this worker's slices, each from its own random numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from stretto.core.heartbeat import Activity, Heartbeat
from stretto.train.batch_controller import BatchController
from stretto.train.data.sample_reader import cut
from stretto.train.data.step import Step
from stretto.train.entry.agent_channel import NullHeartbeat
from stretto.train.membership import Membership
from stretto.train.reduce.accumulation import SumOp
from stretto.train.reduce.reducer import Reducer
from stretto.train.reduce.sums import average
from stretto.train.rng import seed_all
from stretto.train.script_checks.hidden_state import HiddenState

EVALUATIONS = 1 << 40
"""Keeps the random numbers of evaluations apart from those of training."""


class SliceLoop:
    """Gives the script this worker's slices of a pass, one after the other."""

    def __init__(
        self,
        *,
        seed: int,
        reducer: Reducer,
        batches: BatchController,
        membership: Membership,
        heartbeat: Heartbeat | NullHeartbeat,
        hidden: HiddenState,
    ) -> None:
        self._seed = seed
        self._reducer = reducer
        self._batches = batches
        self._membership = membership
        self._heartbeat = heartbeat
        self._hidden = hidden

    def compute(self, step: Step) -> Iterator[object]:
        """Gives the script each of this worker's slices, in parts where a whole one does not fit into memory."""
        sizes, equal = slice_sizes(step), equal_units(step)
        ops = self._reducer.schedule.ops
        for place, op in enumerate(ops):
            last, size = place == len(ops) - 1, sizes[op.slice]
            if not size:
                self._reducer.skip(op, last=last)
                continue
            seed_all(self._seed, moment(step), step.passes, op.slice)
            parts = min(step.parts, size)
            for part in range(parts):
                yield from self._compute_part(step, op, size=size, part=part, parts=parts, equal=equal, last=last)

    def _compute_part(
        self, step: Step, op: SumOp, *, size: int, part: int, parts: int, equal: bool, last: bool
    ) -> Iterator[object]:
        train = step.loader.train
        low, high = cut(0, size, parts, part)
        data = step.loader.fetch(step, op.slice, part)
        share = None if equal or step.loader.reduction == "sum" else float(high - low)
        self._reducer.enter(op, weight=share, last=last, part=(part, parts))
        if train:
            self._batches.enter(op.slice * step.parts + part)
        if part == 0:
            seed_all(self._seed, moment(step), step.passes, op.slice)
        self._heartbeat.enter_slice(step.index, step.passes, op.slice)
        step.enter_slice(op.slice * step.parts + part)
        self._hidden.enter(train=train)
        began = time.monotonic()
        try:
            yield data
        except GeneratorExit:  # `break`: what follows is outside the loop, and the next boundary says that it was left
            self._reducer.leave_loop()
            raise
        finally:
            step.leave_slice()
        self._heartbeat.leave_slice(Activity.EXCHANGE if last and part == parts - 1 else Activity.OUTSIDE)
        self._reducer.leave(op, weight=None if equal else float(size), part=(part, parts))
        if train:
            self._batches.computed(time.monotonic() - began, slices=1 / parts)
        self._membership.check()

    def rerun_evaluation(self, step: Step) -> Iterator[object]:
        """This worker's slices of an evaluation that the others have done already, for the script's own variables only."""
        self._reducer.begin(scale=1.0, mean=1.0, train=False)
        step.begin_pass()
        sizes = slice_sizes(step)
        for op in self._reducer.schedule.ops:
            if not sizes[op.slice]:
                continue
            data = step.loader.fetch(step, op.slice)
            self._reducer.enter_buffers()
            seed_all(self._seed, moment(step), step.passes, op.slice)
            step.enter_slice(op.slice)
            try:
                yield data
            finally:
                step.leave_slice()
        self._reducer.restore_buffers()
        step.finish_pass([step.pack()])
        rows = {int(unit): row for unit, row in step.drain().items()}
        step.passes += 1
        step.metrics = {**average(rows, dict(enumerate(step.units())), step.loader.slices), **step.metrics}

    def end_pass(self, *, train: bool) -> None:
        """The script has computed all of its slices of a pass."""
        self._hidden.leave(train=train)


def moment(step: Step) -> int:
    """The step's number in the random numbers of its slices."""
    return step.index if step.loader.train else EVALUATIONS + (step.loader.number << 32) + step.index


def slice_sizes(step: Step) -> list[int]:
    """Samples of every slice."""
    slices = step.loader.slices
    return [high - low for low, high in (cut(step.first, step.count, slices, k) for k in range(slices))]


def equal_units(step: Step) -> bool:
    """Whether everything that is computed at a time has the same number of samples."""
    return step.parts == 1 and len(set(slice_sizes(step))) == 1
