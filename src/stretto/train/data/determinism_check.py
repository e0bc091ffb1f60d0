"""Whether a sample is the same when it is read again: what the same bits on any number of workers stand on.

A dataset or a collate_fn that keeps a random generator or a counter of its own gives another sample to whoever reads it second. The
first slice that a process reads is therefore read twice, with the random numbers set alike before, and compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stretto.core.errors import ScriptError

LEAVES = 100_000
"""So many values of a sample are compared at most."""
DEPTH = 16
CURE = (
    "draw from torch, numpy.random or random, whose state is set for each sample, or derive it from the index "
    "(numpy.random.default_rng(index))"
)


def prints(value: Any) -> dict[str, str]:
    """A fingerprint of everything in a sample that can be compared, by where it is."""
    found: dict[str, str] = {}
    _walk(value, "", found, DEPTH)
    return found


def check_sample(first: dict[str, str], second: dict[str, str], *, dataset: Any, index: int) -> None:
    where = _difference(first, second)
    if where is not None:
        raise ScriptError(
            f"sample {index} of the dataset ({type(dataset).__name__}) was read twice, with the same random "
            "state set "
            f"before each time, and differs{where}. So it depends on how often and by which process it was read: the "
            "dataset keeps a random generator or a counter of its own (numpy.random.default_rng, torch.Generator or "
            f"random.Random in self, an iterator). To mend it, {CURE}"
        )


def check_collated(first: dict[str, str], second: dict[str, str], *, collate: Any) -> None:
    where = _difference(first, second)
    if where is not None:
        name = getattr(collate, "__name__", type(collate).__name__)
        raise ScriptError(
            f"collate_fn={name} made two different batches of the same samples, with the same random state set "
            "before "
            f"each time: they differ{where}. So a batch depends on how many the process has made before: collate_fn "
            f"keeps a random generator or a counter of its own. To mend it, {CURE}"
        )


def random_state() -> tuple[Any, ...]:
    """The generators that samples may draw from, as they are."""
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy is not None else None


def set_random_state(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if state[2] is not None:
        np.random.set_state(state[2])


def _difference(first: dict[str, str], second: dict[str, str]) -> str | None:
    for where in [*first, *second]:
        if first.get(where) != second.get(where):
            return f" in {where}" if where else ""
    return None


def _walk(value: Any, where: str, found: dict[str, str], depth: int) -> None:
    if depth < 0 or len(found) >= LEAVES:
        return
    if isinstance(value, torch.Tensor):
        _add_tensor(value, where, found)
    elif isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array_interface__"):
        _add_array(value, where, found)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found[where] = f"{type(value).__name__} {value!r}"
    elif isinstance(value, Mapping):
        for key in value:
            _walk(value[key], f"{where}[{key!r}]", found, depth - 1)
    elif isinstance(value, tuple | list):
        found[f"len({where or 'the sample'})"] = str(len(value))
        for place, one in enumerate(value):
            _walk(one, f"{where}[{place}]", found, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _walk(getattr(value, field.name, None), f"{where}.{field.name}", found, depth - 1)


def _add_tensor(value: torch.Tensor, where: str, found: dict[str, str]) -> None:
    try:
        data = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        return  # sparse, nested, quantized: not comparable byte by byte
    found[where] = f"{value.dtype} {tuple(value.shape)} {_digest(data)}"


def _add_array(value: Any, where: str, found: dict[str, str]) -> None:
    try:
        array = np.ascontiguousarray(value)
    except (TypeError, ValueError):
        return
    if not array.dtype.hasobject:
        found[where] = f"{array.dtype} {array.shape} {_digest(array.reshape(-1).view(np.uint8))}"


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
