"""Adding up a share of the slices in tree order, in few buffers that are reused.

A `Program` says for every slice of a share what to do with its gradient: keep it in a buffer of its own or add it to one, and which
buffers to add up afterwards. Following it adds the complete subtrees of the share in the fixed order and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stretto.core.slices import Span, cover, split

ALIGN = 64
"""Tensors begin at multiples of this many elements of a flat vector: kernels treat all of them alike."""


@dataclass(frozen=True, slots=True)
class Move:
    """One slice: its gradient goes to `buffer`, as the first there or on top; then `merges` (into, from) follow."""

    slice: int
    buffer: int
    first: bool
    merges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Program:
    moves: tuple[Move, ...]
    results: Mapping[Span, int]
    """The buffer that has each complete subtree in the end."""
    buffers: int
    """How many buffers are needed at once."""


def program(slices: int, share: Span) -> Program:
    """The order of additions for a share."""
    moves: list[Move] = []
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
            moves.append(Move(node.low, buffer, into is None, ()))
            return buffer
        left, right = split(node)
        base = walk(left, None)
        if len(right) == 1:
            return walk(right, base)
        other = walk(right, None)
        last = moves[-1]
        moves[-1] = Move(last.slice, last.buffer, last.first, (*last.merges, (base, other)))
        free.append(other)
        return base

    for node in cover(slices, share):
        results[node] = walk(node, None)
    return Program(tuple(moves), results, count)


class Flat:
    """Flat vectors of one layout: a view for every tensor of a list, as many buffers as a program needs."""

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

    def need(self, buffers: int) -> None:
        while len(self.buffers) < buffers:
            flat = torch.zeros(self.length, dtype=self.dtype, device=self.device)
            self.buffers.append(flat)
            self.views.append(
                [flat[low : low + size].view(shape) for (low, size), shape in zip(self.places, self.shapes, strict=True)]
            )

    def take(self, move: Move, place: int, value: torch.Tensor | None) -> None:
        """One tensor of one slice, None standing for zeros."""
        view = self.views[move.buffer][place]
        if value is None:
            if move.first:
                view.zero_()
        elif move.first:
            view.copy_(value)
        else:
            view.add_(value)
        for into, source in move.merges:
            self.views[into][place].add_(self.views[source][place])
