"""What a script changes in a dataset while it trains: its epoch, its difficulty, its transform.

Such a change has to reach all who read: processes that read ahead, and workers that join. So plain attributes of datasets are
watched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset

PLAIN = (int, float, str, bool, bytes, type(None))
FEW = 64
"""A list of more values is data, not a setting."""
LONG = 200
"""Characters of a value that are shown and compared."""


class Changes:
    """What has changed in a dataset since its loader was made, apart from what reading changes (counters, caches)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._made = plain_attributes(dataset)
        self._before: dict[str, Any] = {}
        self._own: set[str] = set()
        """Attributes that reading has changed: they may differ from worker to worker."""

    def begin(self) -> dict[str, str]:
        """Slices are about to be read: the attributes that the script has changed, as they are now."""
        self._before = plain_attributes(self.dataset)
        return {f"dataset.{name}": _shown(value) for name, value in self._since_made(self._before).items()}

    def since_made(self) -> dict[str, Any]:
        """The attributes that the script has changed since the loader was made, as they are now."""
        return self._since_made(plain_attributes(self.dataset))

    def _since_made(self, now: dict[str, Any]) -> dict[str, Any]:
        if now == self._made:
            return {}
        return {name: value for name, value in now.items() if name not in self._own and differs(self._made, name, value)}

    def end(self) -> None:
        """They were read."""
        now = plain_attributes(self.dataset)
        if now != self._before:
            self._own |= {name for name, value in now.items() if differs(self._before, name, value)}


def plain_attributes(dataset: Any, *, depth: int = 4) -> dict[str, Any]:
    """What a script may change in a dataset: its attributes that are plain values or functions, and those of datasets inside."""
    found: dict[str, Any] = {}
    for name, value in _attributes(dataset):
        if type(value) in PLAIN:
            found[name] = value
        elif isinstance(value, Dataset):
            inside = plain_attributes(value, depth=depth - 1) if depth else {}
            found.update({f"{name}.{inner}": one for inner, one in inside.items()})
        elif callable(value):
            found[name] = value
        elif _plain(value):
            found[name] = copy.copy(value)
    return found


def _attributes(dataset: Any) -> Iterator[tuple[str, Any]]:
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, list | tuple) and 0 < len(value) <= FEW and all(isinstance(one, Dataset) for one in value):
            yield from ((f"{name}[{place}]", one) for place, one in enumerate(value))
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


def _plain(value: Any) -> bool:
    if isinstance(value, tuple | list | dict):
        inside = list(value.values()) if isinstance(value, dict) else value
        return len(inside) <= FEW and all(callable(one) or isinstance(one, PLAIN) for one in inside)
    return isinstance(value, PLAIN)


def _shown(value: Any) -> str:
    """The value in a message, and for workers to compare: functions by their names."""
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key!r}: {_shown(one)}" for key, one in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(map(_shown, value)) + "]"
    elif callable(value):
        text = getattr(value, "__qualname__", type(value).__name__)
    else:
        text = repr(value)
    return text if len(text) <= LONG else f"{text[:LONG]}…"
