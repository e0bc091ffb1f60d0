"""Plain values as shared state: dictionaries given to `job.share`, and the attributes of `job.state`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from stretto.core.errors import ScriptError


class PlainState:
    """Something whose state is a plain dictionary of numbers, texts, tensors, lists and dictionaries."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place: the script holds on to its dictionary."""
        if state is not self.values:
            new = dict(state)
            self.values.clear()
            self.values.update(new)


class JobStateAttributes:
    """Values that all workers hold alike, as attributes: `job.state.best = 0.0`.

    Newcomers and resumed workers get them with the rest of the shared state; `job.digest()` includes them.
    """

    def __init__(self, values: dict[str, Any], check: Callable[[str, Any], None]) -> None:
        """`values` are kept by whoever shares them. `check` refuses a value that cannot be shared, when it is set: later the line
        would not be known."""
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_check", check)

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = object.__getattribute__(self, "_values")
        if name in values:
            return values[name]
        raise AttributeError(f"job.state has no {name!r}: set it before training, for instance `job.state.{name} = 0`")

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(f"job.state.{name}", value)
        self._values[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._values:
            raise AttributeError(f"job.state has no {name!r}")
        del self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __dir__(self) -> list[str]:
        return sorted(self._values)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def plain(name: str, values: dict[Any, Any]) -> PlainState:
    """A dictionary that was given to `job.share`."""
    for key in values:
        if not isinstance(key, str | int):
            raise ScriptError(f"job.share({name}={{…}}) has the key {key!r}: keys of shared dictionaries are texts or integers")
    return PlainState(values)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in dictionaries within dictionaries, as state_dict() gives them. Lists are not looked through: histories are long."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for held in value.values():
            yield from tensors_in(held)
