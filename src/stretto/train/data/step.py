"""A step: iterating over it gives this worker's slices of one global batch, as often as it takes to finish a pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from stretto.core.errors import ScriptError
from stretto.core.sample_order import order_id
from stretto.core.slices import Span
from stretto.train.data.sample_reader import cut
from stretto.train.reduce.sums import GATHER, SUM, Row, SliceSums, joined, number, total
from stretto.train.sharing.torchmetrics_state import TorchMetrics

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader

Total = int | float | torch.Tensor
"""A sum over slices."""


class Step:
    """One global batch. Iterate over it once for a pass; a second time for a second pass over the same data.

    Beside the methods below it has these attributes:

    index                      its number in the job; in the sweep, where the loader does not train
    epoch                      the loader's epoch
    count, first               samples in it over all workers; the place of its first in the epoch's order
    loader                     the loader that it is of
    metrics, sums, gathered    the results of step.log, step.sum and step.gather over all workers, after the loop
    """

    def __init__(self, loader: Loader, *, index: int, epoch: int, first: int, count: int, parts: int = 1) -> None:
        self.loader = loader
        self.index = index
        """The number of this step in the job (of this evaluation's loader where it does not train)."""
        self.epoch = epoch
        self.first = first
        self.count = count
        """Samples in this step, over all workers."""
        self.parts = parts
        """Parts that each slice is computed in, if a whole one does not fit into memory."""
        self.passes = 0
        self.metrics: Row = {}
        """What was logged, averaged over all slices, after every pass; of a name that two passes log, the first one's."""
        self.sums: dict[str, Total] = {}
        """What was given to `step.sum`, over all slices of all workers, after every pass; of a name that two passes sum, the first
        one's."""
        self.gathered: dict[str, torch.Tensor | list[Any]] = {}
        """What was given to `step.gather`, of all workers and in the order of the samples, after every pass; of a name that two
        passes gather, the first one's."""
        self.rows: dict[int, dict[str, object]] = {}
        """What was logged in this pass on this worker, by slice."""
        self.tally: SliceSums | None = None
        """What this pass has summed and gathered on this worker so far; None if nothing."""
        self.slice: int | None = None
        """The slice that the script computes; None between two."""
        self.opened = False
        """Whether the script has begun its loop over the slices."""
        self.over = False
        """Whether the loop over the loader has gone on, or was left."""

    def __iter__(self) -> Iterator[Any]:
        if self.slice is not None:
            raise ScriptError("this step is already being iterated over: use one loop at a time")
        self.loader.check_open("for … in step")
        if self.over:
            raise ScriptError(
                f"step {self.index} is over: its loop `for step in data` has gone on or was left (next(iter(data)) "
                "leaves it at once). Look at samples with loader.dataset[0]; train on the same batch over and over "
                "with job.loader(torch.utils.data.Subset(dataset, range(256)), 256)"
            )
        self.opened = True
        return self.loader.runner.run(self)

    def log(self, **values: object) -> None:
        """Records values of the slice at hand, numbers or one-element tensors: `step.metrics` has their means over all samples."""
        if self.slice is None:
            raise ScriptError("step.log belongs inside the loop over the step's slices: values are averaged over the slices")
        row = self.rows.setdefault(self.slice, {})
        for name, value in values.items():
            row[name] = _detached(value)

    def sum(self, **values: object) -> None:
        """Adds values of the slice at hand: `step.sums` has the sums over all slices of all workers after the pass.

        Integers and one-element tensors of integers or booleans give an exact integer of any size. Floats are summed in double
        precision in an order that does not depend on the workers. Larger tensors are summed element by element, as int64 or
        float64. A second call with the same name in one slice adds to the first.
        """
        for name, value in values.items():
            self._counting("sum").sum(name, self.slice or 0, value)

    def gather(self, **values: object) -> None:
        """Collects values per sample: `step.gathered` has those of all workers after the pass, in the order of the samples.

        A value is a tensor, an array or a list whose first dimension is the slice's samples. Every worker holds the whole result,
        in the main memory.
        """
        for name, value in values.items():
            tally, unit = self._counting("gather"), self.slice or 0
            tally.gather(name, unit, value, samples=self.units()[unit])

    def _counting(self, method: str) -> SliceSums:
        if self.slice is None:
            raise ScriptError(f"step.{method} belongs inside the loop over the step's slices: it takes the values of a slice")
        if self.tally is None:
            self.tally = SliceSums()
        return self.tally

    def check_finished(self) -> None:
        """At the next boundary: refuses a step whose loop over its slices did not run to its end."""
        if self.passes:
            return
        if not self.opened:
            raise ScriptError(
                f"step {self.index} was never iterated over: every step needs its loop `for x, y in step`, so "
                "that every worker brings its part. To look at samples use loader.dataset[0]; to leave some "
                "out, a Subset"
            )
        raise ScriptError(
            f"step {self.index} was left early: the loop over its slices must run to its end, so that every "
            "worker brings its part (use `continue` instead of `break`)"
        )

    # ---- the pass

    def begin_pass(self) -> None:
        """Starts a pass, for the first time or again: drops what an earlier attempt has recorded."""
        self.rows, self.tally = {}, None
        self._torchmetrics.watch_unshared(self.loader.number)

    def enter_slice(self, unit: int) -> None:
        """Called before the script computes a slice, or a part of one."""
        self.slice = unit
        self._torchmetrics.enter_slice()

    def leave_slice(self) -> None:
        """Called after the script has computed it."""
        unit, self.slice = self.slice, None
        states = self._torchmetrics.leave_slice()
        if states and unit is not None:
            self.tally = self.tally or SliceSums()
            self.tally.set_states(unit, states)

    @property
    def _torchmetrics(self) -> TorchMetrics:
        return self.loader.metric_states

    def pack(self) -> bytes:
        """What this worker has summed and gathered, encoded for the others."""
        if self.tally is None:
            return b""
        share, parts = self.loader.runner.own_slices, self.parts
        return self.tally.pack(units=self.loader.slices * parts, share=Span(share.low * parts, share.high * parts))

    def finish_pass(self, blobs: list[bytes]) -> None:
        """Combines what all workers have summed and gathered."""
        self._torchmetrics.check_unshared(self.loader.number)
        if not any(blobs):
            return
        totals = total(blobs, units=self.loader.slices * self.parts)
        sums = {key[1]: value for key, value in totals.items() if key[0] == SUM}
        gathered = {key[1]: joined(key[1], value) for key, value in totals.items() if key[0] == GATHER}
        self._torchmetrics.merge(totals)
        self.sums, self.gathered = {**sums, **self.sums}, {**gathered, **self.gathered}

    @property
    def order(self) -> str:
        """The id of the order of samples that this worker reads."""
        source = self.loader.source
        return order_id(seed=source.seed, loader=self.loader.number, epoch=self.epoch, samples=source.size, shuffle=source.shuffle)

    def units(self) -> list[int]:
        """Samples of every slice, or of every part of every slice, in their order."""
        slices, parts = self.loader.slices, self.parts
        sizes = [high - low for low, high in (cut(self.first, self.count, slices, k) for k in range(slices))]
        return [size for whole in sizes for size in _parts(whole, parts)]

    def drain(self) -> dict[str, Row]:
        """The logged values of this worker's slices as numbers."""
        return {str(k): {name: number(name, value) for name, value in row.items()} for k, row in self.rows.items()}


def _detached(value: object) -> object:
    detach = getattr(value, "detach", None)
    return value if detach is None else detach()


def _parts(samples: int, parts: int) -> list[int]:
    """Samples of each part of a slice. A slice with fewer samples than parts has one in each of its first parts."""
    used = max(1, min(parts, samples))
    return [high - low for low, high in (cut(0, samples, used, part) for part in range(used))] + [0] * (parts - used)
