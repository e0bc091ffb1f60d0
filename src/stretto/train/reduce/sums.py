"""Sums, counts and lists of a pass, combined over all slices in the order of the fixed tree: the same for any number of workers.

Every worker combines the values of its own slices as far as it can without its neighbours: the complete subtrees of its share.
These partial results travel behind the header, and every worker finishes the tree. Integers stay integers and are exact; floats
are summed in double precision and always in the same order. Logged values are averaged over the slices' samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch

from stretto.core.errors import ScriptError
from stretto.core.slices import Span, cover, split
from stretto.train.sharing.state_codec import as_bytes, empty, flatten, spec, unflatten

Key = tuple[str, ...]
"""How values are combined, and what they belong to."""
Number: TypeAlias = int | float
Summand: TypeAlias = Number | torch.Tensor
"""A value of `step.sum` once it is plain: whole numbers stay whole, tensors are of int64 or float64 on the CPU."""
Rows: TypeAlias = torch.Tensor | list[object]
"""Values per sample: a tensor or a list with an entry for each."""
Operation: TypeAlias = Callable[[Any, Any], Any]
"""Combines two values of one key."""
V = TypeVar("V")
SUM, GATHER = "sum", "gather"
CARRIED_BYTES = 64 << 10
"""Gathered values of an evaluation up to this size are a part of the job's state."""


class SliceSums:
    """The values of one pass on this worker, by key and unit. A unit is a slice, or a part of one."""

    def __init__(self) -> None:
        self._values: dict[Key, dict[int, Any]] = {}

    def sum(self, name: str, unit: int, value: object) -> None:
        """Adds to the sum `name`. Tensors are copied, and read only when the pass ends, so that no device is waited for."""
        values = self._values.setdefault((SUM, name), {}).setdefault(unit, [])
        values.append(value.detach().clone() if isinstance(value, torch.Tensor) else value)

    def gather(self, name: str, unit: int, values: object, *, samples: int) -> None:
        """Keeps the values per sample of one slice."""
        gathered = self._values.setdefault((GATHER, name), {})
        if unit in gathered:
            raise ScriptError(f"step.gather({name}=…) was called twice in one slice: gather every name once a slice")
        gathered[unit] = [rows(name, values, samples=samples)]

    def set_states(self, unit: int, entries: Iterable[tuple[Key, object]]) -> None:
        """States of metrics after a slice."""
        for key, value in entries:
            self._values.setdefault(key, {})[unit] = value

    def pack(self, *, units: int, share: Span) -> bytes:
        """The sums of the complete subtrees of `share`, one of `units` units."""
        nodes = cover(units, share)
        packed: dict[Key, list[list[object]]] = {}
        for key, values in self._values.items():
            leaves = {Span(unit, unit + 1): _summed(key[1], value) if key[0] == SUM else value for unit, value in values.items()}
            parts = [(node, combine(leaves, node, OPERATIONS[key[0]](key))) for node in nodes]
            packed[key] = [[node.low, node.high, part] for node, part in parts if part is not None]
        return pack(packed)


def total(blobs: Iterable[bytes], *, units: int) -> dict[Key, Any]:
    """Combines the partial results of all workers."""
    parts: dict[Key, dict[Span, object]] = {}
    for blob in blobs:
        if blob:
            for key, nodes in unpack(blob).items():
                parts.setdefault(key, {}).update({Span(low, high): value for low, high, value in nodes})
    return {key: combine(parts[key], Span(0, units), OPERATIONS[key[0]](key)) for key in sorted(parts)}


def combine(values: Mapping[Span, V], node: Span, add: Callable[[V, V], V]) -> V | None:
    """The value of a subtree, from those of its subtrees. None where there is none."""
    if node in values:
        return values[node]
    if len(node) == 1:
        return None
    left, right = (combine(values, child, add) for child in split(node))
    if left is None or right is None:
        return right if left is None else left
    return add(left, right)


# ---- sums


def _summed(name: str, values: list[object]) -> Summand:
    """What one slice has added under one name."""
    first, *rest = (_plain(name, value) for value in values)
    for value in rest:
        first = add(name, first, value)
    return first


def _plain(name: str, value: object) -> Summand:
    """An int, a float, or a tensor of int64 or float64 on the CPU."""
    if isinstance(value, np.ndarray | np.generic):
        value = _from_numpy(np.array(cast("object", value)))
    if isinstance(value, torch.Tensor) and not value.is_complex():
        value = value.cpu()
        value = value.to(torch.float64 if value.is_floating_point() else torch.int64)
        return value.item() if value.numel() == 1 else value
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    kind = "complex tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    raise ScriptError(f"step.sum({name}=…) got a {kind}: sum integers, floats or tensors of them")


def add(name: str, left: Summand, right: Summand) -> Summand:
    """The sum of two numbers, or of two tensors of one shape."""
    if _shape(left) != _shape(right):
        raise ScriptError(
            f"step.sum({name}=…) got {_shape(left)} in one slice and {_shape(right)} in another: give every slice's "
            "value the same shape, or gather values per sample with step.gather"
        )
    return left + right


def _from_numpy(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
    return torch.from_numpy(array)


def _shape(value: Summand) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else "a number"


# ---- values per sample


def rows(name: str, values: object, *, samples: int) -> Rows:
    """A slice's values per sample: a tensor on the CPU, or a list."""
    if isinstance(values, np.ndarray):
        values = _from_numpy(cast("np.ndarray[tuple[int, ...], np.dtype[np.generic]]", values))
    if not isinstance(values, torch.Tensor | list | tuple):
        raise ScriptError(
            f"step.gather({name}=…) got a {type(values).__name__}: give a tensor or a list with one entry for each "
            f"of the slice's {samples} samples"
        )
    if isinstance(values, torch.Tensor) and not values.dim():
        raise ScriptError(
            f"step.gather({name}=…) got a tensor without dimensions: give one entry for each of the slice's "
            f"{samples} samples, or use step.log for means and step.sum for sums"
        )
    entries: Sequence[object] | torch.Tensor = values if isinstance(values, torch.Tensor) else cast("Sequence[object]", values)
    if len(entries) != samples:
        raise ScriptError(
            f"step.gather({name}=…) got {len(entries)} entries, the slice has {samples} samples: the first dimension "
            "of what is gathered is the slice's samples"
        )
    if isinstance(entries, torch.Tensor):
        return entries.detach().to("cpu", copy=True)
    listed = [value.detach() if isinstance(value, torch.Tensor) else value for value in entries]
    try:
        flatten(listed)
    except ScriptError:
        kinds = ", ".join(sorted({type(value).__name__ for value in listed}))
        raise ScriptError(
            f"step.gather({name}=…) got a list of {kinds}: entries are tensors or plain values (numbers, texts, "
            "lists and dicts of these)"
        ) from None
    return listed


def joined(name: str, chunks: list[Rows]) -> Rows:
    """Chunks of values per sample as one tensor or list."""
    first = chunks[0]
    for other in chunks:
        if _row(other) != _row(first):
            raise ScriptError(
                f"step.gather({name}=…) got {_row(first)} in one slice and {_row(other)} in another: give every "
                "slice the same (pad to one length, or give a list)"
            )
    if isinstance(first, torch.Tensor):
        return first if len(chunks) == 1 else torch.cat(cast("list[torch.Tensor]", chunks))
    return [value for chunk in chunks for value in chunk]


def _row(chunk: Rows) -> str:
    if isinstance(chunk, torch.Tensor):
        return f"{str(chunk.dtype).removeprefix('torch.')} of shape {tuple(chunk.shape[1:])} a sample"
    return "a list"


class Partial(dict[str, Any]):
    """Gathered values as a newcomer gets them: asking for one that was too large to send raises an error that explains it."""

    def __init__(self, values: Mapping[str, Any], *, left_out: Iterable[str]) -> None:
        super().__init__(values)
        self.left_out = set(left_out)

    def __missing__(self, name: str) -> Any:
        if name in self.left_out:
            raise ScriptError(
                f"gathered[{name!r}] is of a sweep before this worker joined and was larger than the {CARRIED_BYTES} "
                "bytes that newcomers get: use it before the next training step, or keep what it gives in step.sum"
            )
        raise KeyError(name)


def small(gathered: Mapping[str, object]) -> dict[str, object]:
    """What of the gathered values newcomers and checkpoints get: all of it, or the names alone."""
    fits = size(gathered.values(), bound=CARRIED_BYTES) <= CARRIED_BYTES
    return {
        "gathered": dict(gathered) if fits else {},
        "left_out": sorted({*getattr(gathered, "left_out", ()), *(() if fits else gathered)}),
    }


def size(values: Iterable[object], *, bound: int) -> int:
    """About how many bytes values take when they are sent. Stops counting beyond `bound`."""
    count = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            count += value.nbytes
        elif isinstance(value, Mapping):
            mapping = cast("Mapping[object, object]", value)
            count += size([*mapping.keys(), *mapping.values()], bound=bound)
        elif isinstance(value, list | tuple | set):
            count += size(cast("Iterable[object]", value), bound=bound)
        else:
            count += len(str(value))
        if count > bound:
            break
    return count


OPERATIONS: dict[str, Callable[[Key], Operation]] = {
    SUM: lambda key: lambda left, right: add(key[1], left, right),
    GATHER: lambda _: lambda left, right: left + right,
    # States of metrics: each key names its own operation.
    "state.sum": lambda _: lambda left, right: left + right,
    "state.max": lambda _: torch.maximum,
    "state.min": lambda _: torch.minimum,
    "state.list": lambda _: lambda left, right: left + right,
}


# ---- bytes


def pack(value: object) -> bytes:
    """Plain values and tensors as bytes."""
    skeleton, tensors = flatten(value, where="gathered values")
    tensors = [tensor.cpu() for tensor in tensors]
    text = json.dumps([skeleton, [spec(tensor) for tensor in tensors]], separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *(as_bytes(tensor).numpy().tobytes() for tensor in tensors)])


def unpack(blob: bytes) -> Any:
    """The inverse of `pack`."""
    place = 4 + int.from_bytes(blob[:4], "little")
    skeleton, specs = json.loads(blob[4:place])
    tensors: list[torch.Tensor] = []
    for described in specs:
        tensor = empty(described)
        if tensor.nbytes:
            as_bytes(tensor).copy_(torch.frombuffer(bytearray(blob[place : place + tensor.nbytes]), dtype=torch.uint8))
        place += tensor.nbytes
        tensors.append(tensor)
    return unflatten(skeleton, tensors)


Row = dict[str, float]


def number(name: str, value: object) -> float:
    """A logged value as a number."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ScriptError(f"step.log({name}=…) got a tensor of shape {tuple(value.shape)}: log one number, such as its mean()")
        return float(value.item())
    try:
        return float(cast("float", value))
    except (TypeError, ValueError):
        raise ScriptError(f"step.log({name}=…) got a {type(value).__name__}: log a number or a tensor with one element") from None


def average(rows: Mapping[int, Row], weights: Mapping[int, int], slices: int) -> Row:
    """The weighted mean of every name over the slices that logged it."""
    names = sorted({name for row in rows.values() for name in row})
    return {name: _mean(name, rows, weights, slices) for name in names}


def _mean(name: str, rows: Mapping[int, Row], weights: Mapping[int, int], slices: int) -> float:
    def fold(node: Span) -> tuple[float, float]:
        if len(node) == 1:
            row = rows.get(node.low, {})
            weight = float(weights.get(node.low, 0))
            return (row[name] * weight, weight) if name in row else (0.0, 0.0)
        (left, left_weight), (right, right_weight) = (fold(child) for child in split(node))
        return left + right, left_weight + right_weight

    total, weight = fold(Span(0, slices))
    return total / weight if weight else float("nan")
