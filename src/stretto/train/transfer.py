"""Moving the state to newcomers: flat tensors and JSON, each part of it from another old worker.

The first holder sends the skeleton; the tensors' bytes are cut into pieces that the holders send in turn. Pieces of large
tensors are sent from where they lie and received where they will stay; small tensors travel packed together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stretto.train.group import Group
from stretto.train.state import as_bytes, empty, spec

PIECE_BYTES = 8 << 20
SMALL_BYTES = 1 << 18
TAG = 7


def pieces(sizes: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Pieces of (tensor, low, high): one range of a large tensor, or several small ones together."""
    found: list[list[tuple[int, int, int]]] = []
    packed: list[tuple[int, int, int]] = []
    held = 0
    for index, size in enumerate(sizes):
        if size > SMALL_BYTES:
            found += [[(index, low, min(low + PIECE_BYTES, size))] for low in range(0, size, PIECE_BYTES)]
        elif size:
            packed.append((index, 0, size))
            held += size
            if held >= PIECE_BYTES:
                found.append(packed)
                packed, held = [], 0
    return [*found, packed] if packed else found


def announce(group: Group, specs: list[list[Any]], *, newcomers: Sequence[int]) -> None:
    """Tells newcomers the dtypes and shapes of a state that will come."""
    for wait in [wait for peer in newcomers for wait in _send_json(group, specs, peer)]:
        wait()


def hear(group: Group, *, holder: int) -> list[list[Any]]:
    return _receive_json(group, holder)


def _send_json(group: Group, value: Any, peer: int) -> list[Callable[[], None]]:
    text = json.dumps(value).encode()
    length = torch.tensor([len(text)], dtype=torch.int64)
    return [group.send(length, peer, TAG), group.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), peer, TAG)]


def _receive_json(group: Group, source: int) -> Any:
    length = torch.empty(1, dtype=torch.int64)
    group.receive(length, source, TAG)()
    body = torch.empty(int(length.item()), dtype=torch.uint8)
    group.receive(body, source, TAG)()
    return json.loads(body.numpy().tobytes())


def send(group: Group, skeleton: Any, tensors: list[torch.Tensor], *, holders: Sequence[int], newcomers: Sequence[int]) -> None:
    """This holder's part. Returns when all of it is delivered."""
    waits: list[Callable[[], None]] = []
    if group.rank == holders[0]:
        described = [skeleton, [spec(t) for t in tensors]]
        waits += [wait for peer in newcomers for wait in _send_json(group, described, peer)]
    flats = [as_bytes(t.cpu()) for t in tensors]
    mine = holders.index(group.rank)
    for number, piece in enumerate(pieces([flat.numel() for flat in flats])):
        if number % len(holders) == mine:
            parts = [flats[index][low:high] for index, low, high in piece]
            body = parts[0] if len(parts) == 1 else torch.cat(parts)
            waits += [group.send(body, peer, TAG) for peer in newcomers]
    for wait in waits:
        wait()


def receive(
    group: Group, *, holders: Sequence[int], room: Callable[[Any, list[list[Any]]], list[torch.Tensor | None]]
) -> tuple[Any, list[torch.Tensor]]:
    """The state. `room` may name contiguous tensors of the right dtype and shape that are to be filled in place."""
    skeleton, specs = _receive_json(group, holders[0])
    tensors = [empty(one) if given is None else given for one, given in zip(specs, room(skeleton, specs), strict=True)]
    flats = [as_bytes(t) for t in tensors]
    waits: list[tuple[Callable[[], None], torch.Tensor | None, list[tuple[int, int, int]]]] = []
    for number, piece in enumerate(pieces([flat.numel() for flat in flats])):
        if len(piece) == 1:
            index, low, high = piece[0]
            waits.append((group.receive(flats[index][low:high], holders[number % len(holders)], TAG), None, piece))
        else:
            packed = torch.empty(sum(high - low for _, low, high in piece), dtype=torch.uint8)
            waits.append((group.receive(packed, holders[number % len(holders)], TAG), packed, piece))
    for wait, packed, piece in waits:
        wait()
        if packed is not None:
            place = 0
            for index, low, high in piece:
                flats[index][low:high] = packed[place : place + high - low]
                place += high - low
    return skeleton, tensors
