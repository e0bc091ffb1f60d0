"""The fixed binary tree over a step's slices, and who holds which range of it.

The tree over leaves 0..n-1 splits at the largest power of two below n. It depends on n alone, so the order of every sum does too.
A range of leaves is covered by its *maximal complete subtrees*: what one worker can add up without its neighbours.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Leaves low..high-1: a subtree, or a worker's share."""

    low: int
    high: int

    def __len__(self) -> int:
        return self.high - self.low

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high))

    def __contains__(self, leaf: object) -> bool:
        return isinstance(leaf, int) and self.low <= leaf < self.high


def split(node: Span) -> tuple[Span, Span]:
    """The two children of an inner node."""
    half = 1 << ((len(node) - 1).bit_length() - 1)
    return Span(node.low, node.low + half), Span(node.low + half, node.high)


def cover(slices: int, share: Span) -> tuple[Span, ...]:
    """The maximal complete subtrees inside `share`, from left to right."""

    def walk(node: Span) -> Iterator[Span]:
        if node.high <= share.low or share.high <= node.low:
            return
        if share.low <= node.low and node.high <= share.high:
            yield node
            return
        for child in split(node):
            yield from walk(child)

    return tuple(walk(Span(0, slices))) if len(share) else ()


def deal(slices: int, workers: int) -> tuple[Span, ...]:
    """Equal shares in order; the larger ones first, so that powers of two are aligned with the tree."""
    return weigh(slices, [1.0] * workers)


def weigh(slices: int, speeds: Sequence[float]) -> tuple[Span, ...]:
    """Shares that minimise the slowest worker's time for these speeds, each at least one slice.

    One slice after another goes to the worker that would finish it first (the earlier one on a tie).
    """
    workers = len(speeds)
    if not 1 <= workers <= slices:
        raise ValueError(f"{workers} workers cannot share {slices} slices")
    counts = [1] * workers
    ends = [(2 / speed, k) for k, speed in enumerate(speeds)]
    heapq.heapify(ends)
    for _ in range(slices - workers):
        best = ends[0][1]
        counts[best] += 1
        heapq.heapreplace(ends, ((counts[best] + 1) / speeds[best], best))
    spans: list[Span] = []
    low = 0
    for count in counts:
        spans.append(Span(low, low + count))
        low += count
    return tuple(spans)
