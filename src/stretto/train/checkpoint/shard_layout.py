"""Which writer writes which bytes, and the layout of a shard: the safetensors format, made and read without torch.

All tensors lie in a row, which is cut into one range per writer, between two elements. A tensor that is in a shard as a
whole has its name and shape there; a part of one is named `name[low:high]`. So any reader of safetensors can look into a shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from stretto.core.errors import Refused
from stretto.core.manifest import Manifest, Piece, Tensor

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
    modules = [entry.name for entry in manifest.identity.objects if entry.module]
    return list(_weights(manifest, modules))


def _weights(manifest: Manifest, modules: list[str]) -> Iterator[tuple[str, int]]:
    for index, tensor in enumerate(manifest.tensors):
        owner, _, name = tensor.name.partition("/")
        if owner in modules and name:
            yield (name if len(modules) == 1 else f"{owner}.{name}"), index
