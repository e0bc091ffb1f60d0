"""A worker's share of the state, copied at a boundary into memory that is kept from save to save."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from stretto.core import threads
from stretto.core.errors import Refused, ScriptError
from stretto.core.manifest import Identity, Piece, SharedEntry, Tensor
from stretto.train.checkpoint.shard_layout import deal, header, width
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.state_codec import as_bytes, flatten, spec

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader


def tensor_names(skeleton: object, count: int) -> list[str]:
    """A name for every tensor of a state: its path in the skeleton, without the common `objects`."""
    names = [""] * count
    for path, index in _walk(skeleton, ()):
        names[index] = "/".join(path[1:] if path and path[0] == "objects" else path)
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[index] = f"{name}#{seen[name]}"
    return names


def _walk(skeleton: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if not isinstance(skeleton, dict):
        return
    node = cast("dict[str, Any]", skeleton)
    for kind in ("tensor", "array"):
        if isinstance(node.get(kind), int):
            yield path, node[kind]
    for key, entry in node.get("map", ()):
        yield from _walk(entry, (*path, str(key)))
    for kind in ("list", "tuple", "set"):
        for place, entry in enumerate(node.get(kind, ())):
            yield from _walk(entry, (*path, str(place)))


def describe(skeleton: object, tensors: list[torch.Tensor]) -> tuple[Tensor, ...]:
    """Name, dtype and shape of each tensor of a state."""
    described: list[Tensor] = []
    for name, tensor in zip(tensor_names(skeleton, len(tensors)), tensors, strict=True):
        dtype, shape = spec(tensor)
        described.append(Tensor(name, dtype, tuple(shape)))
    return tuple(described)


def identify(
    *,
    seed: int,
    slices: int,
    loaders: list[Loader],
    batching: dict[str, str],
    shared: SharedObjects,
    version: str,
    fingerprint: dict[str, str],
) -> Identity:
    """The job as a checkpoint compares it: what its script made, before any state was received."""
    modules = {name for name, _ in shared.modules}
    skeleton, tensors = flatten({"objects": {name: module.state_dict() for name, module in shared.modules}})
    return Identity(
        seed=seed,
        slices=slices,
        loaders=tuple(
            {
                "train": loader.train,
                "batch": loader.batch,
                "tail": loader.tail,
                "samples": loader.source.size,
                "shuffle": loader.source.shuffle,
                "reduction": loader.reduction,
            }
            for loader in loaders
        ),
        plan=batching,
        fingerprint=fingerprint,
        version=version,
        objects=tuple(
            SharedEntry(name, type(shared_object).__name__, name in modules) for name, shared_object in shared.objects.items()
        ),
        tensors=describe(skeleton, tensors),
    )


@dataclass(frozen=True, slots=True)
class StateShare:
    """The contents of one writer's shard, before anything is copied."""

    tensors: tuple[Tensor, ...]
    pieces: tuple[Piece, ...]
    header: bytes
    sizes: tuple[int, ...]
    """Bytes of each piece."""

    @property
    def bytes(self) -> int:
        return len(self.header) + sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one worker will write: its share of the state as of one boundary."""

    skeleton: object
    tensors: tuple[Tensor, ...]
    pieces: tuple[Piece, ...]
    image: torch.Tensor
    """The bytes of the file, header and all, in the reused memory from the beginning of a page: valid until the next snapshot."""


class Memory:
    """Host memory for one shard, reused from save to save. It grows to the largest shard and never beyond."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._making: threading.Thread | None = None

    def prepare(self, skeleton: object, tensors: list[torch.Tensor], *, writer: int, writers: int) -> None:
        """Makes the memory in the background: its first touch costs more than all later copies, and would hold up training."""
        size = _share(skeleton, tensors, writer=writer, writers=writers).bytes
        if self._memory.numel() < size and self._making is None:
            self._making = threads.start(self._make, size, name="stretto-save-memory")

    def _make(self, size: int) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._memory = _pages(size).zero_()

    def reserve(self, size: int) -> torch.Tensor:
        if self._making is not None:
            self._making.join()
            self._making = None
        if self._memory.numel() < size:
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = _pages(size)
        return self._memory[:size]

    def snapshot(self, skeleton: object, tensors: list[torch.Tensor], *, writer: int, writers: int) -> Snapshot:
        """Copies this writer's share. This is the part that training waits for."""
        share = _share(skeleton, tensors, writer=writer, writers=writers)
        image = self.reserve(share.bytes)
        place = len(share.header)
        image[:place].copy_(torch.frombuffer(bytearray(share.header), dtype=torch.uint8))
        for piece, size in zip(share.pieces, share.sizes, strict=True):
            low = piece.low * width(share.tensors[piece.tensor])
            image[place : place + size].copy_(as_bytes(tensors[piece.tensor])[low : low + size])
            place += size
        return Snapshot(skeleton, share.tensors, share.pieces, image)


def _share(skeleton: object, tensors: list[torch.Tensor], *, writer: int, writers: int) -> StateShare:
    described = describe(skeleton, tensors)
    try:
        pieces = tuple(deal(described, writers)[writer])
    except Refused as error:
        raise ScriptError(str(error)) from error
    sizes = tuple((piece.high - piece.low) * width(described[piece.tensor]) for piece in pieces)
    return StateShare(described, pieces, header(described, pieces), sizes)


def _pages(size: int) -> torch.Tensor:
    """Memory that begins at a page, as direct writes need, and goes back to the system when it is freed."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
