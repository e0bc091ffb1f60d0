"""A worker's share of the state, copied at a boundary into memory that is kept from save to save."""

from __future__ import annotations

import json
import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from stretto.core import threads
from stretto.core.errors import Refused, ScriptError
from stretto.core.manifest import Identity, Manifest, Piece, SharedEntry, Tensor
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.state_codec import as_bytes, flatten, spec

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader


def tensor_names(skeleton: Any, count: int) -> list[str]:
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


def _walk(skeleton: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if not isinstance(skeleton, dict):
        return
    for kind in ("tensor", "array"):
        if isinstance(skeleton.get(kind), int):
            yield path, skeleton[kind]
    for key, held in skeleton.get("map", ()):
        yield from _walk(held, (*path, str(key)))
    for kind in ("list", "tuple", "set"):
        for place, held in enumerate(skeleton.get(kind, ())):
            yield from _walk(held, (*path, str(place)))


def describe(skeleton: Any, tensors: list[torch.Tensor]) -> tuple[Tensor, ...]:
    found = []
    for name, tensor in zip(tensor_names(skeleton, len(tensors)), tensors, strict=True):
        dtype, shape = spec(tensor)
        found.append(Tensor(name, dtype, tuple(shape)))
    return tuple(found)


def identify(
    *,
    seed: int,
    slices: int,
    loaders: list[Loader],
    batching: dict[str, str],
    shared: SharedObjects,
    version: str,
    fingerprint: dict[str, Any],
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
    """What one writer's shard will have, before anything is copied."""

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
    """What one worker will write."""

    skeleton: Any
    tensors: tuple[Tensor, ...]
    pieces: tuple[Piece, ...]
    image: torch.Tensor
    """The file's bytes, header and all. They lie in the reused memory, from a page's beginning: good until the next snapshot."""


class Memory:
    """Host memory for one shard. It grows to the largest and never beyond."""

    def __init__(self) -> None:
        self._held = torch.empty(0, dtype=torch.uint8)
        self._making: threading.Thread | None = None

    def prepare(self, skeleton: Any, tensors: list[torch.Tensor], *, writer: int, writers: int) -> None:
        """Makes the memory in the background: its first touch costs more than all later copies, and nobody should wait for it."""
        size = _share(skeleton, tensors, writer=writer, writers=writers).bytes
        if self._held.numel() < size and self._making is None:
            self._making = threads.start(self._make, size, name="stretto-save-memory")

    def _make(self, size: int) -> None:
        self._held = torch.empty(0, dtype=torch.uint8)
        self._held = _pages(size).zero_()

    def take(self, size: int) -> torch.Tensor:
        if self._making is not None:
            self._making.join()
            self._making = None
        if self._held.numel() < size:
            self._held = torch.empty(0, dtype=torch.uint8)
            self._held = _pages(size)
        return self._held[:size]

    def snapshot(self, skeleton: Any, tensors: list[torch.Tensor], *, writer: int, writers: int) -> Snapshot:
        """Copies this writer's share. This is the part that training waits for."""
        share = _share(skeleton, tensors, writer=writer, writers=writers)
        image = self.take(share.bytes)
        place = len(share.header)
        image[:place].copy_(torch.frombuffer(bytearray(share.header), dtype=torch.uint8))
        for piece, size in zip(share.pieces, share.sizes, strict=True):
            low = piece.low * width(share.tensors[piece.tensor])
            image[place : place + size].copy_(as_bytes(tensors[piece.tensor])[low : low + size])
            place += size
        return Snapshot(skeleton, share.tensors, share.pieces, image)


def _share(skeleton: Any, tensors: list[torch.Tensor], *, writer: int, writers: int) -> StateShare:
    described = describe(skeleton, tensors)
    try:
        pieces = tuple(deal(described, writers)[writer])
    except Refused as error:
        raise ScriptError(str(error)) from error
    sizes = tuple((piece.high - piece.low) * width(described[piece.tensor]) for piece in pieces)
    return StateShare(described, pieces, header(described, pieces), sizes)


def _pages(size: int) -> torch.Tensor:
    """Memory of its own that begins at a page, as direct writes want it, and goes back to the system when it is let go of."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


CODES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
    "complex64": ("C64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}
WHOLE_BYTES = 1 << 18
"""Smaller tensors are not cut."""


def width(tensor: Tensor) -> int:
    """Bytes of one element."""
    if tensor.dtype not in CODES:
        raise Refused(
            f"{tensor.name} has dtype {tensor.dtype}, which the safetensors format does not have: "
            f"share it as one of {', '.join(CODES)}"
        )
    return CODES[tensor.dtype][1]


def deal(tensors: Sequence[Tensor], writers: int) -> list[list[Piece]]:
    """Pieces for every writer: equal bytes, as far as whole elements and small tensors allow."""
    total = sum(tensor.elements * width(tensor) for tensor in tensors)
    ends = [total * (k + 1) // writers for k in range(writers)]
    dealt: list[list[Piece]] = [[] for _ in range(writers)]
    writer = place = 0
    for index, tensor in enumerate(tensors):
        low, step = 0, width(tensor)
        while low < tensor.elements:
            while writer < writers - 1 and place >= ends[writer]:
                writer += 1
            high = tensor.elements
            if writer < writers - 1 and high * step > WHOLE_BYTES:
                high = min(high, low + max(1, -(-(ends[writer] - place) // step)))
            dealt[writer].append(Piece(index, low, high))
            place += (high - low) * step
            low = high
    return dealt


def header(tensors: Sequence[Tensor], pieces: Iterable[Piece]) -> bytes:
    """Length and header of a safetensors file with these pieces, whose bytes follow in this order."""
    document: dict[str, object] = {}
    place = 0
    for piece in pieces:
        tensor = tensors[piece.tensor]
        size = (piece.high - piece.low) * width(tensor)
        whole = piece.high - piece.low == tensor.elements
        name = tensor.name if whole else f"{tensor.name}[{piece.low}:{piece.high}]"
        shape = list(tensor.shape) if whole else [piece.high - piece.low]
        document[name] = {"dtype": CODES[tensor.dtype][0], "shape": shape, "data_offsets": [place, place + size]}
        place += size
    return framed(document)


def framed(document: dict[str, object]) -> bytes:
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def weights(manifest: Manifest) -> list[tuple[str, int]]:
    """The modules' tensors under the names that they have in `state_dict`, and their numbers.

    With one module these are its own; with several, each name begins with that of its module and a dot.
    """
    modules = [one.name for one in manifest.identity.objects if one.module]
    return list(_weights(manifest, modules))


def _weights(manifest: Manifest, modules: list[str]) -> Iterator[tuple[str, int]]:
    for index, tensor in enumerate(manifest.tensors):
        owner, _, name = tensor.name.partition("/")
        if owner in modules and name:
            yield (name if len(modules) == 1 else f"{owner}.{name}"), index
