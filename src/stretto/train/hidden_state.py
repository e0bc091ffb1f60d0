"""Notices state that a script carries from slice to slice by itself, where nobody would share or repeat it.

Two kinds are looked for in the first passes: variables that the loop over the slices uses before it sets them and that hold tensors
(the hidden state of truncated back-propagation through time), and random generators of the script's own that the slices draw from.
What a module keeps in plain attributes is not seen.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import torch

from stretto.core.errors import ScriptError
from stretto.train import script_source
from stretto.train.script_variables import script_frames

PASSES = 3
"""Passes that are watched: the first two of a recurrent loop may begin with nothing."""


class HiddenState:
    """Watches the first training passes of a process."""

    def __init__(self) -> None:
        self._passes = 0
        self._line: tuple[str, int] | None = None
        self._names: list[str] = []
        self._generators: dict[str, tuple[Any, Any]] | None = None

    def enter(self, *, train: bool) -> None:
        """A slice is about to be computed."""
        if not train or self._passes >= PASSES:
            return
        frame = next(script_frames(), None)
        if frame is None:
            return
        if self._generators is None:
            self._generators = {name: (one, _drawn(one)) for name, one in _generators().items()}
        line = (frame.f_code.co_filename, frame.f_lineno)
        if line != self._line:
            self._line, self._names = line, script_source.carried_at(*line)
        for name in self._names:
            if _carries(frame.f_locals.get(name)):
                raise ScriptError(f"`{name}` is carried from slice to slice ({os.path.basename(line[0])}:{line[1]}): the slices of "
                                  "a step may be on different workers, so each must be computed from its own samples; set it anew "
                                  f"for every slice, or collect results with step.log or step.sum instead of `{name}`")

    def leave(self, *, train: bool) -> None:
        """All slices of a pass are computed."""
        if not train or self._passes >= PASSES:
            return
        self._passes += 1
        watched, self._generators = self._generators or {}, None
        for name, (generator, before) in watched.items():
            if _drawn(generator) != before:
                raise ScriptError(f"the slices draw from `{name}`, a random generator of the script's own "
                                  f"({type(generator).__name__}): what it gives depends on how many slices this worker computed; "
                                  "draw from torch, numpy.random or random instead, which are seeded for every slice")


def _carries(value: Any) -> bool:
    if isinstance(value, torch.nn.Parameter):
        return False
    if isinstance(value, torch.Tensor):
        return value.numel() > 1 and value.is_floating_point()
    return isinstance(value, tuple | list) and any(map(_carries, value))


def _generators() -> dict[str, Any]:
    """Random generators among the script's variables."""
    found: dict[str, Any] = {}
    for frame in script_frames():
        for name, value in [*frame.f_globals.items(), *frame.f_locals.items()]:
            if _is_generator(value):
                found.setdefault(name, value)
    return found


def _is_generator(value: Any) -> bool:
    if isinstance(value, torch.Generator):
        return value is not torch.default_generator
    if type(value) is random.Random:
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState)


def _drawn(generator: Any) -> Any:
    """Something that changes with every number that is drawn."""
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().cpu().numpy())
    if isinstance(generator, random.Random):
        return generator.getstate()
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return repr(state)
