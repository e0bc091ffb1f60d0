"""What a script changes in a dataset while it trains: its epoch, its difficulty, its transform.

Such a change has to reach all who read: processes that read ahead, and workers that join. So plain attributes of datasets are
watched.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from stretto.train.script_checks.object_hashes import is_array

PLAIN = (int, float, str, bool, bytes, type(None))
FEW = 64
"""A list of more values is data, not a setting."""
LONG = 200
"""Characters of a value that are shown and compared."""


class Attributes:
    """The plain attributes of a dataset, read anew only where one of them has become another object: steps ask for them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._found: dict[str, Any] = {}
        self._seen: list[tuple[dict[str, Any], list[Any]]] | None = None
        self._copies: list[tuple[Any, Any]] = []
        """Lists and dicts, which may change and stay the same object, each with a copy."""

    def now(self) -> dict[str, Any]:
        if self._seen is None or not self._same():
            self._found = plain_attributes(self._dataset)
            holders = [vars(dataset) for dataset in within(self._dataset) if hasattr(dataset, "__dict__")]
            self._seen = [(holder, list(holder.values())) for holder in holders]
            self._copies = [
                (value, copy.copy(value))
                for _, values in self._seen
                for value in values
                if isinstance(value, list | dict) and (_plain(value) or _datasets(value))
            ]
        return self._found

    def _same(self) -> bool:
        assert self._seen is not None
        return all(
            len(holder) == len(values) and all(map(operator.is_, holder.values(), values)) for holder, values in self._seen
        ) and all(value == before for value, before in self._copies)


class Changes:
    """What has changed in a dataset since its loader was made, apart from what reading changes (counters, caches)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._attributes = Attributes(dataset)
        self._made = self._attributes.now()
        self._before: dict[str, Any] = {}
        self._own: set[str] = set()
        """Attributes that reading has changed: they may differ from worker to worker."""
        self._arrays_made = self._arrays_before = self._arrays_now()

    def begin(self) -> dict[str, str]:
        """Slices are about to be read: the attributes that the script has changed, as they are now."""
        self._before = self._attributes.now()
        self._arrays_before = self._arrays_now()
        return {f"dataset.{name}": _shown(value) for name, value in self._since_made(self._before).items()}

    def since_made(self) -> dict[str, Any]:
        """The attributes that the script has changed since the loader was made, as they are now."""
        return self._since_made(self._attributes.now())

    def _since_made(self, now: dict[str, Any]) -> dict[str, Any]:
        if now is self._made:
            return {}
        return {name: value for name, value in now.items() if name not in self._own and differs(self._made, name, value)}

    def end(self) -> None:
        """They were read."""
        now = self._attributes.now()
        if now is not self._before:
            self._own |= {name for name, value in now.items() if differs(self._before, name, value)}
        self._own |= {name for name, array in self._arrays_now().items() if _replaced(self._arrays_before, name, array)}

    def arrays(self, *, everything: bool = False) -> dict[str, Any]:
        """The tensors and arrays that the script has replaced or written to since the loader was made, or all of them."""
        return {
            name: array[0]
            for name, array in self._arrays_now().items()
            if name not in self._own and (everything or _replaced(self._arrays_made, name, array))
        }

    def _arrays_now(self) -> dict[str, tuple[Any, int]]:
        """The dataset's own, and under another name those of datasets inside, which `Subset` and others wrap."""
        outer, *inner = within(self.dataset)
        return _arrays(outer) | {
            f"inside{place}.{name}": array for place, one in enumerate(inner, 1) for name, array in _arrays(one).items()
        }


def _arrays(dataset: Any) -> dict[str, tuple[Any, int]]:
    """Tensors and arrays among the attributes of a dataset and in short lists of them, with their versions (arrays have none)."""
    found: dict[str, Any] = {}
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, list | tuple) and len(value) <= FEW:
            found.update({f"{name}[{place}]": entry for place, entry in enumerate(value)})
        else:
            found[name] = value
    return {
        name: (value, value._version if isinstance(value, torch.Tensor) else 0)
        for name, value in found.items()
        if isinstance(value, torch.Tensor) or is_array(value)
    }


def _replaced(before: dict[str, tuple[Any, int]], name: str, array: tuple[Any, int]) -> bool:
    return name not in before or before[name][0] is not array[0] or before[name][1] != array[1]


def plain_attributes(dataset: Any, *, depth: int = 4) -> dict[str, Any]:
    """What a script may change in a dataset: its attributes that are plain values or functions, and those of datasets inside."""
    found: dict[str, Any] = {}
    for name, value in _attributes(dataset):
        if type(value) in PLAIN:
            found[name] = value
        elif isinstance(value, Dataset):
            inside = plain_attributes(value, depth=depth - 1) if depth else {}
            found.update({f"{name}.{inner}": attribute for inner, attribute in inside.items()})
        elif callable(value):
            found[name] = value
        elif _plain(value):
            found[name] = copy.copy(value)
    return found


def _attributes(dataset: Any) -> Iterator[tuple[str, Any]]:
    for name, value in getattr(dataset, "__dict__", {}).items():
        if _datasets(value):
            yield from ((f"{name}[{place}]", entry) for place, entry in enumerate(value))
        else:
            yield name, value


def within(dataset: Any, *, depth: int = 4) -> Iterator[Any]:
    """The dataset and those inside."""
    yield dataset
    for _, value in _attributes(dataset):
        if isinstance(value, Dataset) and depth:
            yield from within(value, depth=depth - 1)


def changed(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str, str] | None:
    """The first attribute that both have and that differs: its name and both values."""
    for name, value in now.items():
        if name in before and differs(before, name, value):
            return name, _shown(before[name]), _shown(value)
    return None


def differs(before: dict[str, Any], name: str, value: Any) -> bool:
    return name not in before or (before[name] is not value and bool(before[name] != value))


def _datasets(value: Any) -> bool:
    return isinstance(value, list | tuple) and 0 < len(value) <= FEW and all(isinstance(entry, Dataset) for entry in value)


def _plain(value: Any) -> bool:
    if isinstance(value, tuple | list | dict):
        if len(value) > FEW:
            return False
        return all(callable(entry) or isinstance(entry, PLAIN) for entry in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, PLAIN)


def _shown(value: Any) -> str:
    """The value in a message, and for workers to compare: functions by their names."""
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key!r}: {_shown(entry)}" for key, entry in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(map(_shown, value)) + "]"
    elif callable(value):
        text = getattr(value, "__qualname__", type(value).__name__)
    else:
        text = repr(value)
    return text if len(text) <= LONG else f"{text[:LONG]}…"
