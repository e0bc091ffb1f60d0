"""Detects state that a script carries from slice to slice by itself: such state is neither shared nor repeated.

Looked for in the first passes: variables that the loop over the slices uses before it sets them and that hold tensors (the hidden
state of truncated back-propagation through time), random generators of the script's own that the slices draw from, tensors that
they write to (shared parameters, and the script's own that they read as well), and what objects that they use count in attributes.
What else a module keeps in plain attributes is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import torch

from stretto.core.errors import ScriptError
from stretto.core.type_guards import is_sequence
from stretto.train.script_checks import class_attributes, dataflow, source_analysis
from stretto.train.script_checks.object_hashes import AnyGenerator, describe, drawn, is_array, is_generator, storages
from stretto.train.script_checks.variables import is_own, modules_of, script_frames

PASSES = 3
"""Passes that are watched: the first two of a recurrent loop may begin with nothing."""


class HiddenState:
    """Watches the first training passes of a process, and refuses slices that depend on the slices before them."""

    def __init__(self, modules: Callable[[], Mapping[str, torch.nn.Module]]) -> None:
        """`modules` are the shared ones."""
        self._modules = modules
        self._tensors: dict[str, tuple[object, str]] = {}
        self._counts: dict[str, tuple[object, str, object]] = {}
        self._passes = 0
        self._line: tuple[str, int] | None = None
        self._names: list[str] = []
        self._generators: dict[str, tuple[AnyGenerator, object]] | None = None

    def enter(self, *, train: bool) -> None:
        """Called before a slice is computed."""
        if not train or self._passes >= PASSES:
            return
        frame = next(script_frames(), None)
        if frame is None:
            return
        if self._generators is None:
            self._generators = {name: (value, drawn(value)) for name, value in _generators().items()}
            self._tensors = {name: (value, describe(value)) for name, value in self._read_by(frame).items()}
            self._counts = dict(_counts(frame))
        line = (frame.f_code.co_filename, frame.f_lineno)
        if line != self._line:
            self._line, self._names = line, source_analysis.carried_at(*line)
        for name in self._names:
            if _carries(frame.f_locals.get(name)):
                raise ScriptError(
                    f"`{name}` is carried from slice to slice ({os.path.basename(line[0])}:{line[1]}): the slices of "
                    "a step may be on different workers, so each must be computed from its own samples; set it anew "
                    f"for every slice, or collect results with step.log or step.sum instead of `{name}`"
                )

    def leave(self, *, train: bool) -> None:
        """Called after all slices of a pass."""
        if not train or self._passes >= PASSES:
            return
        self._passes += 1
        self._check_unchanged()
        watched, self._generators = self._generators or {}, None
        for name, (generator, before) in watched.items():
            if drawn(generator) != before:
                raise ScriptError(
                    f"the slices draw from `{name}`, a random generator of the script's own "
                    f"({type(generator).__name__}): what it gives depends on how many slices this worker computed; "
                    "draw from torch, numpy.random or random instead, which are seeded for every slice"
                )

    def _read_by(self, frame: FrameType) -> dict[str, object]:
        """Shared parameters, and tensors and arrays of the script's own that the slices read."""
        modules = self._modules()
        shared = {f"{name}.{path}": parameter for name, module in modules.items() for path, parameter in module.named_parameters()}
        memory = storages(tensor for module in modules.values() for tensor in (*module.parameters(), *module.buffers()))
        values = {**frame.f_globals, **frame.f_locals}
        own = {name: values[name] for name in dataflow.inputs(frame.f_code.co_filename, frame.f_lineno) if name in values}
        tensors = {
            name: value
            for name, value in own.items()
            if (isinstance(value, torch.Tensor) or is_array(value)) and describe(value, shared=memory)
        }
        return {**shared, **tensors}

    def _check_unchanged(self) -> None:
        """Refuses slices that have written to what they read."""
        tensors, self._tensors = self._tensors, {}
        for name, (tensor, before) in tensors.items():
            if describe(tensor) != before:
                cure = (
                    "set it from a batch before training"
                    if isinstance(tensor, torch.nn.Parameter)
                    else "collect its rows with step.gather and write them after the loop over the slices, and share it: "
                    f'`job.share(kept={{"{name}": {name}}})`'
                )
                raise ScriptError(
                    f"`{name}` was written to inside the loop over the slices, which read it: the slices of a step "
                    f"may be on different workers, so what one writes the others do not see; {cure}"
                )
        counts, self._counts = self._counts, {}
        for name, (counter, key, before) in counts.items():
            if getattr(counter, key, before) != before:
                raise ScriptError(
                    f"`{name}` was {before!r} and is {getattr(counter, key)!r} after the slices, which compute with it: "
                    "a worker counts only the slices that it computes; set it from step.index or job.step before "
                    "the loop over the slices, or count after it and share the count (job.state)"
                )


def _counts(frame: FrameType) -> Iterator[tuple[str, tuple[object, str, object]]]:
    """Numbers that objects of the script's own classes increment and compute with, if the slices use these objects."""
    values = {**frame.f_globals, **frame.f_locals}
    for name in dataflow.inputs(frame.f_code.co_filename, frame.f_lineno):
        used = values.get(name)
        objects: list[tuple[str, object]] = [*modules_of(used)] if isinstance(used, torch.nn.Module) else [("", used)]
        for path, counter in objects:
            for key, value in class_attributes.counting(counter).items() if is_own(counter) else ():
                if isinstance(value, int | float):
                    yield ".".join(part for part in (name, path, key) if part), (counter, key, value)


def _carries(value: object) -> bool:
    if isinstance(value, torch.nn.Parameter):
        return False
    if isinstance(value, torch.Tensor):
        return value.numel() > 1 and value.is_floating_point()
    return is_sequence(value) and any(map(_carries, value))


def _generators() -> dict[str, AnyGenerator]:
    """Random generators among the script's variables."""
    generators: dict[str, AnyGenerator] = {}
    for frame in script_frames():
        for name, value in [*frame.f_globals.items(), *frame.f_locals.items()]:
            if is_generator(value):
                generators.setdefault(name, value)
    return generators
