"""The sum along the fixed tree, however its parts are distributed over the workers.

Every worker brings the sums of the complete subtrees in its share. Where each holds exactly one node of one level,
siblings exchange halves level by level and hand the results back the same way: the bytes of a ring all-reduce. Otherwise
each worker owns a segment, gets everybody's subtrees of it, adds them up in tree order and hands the result to all. Both
give the bits of one worker that adds up the whole tree alone.

(Fixed binary trees for the same purpose within a model: TBIK, arXiv 2511.17826.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from stretto.core.slices import Span, cover, split
from stretto.train.reduce.process_group import ProcessGroup

ALIGN = 64
"""Segments begin at multiples of this many elements."""
SMALL_PAIR_BYTES = 8 << 20
SMALL_BYTES = 1 << 18
"""Up to these sizes rounds cost more than bytes: with two workers, and with more."""
HEADER = 2048
"""Headers up to this size need one round."""


def aligned(slices: int, shares: Sequence[Span]) -> bool:
    """Whether each share is one node, all of one level, so that neighbours are siblings all the way up."""
    level = [Span(0, slices)]
    while len(level) < len(shares):
        if any(len(node) < 2 for node in level):
            return False
        level = [child for node in level for child in split(node)]
    return list(shares) == level


def segments(length: int, parts: int) -> list[tuple[int, int]]:
    """Equal cuts of a vector, aligned; the last ones may be empty."""
    size = -(-length // parts)
    size = -(-size // ALIGN) * ALIGN
    return [(min(k * size, length), min((k + 1) * size, length)) for k in range(parts)]


class TreeAllreduce:
    """Sums vectors over the members of a group, one at a time. Scratch memory is kept from call to call."""

    def __init__(self, group: ProcessGroup, slices: int) -> None:
        self.group = group
        self.slices = slices
        self.shares = [member.share for member in group.roster.members]
        self.covers = [cover(slices, share) for share in self.shares]
        self.aligned = aligned(slices, self.shares)
        self._scratch: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def sum(self, parts: Mapping[Span, torch.Tensor], *, finish: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """The sum over all slices, `finish`ed segment by segment by its owner, in the memory of the first part."""
        own = self.covers[self.group.rank]
        out = parts[own[0]]
        if self.group.size == 1:
            finish(out)
            return out
        if self.aligned and out.nbytes <= (SMALL_PAIR_BYTES if self.group.size == 2 else SMALL_BYTES):
            self._double(out, finish)
        elif self.aligned:
            self._halve_and_double(out, finish)
        else:
            self._all_to_all(parts, out, finish)
        return out

    def _room(self, like: torch.Tensor, length: int) -> torch.Tensor:
        key = (like.dtype, like.device)
        scratch = self._scratch.get(key)
        if scratch is None or scratch.numel() < length:
            scratch = self._scratch[key] = torch.empty(length, dtype=like.dtype, device=like.device)
        return scratch[:length]

    def _double(self, out: torch.Tensor, finish: Callable[[torch.Tensor], None]) -> None:
        """Siblings exchange everything: half of the rounds for more bytes, which pays for short vectors."""
        received = self._room(out, out.numel())
        distance = 1
        while distance < self.group.size:
            self._swap(out, received, self.group.rank ^ distance)
            out.add_(received)
            distance *= 2
        finish(out)

    def _halve_and_double(self, out: torch.Tensor, finish: Callable[[torch.Tensor], None]) -> None:
        rank, size, low, high = self.group.rank, self.group.size, 0, out.numel()
        trail: list[tuple[int, int, int]] = []
        distance = 1
        while distance < size:
            peer = rank ^ distance
            middle = low + (-(-(high - low) // (2 * ALIGN))) * ALIGN
            middle = min(middle, high)
            trail.append((low, middle, high))
            (keep_low, keep_high), (give_low, give_high) = (
                ((low, middle), (middle, high)) if rank < peer else ((middle, high), (low, middle))
            )
            received = self._room(out, keep_high - keep_low)
            self._swap(out[give_low:give_high], received, peer)
            if keep_high > keep_low:
                out[keep_low:keep_high].add_(received)
            low, high = keep_low, keep_high
            distance *= 2
        finish(out[low:high])
        while trail:
            distance //= 2
            peer = rank ^ distance
            low, middle, high = trail.pop()
            mine, theirs = (out[low:middle], out[middle:high]) if rank < peer else (out[middle:high], out[low:middle])
            self._swap(mine, theirs, peer)

    def _swap(self, sent: torch.Tensor, received: torch.Tensor, peer: int) -> None:
        waits: list[Callable[[], None]] = []
        if received.numel():
            waits.append(self.group.receive(received, peer))
        if sent.numel():
            waits.append(self.group.send(sent, peer))
        for wait in waits:
            wait()

    def _all_to_all(self, parts: Mapping[Span, torch.Tensor], out: torch.Tensor, finish: Callable[[torch.Tensor], None]) -> None:
        rank, size = self.group.rank, self.group.size
        cuts = segments(out.numel(), size)
        low, high = cuts[rank]
        length = high - low
        others = [k for k in range(size) if k != rank]
        room = self._room(out, length * sum(len(self.covers[k]) for k in others))
        received: dict[Span, torch.Tensor] = {}
        waits: list[Callable[[], None]] = []
        place = 0
        for peer in others:
            for tag, node in enumerate(self.covers[peer]):
                received[node] = room[place : place + length]
                place += length
                if length:
                    waits.append(self.group.receive(received[node], peer, tag))
        for peer in others:
            peer_low, peer_high = cuts[peer]
            for tag, node in enumerate(self.covers[rank]):
                if peer_high > peer_low:
                    waits.append(self.group.send(parts[node][peer_low:peer_high], peer, tag))
        for wait in waits:
            wait()
        if length:
            for node in self.covers[rank]:
                received[node] = parts[node][low:high]
            total = self._fold(Span(0, self.slices), received)
            if total.data_ptr() != out[low:high].data_ptr():
                out[low:high].copy_(total)
            finish(out[low:high])
        self._hand_out(out, cuts, others)

    def _hand_out(self, out: torch.Tensor, cuts: list[tuple[int, int]], others: list[int]) -> None:
        low, high = cuts[self.group.rank]
        waits = [self.group.receive(out[cuts[k][0] : cuts[k][1]], k) for k in others if cuts[k][1] > cuts[k][0]]
        if high > low:
            waits += [self.group.send(out[low:high], k) for k in others]
        for wait in waits:
            wait()

    def _fold(self, node: Span, received: Mapping[Span, torch.Tensor]) -> torch.Tensor:
        """Adds up a subtree in tree order, in the memory of its leftmost part."""
        if node in received:
            return received[node]
        left, right = (self._fold(child, received) for child in split(node))
        return left.add_(right)

    def all_gather(self, message: bytes) -> list[bytes]:
        """The messages of all members, by rank."""
        if self.group.size == 1:
            return [message]
        first = self._round(len(message).to_bytes(8, "little") + message[: HEADER - 8], HEADER)
        lengths = [int.from_bytes(text[:8], "little") for text in first]
        if max(lengths) <= HEADER - 8:
            return [text[8 : 8 + length] for text, length in zip(first, lengths, strict=True)]
        whole = self._round(message, max(lengths))
        return [text[:length] for text, length in zip(whole, lengths, strict=True)]

    def _round(self, message: bytes, size: int) -> list[bytes]:
        mine = torch.frombuffer(bytearray(message.ljust(size, b"\0")), dtype=torch.uint8)
        rooms = [torch.empty(size, dtype=torch.uint8) for _ in range(self.group.size)]
        rooms[self.group.rank] = mine
        others = [k for k in range(self.group.size) if k != self.group.rank]
        waits = [self.group.receive(rooms[k], k, 1) for k in others]
        waits += [self.group.send(mine, k, 1) for k in others]
        for wait in waits:
            wait()
        return [room.numpy().tobytes() for room in rooms]
