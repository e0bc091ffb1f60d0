"""Adding up a share of the slices in tree order, in few buffers that are reused.

A `SumSchedule` says for every slice of a share what to do with its gradient: keep it in a buffer of its own or add it to one, and
which buffers to add up afterwards. Following it adds the complete subtrees of the share in the fixed order and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from stretto.core.slices import Span, cover, split

ALIGN = 64
"""Tensors begin at multiples of this many elements of a flat vector: kernels treat all of them alike."""


CHUNK = 1 << 16
"""Elements that are added up at once: so few that they stay in the processor's cache until all their additions are done."""


@dataclass(frozen=True, slots=True)
class SumOp:
    """One slice: its gradient goes to `buffer`, as the first there or on top; then `merges` (into, from) follow.

    Each merge takes what the one before it has made; a buffer that was merged into another is free.
    """

    slice: int
    buffer: int
    first: bool
    merges: tuple[tuple[int, int], ...]
    awaited: bool = False
    """The first of two: the next slice goes on top of it."""


@dataclass(frozen=True, slots=True)
class SumSchedule:
    """The additions of one share, in order: the same for every tensor and every pass."""

    ops: tuple[SumOp, ...]
    results: Mapping[Span, int]
    """The buffer that has each complete subtree in the end."""
    buffers: int
    """How many buffers are needed at once."""


def sum_schedule(slices: int, share: Span) -> SumSchedule:
    """The order of additions for a share."""
    ops: list[SumOp] = []
    results: dict[Span, int] = {}
    free: list[int] = []
    count = 0

    def take() -> int:
        nonlocal count
        if free:
            return free.pop()
        count += 1
        return count - 1

    def walk(node: Span, into: int | None) -> int:
        """Adds up `node`; a leaf may go on top of `into`. Returns the buffer with the sum (`into` where it was used)."""
        if len(node) == 1:
            buffer = take() if into is None else into
            ops.append(SumOp(node.low, buffer, into is None, ()))
            return buffer
        left, right = split(node)
        base = walk(left, None)
        if len(right) == 1:
            if len(left) == 1:
                ops[-1] = replace(ops[-1], awaited=True)
            return walk(right, base)
        other = walk(right, None)
        ops[-1] = replace(ops[-1], merges=(*ops[-1].merges, (base, other)))
        free.append(other)
        return base

    for node in cover(slices, share):
        results[node] = walk(node, None)
    return SumSchedule(tuple(ops), results, count)


class Flat:
    """Flat vectors of one layout: a view for every tensor of a list, as many buffers as a schedule needs."""

    def __init__(self, shapes: Sequence[torch.Size], *, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.shapes = list(shapes)
        self.places: list[tuple[int, int]] = []
        length = 0
        for shape in shapes:
            self.places.append((length, shape.numel()))
            length += -(-shape.numel() // ALIGN) * ALIGN
        self.length = length
        self.buffers: list[torch.Tensor] = []
        self.views: list[list[torch.Tensor]] = []
        self._first_of_two: dict[tuple[int, int], torch.Tensor] = {}
        """Tensors that wait for the next slice's, by buffer and place: adding both up at once saves a copy."""
        self._scratch = torch.empty(0)
        self.spare: list[torch.Tensor] = []
        """Buffers that were allocated ahead; `need` takes these first."""

    def need(self, buffers: int) -> None:
        """Before a pass: makes sure that there are this many buffers."""
        self._first_of_two.clear()
        while len(self.buffers) < buffers:
            self.buffers.append(self.spare.pop() if self.spare else self.allocate())
            self.views.append(self._cut(self.buffers[-1]))

    def allocate(self) -> torch.Tensor:
        """A new buffer, in use nowhere yet."""
        return torch.zeros(self.length, dtype=self.dtype, device=self.device)

    def renew(self, buffer: int) -> None:
        """Replaces one buffer: something outside keeps the memory of the old one."""
        self.buffers[buffer] = self.allocate()
        self.views[buffer] = self._cut(self.buffers[buffer])

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A view of the flat vector for every tensor."""
        return [flat[low : low + size].view(shape) for (low, size), shape in zip(self.places, self.shapes, strict=True)]

    def add(self, op: SumOp, place: int, value: torch.Tensor | None, *, keep: bool = False, scale: float | None = None) -> None:
        """Adds one tensor of one slice; None stands for zeros. `keep` promises that the value does not change any more.

        `scale` multiplies what this operation ends with: the whole sum, if it is the last one.
        """
        view = self.views[op.buffer][place]
        first = self._first_of_two.pop((op.buffer, place), None)
        if first is not None and value is not None and value.dtype == self.dtype and self._sweep(op, place, first, value, scale):
            return
        if first is not None and value is not None and value.dtype == self.dtype:
            torch.add(first, value, out=view)
        else:
            self._put(op, place, first, value, keep=keep)
        for into, source in op.merges:
            self.views[into][place].add_(self.views[source][place])
        if scale is not None:
            self.views[op.merges[-1][0] if op.merges else op.buffer][place].mul_(scale)

    def _put(self, op: SumOp, place: int, first: torch.Tensor | None, value: torch.Tensor | None, *, keep: bool) -> None:
        """One tensor into its buffer, or on top of what is there (`first`, if that was kept)."""
        view = self.views[op.buffer][place]
        if first is not None:
            view.copy_(first)
        if value is None:
            if op.first:
                view.zero_()
        elif not op.first:
            view.add_(value)
        elif keep and op.awaited and value.dtype == self.dtype:
            self._first_of_two[op.buffer, place] = value
        else:
            view.copy_(value)

    def _sweep(self, op: SumOp, place: int, first: torch.Tensor, second: torch.Tensor, scale: float | None) -> bool:
        """The sum of two slices and all its merges in one sweep over the memory. False where that cannot be done."""
        if self.device.type != "cpu" or not op.merges or not (first.is_contiguous() and second.is_contiguous()):
            return False
        if not self._scratch.numel():
            self._scratch = torch.empty(CHUNK, dtype=self.dtype)
        targets = [_chunks(self.views[into][place]) for into, _ in op.merges]
        for left, other, *into in zip(_chunks(first), _chunks(second), *targets, strict=True):
            total = torch.add(left, other, out=self._scratch[: left.numel()])
            for target in into[:-1]:
                torch.add(target, total, out=total)
            into[-1].add_(total)
            if scale is not None:
                into[-1].mul_(scale)
        return True


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return cast("tuple[torch.Tensor, ...]", tensor.view(-1).split(CHUNK))
