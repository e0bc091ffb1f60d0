"""Moving the state to newcomers: flat tensors and JSON, each part of it from another old worker.

The first holder sends the skeleton; the tensors' bytes are cut into pieces that the holders send in turn. Pieces of large
tensors are sent from where they lie and received where they will stay; small tensors travel packed together. What crosses the
network does so once per host: newcomers forward it to each other there.

`TransferTopology` says which way each piece goes. It is pure: all members read the same roster and find the same routes. A newcomer
on a host where somebody has the state gets it from there. To any other host each piece goes to one of its newcomers, in turn, and
from there to its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stretto.core.roster import Roster
from stretto.core.schema import Json
from stretto.train.entry.failpoints import failpoint
from stretto.train.reduce.process_group import ProcessGroup
from stretto.train.sharing.state_codec import TensorSpec, as_bytes, empty, spec

PIECE_BYTES = 8 << 20
SMALL_BYTES = 1 << 18
TAG = 7


Piece = list[tuple[int, int, int]]
"""Ranges of bytes that are sent together: (tensor, low, high)."""


def pieces(sizes: Sequence[int]) -> list[Piece]:
    """Cuts tensors of these sizes into pieces: one range of a large tensor, or several small tensors together."""
    pieces_: list[Piece] = []
    packed: Piece = []
    filled = 0
    for index, size in enumerate(sizes):
        if size > SMALL_BYTES:
            pieces_ += [[(index, low, min(low + PIECE_BYTES, size))] for low in range(0, size, PIECE_BYTES)]
        elif size:
            packed.append((index, 0, size))
            filled += size
            if filled >= PIECE_BYTES:
                pieces_.append(packed)
                packed, filled = [], 0
    return [*pieces_, packed] if packed else pieces_


def announce(group: ProcessGroup, specs: list[TensorSpec], *, newcomers: Sequence[int]) -> None:
    """Sends newcomers the dtypes and shapes of a state that will come."""
    text = json.dumps(specs).encode()
    for wait in [wait for peer in newcomers for wait in _send_text(group, text, peer)]:
        wait()


def receive_announcement(group: ProcessGroup, *, holder: int) -> list[TensorSpec]:
    """The other side of `announce`."""
    return json.loads(_receive_text(group, holder))


def _send_text(group: ProcessGroup, text: bytes, peer: int) -> list[Callable[[], None]]:
    length = torch.tensor([len(text)], dtype=torch.int64)
    return [group.send(length, peer, TAG), group.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), peer, TAG)]


def _receive_text(group: ProcessGroup, source: int) -> bytes:
    length = torch.empty(1, dtype=torch.int64)
    group.receive(length, source, TAG)()
    body = torch.empty(int(length.item()), dtype=torch.uint8)
    group.receive(body, source, TAG)()
    return body.numpy().tobytes()


def send(group: ProcessGroup, skeleton: Json, tensors: list[torch.Tensor], *, routes: TransferTopology) -> None:
    """This holder's part. Returns when all of it is delivered."""
    waits: list[Callable[[], None]] = []
    peers = routes.skeleton_targets(group.rank)
    if peers:
        text = json.dumps([skeleton, [spec(t) for t in tensors]]).encode()
        waits += [wait for peer in peers for wait in _send_text(group, text, peer)]
    flats = [as_bytes(t.cpu()) for t in tensors]
    for number, piece in enumerate(pieces([flat.numel() for flat in flats])):
        peers = routes.targets(group.rank, number)
        if peers:
            parts = [flats[index][low:high] for index, low, high in piece]
            body = parts[0] if len(parts) == 1 else torch.cat(parts)
            waits += [group.send(body, peer, TAG) for peer in peers]
    for wait in waits:
        wait()


def receive(
    group: ProcessGroup, *, routes: TransferTopology, buffers: Callable[[Json, list[TensorSpec]], list[torch.Tensor | None]]
) -> tuple[Json, list[torch.Tensor]]:
    """Receives the state, and returns once it was also forwarded. `buffers` may give contiguous tensors of the right dtype and
    shape to fill in place."""
    text = _receive_text(group, routes.skeleton_source(group.rank))
    forwards = [wait for peer in routes.skeleton_targets(group.rank) for wait in _send_text(group, text, peer)]
    skeleton, specs = json.loads(text)
    tensors = [
        empty(described) if buffer is None else buffer for described, buffer in zip(specs, buffers(skeleton, specs), strict=True)
    ]
    flats = [as_bytes(t) for t in tensors]
    waits: list[tuple[Callable[[], None], torch.Tensor, Piece]] = []
    for number, piece in enumerate(pieces([flat.numel() for flat in flats])):
        index, low, high = piece[0]
        body = flats[index][low:high] if len(piece) == 1 else torch.empty(_length(piece), dtype=torch.uint8)
        waits.append((group.receive(body, routes.source(group.rank, number), TAG), body, piece))
    for number, (wait, body, piece) in enumerate(waits):
        wait()
        for peer in routes.targets(group.rank, number):
            failpoint("hand-on")
            forwards.append(group.send(body, peer, TAG))
        if len(piece) > 1:
            _unpack(body, piece, flats)
    for wait in forwards:
        wait()
    return skeleton, tensors


def _length(piece: Piece) -> int:
    return sum(high - low for _, low, high in piece)


def _unpack(body: torch.Tensor, piece: Piece, flats: list[torch.Tensor]) -> None:
    place = 0
    for index, low, high in piece:
        flats[index][low:high] = body[place : place + high - low]
        place += high - low


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks on one host: those that have the state, and those that get it."""

    holders: tuple[int, ...]
    newcomers: tuple[int, ...]

    def relay(self, turn: int) -> int:
        """The newcomer that forwards to the others."""
        return self.newcomers[turn % len(self.newcomers)]


@dataclass(frozen=True, slots=True)
class TransferTopology:
    """The routes that a state takes: who sends each piece to whom. All members compute the same from the roster."""

    holders: tuple[int, ...]
    newcomers: tuple[int, ...]
    hosts: tuple[HostRanks, ...]
    at: tuple[int, ...]
    """The host that each rank is on, as an index into `hosts`."""

    @staticmethod
    def of(roster: Roster) -> TransferTopology:
        """In a first roster the first member has the state from its script."""
        newcomers = [place for place, name in enumerate(roster.workers) if name in roster.joined]
        if len(newcomers) == len(roster.members):
            newcomers = newcomers[1:]
        return TransferTopology.between([member.address[0] for member in roster.members], newcomers=newcomers)

    @staticmethod
    def between(hosts: Sequence[str], *, newcomers: Sequence[int]) -> TransferTopology:
        """With the name of every rank's host."""
        fresh = frozenset(newcomers)
        holders = tuple(rank for rank in range(len(hosts)) if rank not in fresh)
        ranks: dict[str, list[int]] = {}
        for rank, name in enumerate(hosts):
            ranks.setdefault(name, []).append(rank)
        number = {name: place for place, name in enumerate(ranks)}
        routes = tuple(
            HostRanks(tuple(rank for rank in there if rank not in fresh), tuple(rank for rank in there if rank in fresh))
            for there in ranks.values()
        )
        return TransferTopology(holders, tuple(sorted(fresh)), routes, tuple(number[name] for name in hosts))

    # ---- pieces

    def source(self, newcomer: int, piece: int) -> int:
        """The rank that sends this newcomer that piece of the state."""
        host = self.hosts[self.at[newcomer]]
        if host.holders:
            return host.holders[piece % len(host.holders)]
        relay = host.relay(piece)
        return self.holders[piece % len(self.holders)] if relay == newcomer else relay

    def targets(self, rank: int, piece: int) -> list[int]:
        """The ranks to which this member sends that piece."""
        here = self.hosts[self.at[rank]]
        if rank in here.newcomers:
            return (
                [] if here.holders or here.relay(piece) != rank else [newcomer for newcomer in here.newcomers if newcomer != rank]
            )
        near = list(here.newcomers) if here.holders[piece % len(here.holders)] == rank else []
        far = self.holders[piece % len(self.holders)] == rank
        return near + [host.relay(piece) for host in self.hosts if far and host.newcomers and not host.holders]

    # ---- the skeleton: it has one origin, the first rank that has the state

    def skeleton_source(self, newcomer: int) -> int:
        """The rank that sends this newcomer the skeleton."""
        host = self.hosts[self.at[newcomer]]
        origin, relay = self.holders[0], host.newcomers[0]
        return origin if relay == newcomer or origin in host.holders else relay

    def skeleton_targets(self, rank: int) -> list[int]:
        """The ranks to which this member sends the skeleton."""
        here, origin = self.hosts[self.at[rank]], self.holders[0]
        if rank == origin:
            return [*here.newcomers, *(host.newcomers[0] for host in self.hosts if host is not here and host.newcomers)]
        relays = rank in here.newcomers[:1] and origin not in here.holders
        return list(here.newcomers[1:]) if relays else []
