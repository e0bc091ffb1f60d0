"""What a script changes in a dataset while it trains: its epoch, its difficulty, its transform.

Such a change has to reach every reader: processes that read ahead, and workers that join. So plain attributes of datasets are
watched.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeGuard

import torch
from torch.utils.data import Dataset

from stretto.core.type_guards import is_dict, is_sequence
from stretto.train.script_checks.object_hashes import is_array

PLAIN = (int, float, str, bool, bytes, type(None))
MAX_ENTRIES = 64
"""A longer list is data, not a setting."""
MAX_TEXT = 200
"""Characters of a value that are shown and compared."""


class AttributeCache:
    """The plain attributes of a dataset. They are collected again only after one of them has become another object: every step
    asks for them."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._attributes: dict[str, object] = {}
        self._sources: list[tuple[dict[str, object], list[object]]] | None = None
        """The `__dict__` of the dataset and of those inside, each with the values that it had."""
        self._copies: list[tuple[object, object]] = []
        """Lists and dicts, which may change and stay the same object, each with a copy."""

    def read(self) -> dict[str, object]:
        """The attributes as they are now; the same dict as before if none has changed."""
        if self._sources is None or not self._unchanged(self._sources):
            self._attributes = plain_attributes(self._dataset)
            sources = [_dict_of(layer) for layer in layers(self._dataset) if hasattr(layer, "__dict__")]
            self._sources = [(source, list(source.values())) for source in sources]
            self._copies = [
                (value, copy.copy(value)) for _, values in self._sources for value in values if _is_mutable_setting(value)
            ]
        return self._attributes

    def _unchanged(self, sources: list[tuple[dict[str, object], list[object]]]) -> bool:
        return all(
            len(source) == len(values) and all(map(operator.is_, source.values(), values)) for source, values in sources
        ) and all(value == before for value, before in self._copies)


class ArrayVersion(NamedTuple):
    """A tensor or an array at one moment. PyTorch counts the writes to a tensor; those to an array are not counted."""

    array: object
    writes: int

    def differs_from(self, before: ArrayVersion | None) -> bool:
        """Whether it was replaced or written to."""
        return before is None or before.array is not self.array or before.writes != self.writes


class DatasetChanges:
    """What has changed in a dataset since its loader was made, apart from what reading changes (counters, caches)."""

    def __init__(self, dataset: object) -> None:
        self.dataset = dataset
        self._cache = AttributeCache(dataset)
        self._initial = self._cache.read()
        self._before: dict[str, object] = {}
        self._changed_by_reading: set[str] = set()
        """Attributes that reading has changed: they may differ from worker to worker."""
        self._initial_arrays = self._arrays_before = self._current_arrays()

    def begin(self) -> dict[str, str]:
        """Slices are about to be read. Returns the attributes that the script has changed, as they are now."""
        self._before = self._cache.read()
        self._arrays_before = self._current_arrays()
        return {f"dataset.{name}": _shown(value) for name, value in self._changed(self._before).items()}

    def since_made(self) -> dict[str, object]:
        """The attributes that the script has changed since the loader was made, as they are now."""
        return self._changed(self._cache.read())

    def _changed(self, attributes: dict[str, object]) -> dict[str, object]:
        if attributes is self._initial:
            return {}
        return {
            name: value
            for name, value in attributes.items()
            if name not in self._changed_by_reading and differs(self._initial, name, value)
        }

    def end(self) -> None:
        """The slices were read."""
        attributes = self._cache.read()
        if attributes is not self._before:
            self._changed_by_reading |= {name for name, value in attributes.items() if differs(self._before, name, value)}
        self._changed_by_reading |= {
            name for name, version in self._current_arrays().items() if version.differs_from(self._arrays_before.get(name))
        }

    def arrays(self, *, everything: bool = False) -> dict[str, object]:
        """The tensors and arrays that the script has replaced or written to since the loader was made, or all of them."""
        return {
            name: version.array
            for name, version in self._current_arrays().items()
            if name not in self._changed_by_reading and (everything or version.differs_from(self._initial_arrays.get(name)))
        }

    def _current_arrays(self) -> dict[str, ArrayVersion]:
        """The dataset's own, and under another name those of datasets inside, which `Subset` and others wrap."""
        outer, *inner = layers(self.dataset)
        return _arrays(outer) | {
            f"inside{place}.{name}": version for place, layer in enumerate(inner, 1) for name, version in _arrays(layer).items()
        }


def _arrays(dataset: object) -> dict[str, ArrayVersion]:
    """Tensors and arrays among the attributes of a dataset and in short lists of them."""
    values: dict[str, object] = {}
    for name, value in _dict_of(dataset).items():
        if is_sequence(value) and len(value) <= MAX_ENTRIES:
            values.update({f"{name}[{place}]": entry for place, entry in enumerate(value)})
        else:
            values[name] = value
    return {
        name: ArrayVersion(value, value._version if isinstance(value, torch.Tensor) else 0)
        for name, value in values.items()
        if isinstance(value, torch.Tensor) or is_array(value)
    }


def plain_attributes(dataset: object, *, depth: int = 4) -> dict[str, object]:
    """What a script may change in a dataset: its attributes that are plain values or functions, and those of datasets inside."""
    plain: dict[str, object] = {}
    for name, value in _attributes(dataset):
        if type(value) in PLAIN:
            plain[name] = value
        elif _is_dataset(value):
            inside = plain_attributes(value, depth=depth - 1) if depth else {}
            plain.update({f"{name}.{inner}": attribute for inner, attribute in inside.items()})
        elif callable(value):
            plain[name] = value
        elif _is_plain(value):
            plain[name] = copy.copy(value)
    return plain


def _dict_of(value: object) -> dict[str, object]:
    return getattr(value, "__dict__", {})


def _attributes(dataset: object) -> Iterator[tuple[str, object]]:
    for name, value in _dict_of(dataset).items():
        if _is_dataset_list(value):
            yield from ((f"{name}[{place}]", entry) for place, entry in enumerate(value))
        else:
            yield name, value


def layers(dataset: object, *, depth: int = 4) -> Iterator[object]:
    """The dataset, and those inside, which `Subset` and others wrap."""
    yield dataset
    for _, value in _attributes(dataset):
        if _is_dataset(value) and depth:
            yield from layers(value, depth=depth - 1)


def first_change(before: Mapping[str, object], now: Mapping[str, object]) -> tuple[str, str, str] | None:
    """The first attribute that both have and that differs: its name and both values."""
    for name, value in now.items():
        if name in before and differs(before, name, value):
            return name, _shown(before[name]), _shown(value)
    return None


def differs(before: Mapping[str, object], name: str, value: object) -> bool:
    """Whether an attribute is new or has another value than before."""
    return name not in before or (before[name] is not value and bool(before[name] != value))


def _is_dataset(value: object) -> TypeGuard[Dataset[object]]:
    return isinstance(value, Dataset)


def _is_dataset_list(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return is_sequence(value) and 0 < len(value) <= MAX_ENTRIES and all(map(_is_dataset, value))


def _is_mutable_setting(value: object) -> bool:
    return (_is_plain(value) or _is_dataset_list(value)) and isinstance(value, list | dict)


def _is_plain(value: object) -> bool:
    if is_sequence(value) or is_dict(value):
        entries = value.values() if is_dict(value) else value
        return len(value) <= MAX_ENTRIES and all(callable(entry) or isinstance(entry, PLAIN) for entry in entries)
    return isinstance(value, PLAIN)


def _shown(value: object) -> str:
    """The value in a message, and for workers to compare: functions by their names."""
    if is_dict(value):
        text = "{" + ", ".join(f"{key!r}: {_shown(entry)}" for key, entry in value.items()) + "}"
    elif is_sequence(value):
        text = "[" + ", ".join(map(_shown, value)) + "]"
    elif callable(value):
        text = getattr(value, "__qualname__", type(value).__name__)
    else:
        text = repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
