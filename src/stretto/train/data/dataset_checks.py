"""Which datasets can be read by sample numbers, and what identifies one. Others are refused by name, with the way that exists."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TypeGuard, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from stretto.core.errors import ScriptError
from stretto.core.type_guards import is_mapping
from stretto.train.data.dataset_changes import layers

SHOWN_KEYS = 6
"""Keys of a mapping that a message names."""


def check_dataset(dataset: object) -> int:
    """Refuses what cannot be read by sample numbers. Returns the number of samples."""
    if isinstance(dataset, type):
        raise ScriptError(f"job.loader got the class {dataset.__name__}: give it a dataset, such as {dataset.__name__}(...)")
    if _makes_batches(dataset):
        raise ScriptError(
            f"job.loader got {named(dataset)}: give it the dataset and the global batch_size, it makes the batches itself"
        )
    if is_mapping(dataset):
        _check_mapping(dataset)
    if isinstance(dataset, str | bytes):
        raise ScriptError(
            f"job.loader got the string {dataset!r}: give it the dataset itself, an object with __len__ and __getitem__"
        )
    if type(dataset).__module__.partition(".")[0] == "pandas":
        raise ScriptError(
            f"job.loader got {named(dataset)} of pandas, whose [0] is not its first row: give it the rows, as "
            "TensorDataset(torch.tensor(frame.to_numpy())) or frame.to_dict('records')"
        )
    if _is_iterable_dataset(dataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ScriptError(_in_order_only(dataset))
    size = length(dataset)
    if not size:
        raise ScriptError("the dataset is empty: a loader needs at least one sample")
    return size


def length(dataset: object) -> int:
    """len(dataset), with a sentence instead of a traceback where it has none."""
    try:
        return len(cast(Sized, dataset))
    except (TypeError, NotImplementedError) as error:
        raise ScriptError(
            f"len() of the dataset ({type(dataset).__name__}) failed with {type(error).__name__}: {error}; "
            "samples are read by their number, so their number has to be known: give a dataset with __len__ and "
            "__getitem__"
        ) from error


def check_length(dataset: object, size: int) -> None:
    """At the beginning of a sweep: the order of samples was made for `size` of them."""
    now = length(dataset)
    if now != size:
        raise ScriptError(
            f"the dataset had {size} samples when its loader was made and has {now} now: which samples a step has "
            "follows from that number. Make a new job.loader(...) for each stage, before training begins, or keep "
            "the length and change what an index stands for"
        )


def named(value: object) -> str:
    """The type of a value with its article."""
    name = type(value).__name__
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"


def _check_mapping(dataset: Mapping[object, object]) -> None:
    keys = list(dataset)
    numbers = [key for key in keys if isinstance(key, int)]
    if keys and len(numbers) == len(keys) and sorted(numbers) == list(range(len(keys))):
        return  # samples by number, in a dict
    shown = ", ".join(repr(key) for key in keys[:SHOWN_KEYS]) + (", …" if len(keys) > SHOWN_KEYS else "")
    values = [dataset[key] for key in keys]
    if values and all(isinstance(value, torch.Tensor | np.ndarray) for value in values):
        raise ScriptError(
            f"job.loader got {named(dataset)} of columns ({shown}), which has no samples by number: put them side by "
            "side, as torch.utils.data.TensorDataset(*columns.values())"
        )
    first = next((key for key in keys if str(key) == "train"), keys[0] if keys else "train")
    raise ScriptError(
        f"job.loader got {named(dataset)} with the splits {shown or 'none'}: give it one of them, as job.loader(data[{first!r}], …)"
    )


def _in_order_only(dataset: object) -> str:
    what = named(dataset)
    if isinstance(dataset, Iterator):
        return (
            f"job.loader got {what}, which can be read only once and from its start: samples are read by their "
            "number, so that any worker can have any of them; give list(...) of it, or a dataset with __len__ and __getitem__"
        )
    if _is_iterable_dataset(dataset) and type(dataset).__name__ != "IterableDataset":
        what += " (an IterableDataset)"
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]
    lacks = f" (it has no {' and no '.join(missing)})" if missing else ""
    return (
        f"job.loader got {what}{lacks}, which can only be read from its start: samples are read by "
        "their number, so that any worker can have any of them; give a dataset with __len__ and __getitem__"
    )


HASHED_ENTRIES = 1 << 14
"""Entries of a dataset's indices or tensors that go into its hash, spread evenly."""


def identity(dataset: object) -> dict[str, str]:
    """A short hash for each `Subset` and `TensorDataset` in a dataset; other kinds are not looked into."""
    terms: dict[str, str] = {}
    for place, layer in enumerate(layers(dataset)):
        name = f"dataset{place or ''}"
        if _is_subset(layer):
            terms[f"{name}.indices"] = _hash_indices(layer.indices)
        elif isinstance(layer, TensorDataset):
            terms.update(
                {
                    f"{name}.tensors[{k}]": _hash(_bytes(tensor))
                    for k, tensor in enumerate(layer.tensors)
                    if tensor.layout is torch.strided and not tensor.is_quantized
                }
            )
    return terms


def _makes_batches(value: object) -> bool:
    return isinstance(value, DataLoader) or (hasattr(value, "collate_fn") and hasattr(value, "drop_last"))


def _is_subset(value: object) -> TypeGuard[Subset[object]]:
    return isinstance(value, Subset)


def _is_iterable_dataset(value: object) -> bool:
    return isinstance(value, IterableDataset)


def _hash_indices(indices: Sequence[int]) -> str:
    chosen = indices if hasattr(indices, "__getitem__") else list(indices)
    return _hash(str([int(index) for index in chosen[:: max(1, len(chosen) // HASHED_ENTRIES)]]).encode())


def _bytes(tensor: torch.Tensor) -> bytes:
    rows = tensor.detach()[:: max(1, len(tensor) // HASHED_ENTRIES)] if tensor.dim() else tensor.detach()
    return bytes(rows.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()) if rows.numel() else b""


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()
