"""A step: iterating over it gives this worker's slices of one global batch, as often as it takes to finish a pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stretto.core.errors import ScriptError
from stretto.train.data.samples import cut
from stretto.train.reduce.logs import Row, number

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader


class Step:
    """One global batch. Iterate over it once for a pass; a second time for a second pass over the same data."""

    def __init__(self, loader: Loader, *, index: int, epoch: int, first: int, count: int, parts: int = 1) -> None:
        self.loader = loader
        self.index = index
        """The number of this step in the job (of this evaluation's loader where it does not train)."""
        self.epoch = epoch
        self.first = first
        self.count = count
        """Samples in this step, over all workers."""
        self.parts = parts
        """Pieces that each slice is accumulated from, where a whole one would not fit into memory."""
        self.passes = 0
        self.metrics: Row = {}
        """What was logged, averaged over all slices, after every pass; of a name that two passes log, the first one's."""
        self.rows: dict[int, dict[str, Any]] = {}
        self.slice: int | None = None
        self.opened = False

    def __iter__(self) -> Iterator[Any]:
        if self.slice is not None:
            raise ScriptError("this step is already being iterated over: use one loop at a time")
        self.opened = True
        return self.loader.job._passes.run(self)

    def log(self, **values: Any) -> None:
        """Records values of the slice at hand: numbers or one-element tensors."""
        if self.slice is None:
            raise ScriptError("step.log belongs inside the loop over the step's slices: values are averaged over the slices")
        row = self.rows.setdefault(self.slice, {})
        for name, value in values.items():
            row[name] = value.detach() if hasattr(value, "detach") else value

    def units(self) -> list[int]:
        """Samples of every slice, or of every part of every slice, in their order."""
        slices, parts = self.loader.slices, self.parts
        sizes = [high - low for low, high in (cut(self.first, self.count, slices, k) for k in range(slices))]
        return [high - low for size in sizes for low, high in (cut(0, size, parts, j) for j in range(parts))]

    def drain(self) -> dict[str, Row]:
        """The logged values of this worker's slices as numbers."""
        return {str(k): {name: number(name, value) for name, value in row.items()} for k, row in self.rows.items()}
