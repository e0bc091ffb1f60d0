"""Variables of the script's own that decide what is trained: a worker that joins or resumes starts them again.

They cannot be set from outside. So their values travel with the state, and a worker whose own values differ when it reaches the
job's position is refused, before its first step, with the name of the variable.
"""

from __future__ import annotations

import ast
import functools
import os
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import FrameType
from typing import TypeGuard

import torch

from stretto.core.type_guards import is_dict, is_sequence
from stretto.train.data.dataset_changes import DatasetChanges, layers, plain_attributes
from stretto.train.script_checks import class_attributes, dataflow, source_analysis
from stretto.train.script_checks.object_hashes import GENERATOR, MODULE, describe, is_array, is_generator, storages
from stretto.train.script_checks.source_analysis import parse

_PLAIN = (bool, int, float, str, type(None))
LIBRARIES = tuple(
    {
        os.path.join(folder, "")
        for folder in (
            str(Path(__file__).resolve().parents[2]),
            sysconfig.get_path("stdlib"),
            *site.getsitepackages(),
            site.getusersitepackages(),
        )
    }
)
"""Folders whose code is not the script's, each with a slash at its end: `stretto-experiments` is not in `stretto`."""
MAX_VARIABLES = 200
"""Variables that are compared."""
MAX_ENTRIES = 64
"""Longer lists are compared as objects."""
MAX_TEXT = 160
"""Characters of a value that a message shows."""
UNREGISTERED, UNSAVED = "kept in a plain attribute: ", "a buffer with persistent=False: "
"""Before descriptions of tensors of shared modules that newcomers do not get."""


def script_frames() -> Iterator[FrameType]:
    """The frames of the script on this thread's stack, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*LIBRARIES, "<frozen")):
            yield frame
        frame = frame.f_back


def variables(shared: Mapping[str, object], datasets: Iterable[DatasetChanges], *, arriving: bool = False) -> dict[str, object]:
    """Values of the deciding variables at this moment, by name, and of those that change a dataset. What is shared is left out.

    Of a dataset with methods that change it these are the attributes that the script has changed; on a worker that is `arriving`,
    and may have changed less, all attributes.
    """
    collector = _Collector(shared, datasets, arriving=arriving)
    for frame in script_frames():
        collector.add_frame(frame)
    values = {**collector.values, **unregistered(shared)}
    return {name: value for name, value in list(values.items())[:MAX_VARIABLES] if value is not _missing}


class _Collector:
    """Collects comparable values from the script's frames. Of a name that two frames have, the nearer frame's value counts."""

    def __init__(self, shared: Mapping[str, object], datasets: Iterable[DatasetChanges], *, arriving: bool) -> None:
        datasets = list(datasets)
        self.values: dict[str, object] = {}
        self._arriving = arriving
        self._datasets = {id(layer): changes for changes in datasets for layer in layers(changes.dataset)}
        """The datasets of the loaders and those inside, by id."""
        self._shared_ids = {id(value) for value in shared.values()} | {
            id(getattr(value, "values", None)) for value in shared.values()
        }
        self._memory = _memory(shared)

    def add_frame(self, frame: FrameType) -> None:
        path, values = frame.f_code.co_filename, {**frame.f_globals, **frame.f_locals}
        for name, _ in source_analysis.deciding(path):
            value = _look_up(values, name)
            if id(value) not in self._shared_ids:
                self._add(name, _compared(value, self._memory))
        self._add_inputs(path, frame.f_lineno, values)
        self._add_dataset_changes(path, values)
        for name in source_analysis.tested_objects(path):
            value = values.get(name)
            if self._is_own(value):
                self._add_plain(name, vars(value))
        for name, value in values.items():
            self._add_object(name, value)

    def _add(self, name: str, value: object) -> None:
        self.values.setdefault(name, value)

    def _add_plain(self, owner: str, attributes: Mapping[str, object]) -> None:
        for key, value in attributes.items():
            self._add(f"{owner}.{key}", _plain(value))

    def _is_own(self, value: object) -> bool:
        """An object of the script's that is not shared."""
        return id(value) not in self._shared_ids and is_own(value)

    def _add_inputs(self, path: str, line: int, values: Mapping[str, object]) -> None:
        """What the loop at this line computes with and gets from outside."""
        for name in dataflow.inputs(path, line):
            value, owner = _look_up(values, name), values.get(name.partition(".")[0])
            if type(owner).__module__.startswith("stretto.") or {id(value), id(owner)} & self._shared_ids:
                continue
            if _decides(value, carried=name in source_analysis.carried_names(path)):
                self._add(name, _compared(value, self._memory))
            if is_own(value) and not isinstance(value, torch.nn.Module):
                self._add_plain(name, class_attributes.counting(value))

    def _add_dataset_changes(self, path: str, values: Mapping[str, object]) -> None:
        for name, owner in source_analysis.changing(path):
            if id(values.get(owner)) in self._datasets:
                self._add(name, _plain(_look_up(values, name)))
        for name in source_analysis.called_objects(path):
            changes = self._datasets.get(id(values.get(name)))
            if changes is not None:
                self._add_plain(name, plain_attributes(changes.dataset) if self._arriving else changes.since_made())

    def _add_object(self, name: str, value: object) -> None:
        """Attributes that decide in the methods of an object, or the arrays of a dataset."""
        changes = self._datasets.get(id(value))
        if changes is not None:
            for key, array in changes.arrays(everything=self._arriving).items():
                self._add(f"{name}.{key}", describe(array) or _missing)
        elif id(value) not in self._shared_ids and (is_own(value) or is_sequence(value) or is_dict(value)):
            for key, attribute in class_attributes.steering(name, value, self._is_own):
                self._add(key, _plain(attribute))


def difference(given: Mapping[str, object], own: Mapping[str, object], *, position: int) -> str:
    """What differs, and how to fix it; empty if the worker may go on. `position` is the step within the epoch."""
    for name, value in given.items():
        if name in own and own[name] != value and not (own[name] != own[name] and value != value):
            here, there = (_text(side) for side in (own[name], value))
            if here.startswith((UNREGISTERED, UNSAVED)) and here.rpartition(" (")[0] != there.rpartition(" (")[0]:
                continue  # a cache that has grown
            return (
                f"`{name}` is {here} here and {there} in the job: it decides what is trained, and begins anew on a "
                f"worker that joins or resumes. {advice(name, there)}"
            )
    for frame in script_frames():
        for name, line in source_analysis.counters(frame.f_code.co_filename):
            if position:
                return (
                    f"`{name}` of enumerate ({os.path.basename(frame.f_code.co_filename)}:{line}) begins at 0 here, the job "
                    f"is at step {position} of the epoch: it decides what is trained. Use step.index or job.step instead"
                )
    return ""


def advice(name: str, value: str = "") -> str:
    """How to fix it, in one or two lines of code."""
    short = name.rpartition(".")[2]
    if value.startswith(UNREGISTERED):
        return f'Register it: `self.register_buffer("{short}", …)`'
    if value.startswith(UNSAVED):
        return f'Register it without persistent=False: `self.register_buffer("{short}", …)`'
    if value.startswith(MODULE):
        return f"Share it: `job.share({short}={name})` before training"
    if value.startswith(GENERATOR):
        return "Draw from torch, numpy.random or random instead, which are seeded for every step"
    return f"Share it: `job.state.{short} = …` before training, and `job.state.{short}` wherever the script uses `{name}`"


def suspects() -> str:
    """The variables that most likely make one worker's script do something else, for messages; empty if none is found."""
    path = sys.argv[0] if sys.argv else ""
    if not path:
        return ""
    for name, line in source_analysis.counters(path):
        return f" (likely `{name}` of enumerate, {os.path.basename(path)}:{line}. Use step.index or job.step instead)"
    for name, line in source_analysis.deciding(path):
        return f" (likely `{name}`, {os.path.basename(path)}:{line}. {advice(name)})"
    return ""


_missing = object()


def _look_up(values: Mapping[str, object], name: str) -> object:
    first, _, attribute = name.partition(".")
    value = values.get(first, _missing)
    return value if not attribute or value is _missing else getattr(value, attribute, _missing)


def _text(value: object) -> str:
    """The value in a message: objects are described already."""
    described = isinstance(value, str) and value.endswith(")") and value.startswith(("a ", "an ", UNREGISTERED, UNSAVED))
    text = str(value) if described else repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _memory(shared: Mapping[str, object]) -> frozenset[int]:
    """The memory of the shared modules' tensors: under any other name they are shared state as well."""
    modules = [module for module in shared.values() if isinstance(module, torch.nn.Module)]
    return storages(tensor for module in modules for tensors in (module.parameters(), module.buffers()) for tensor in tensors)


def _decides(value: object, *, carried: bool) -> bool:
    """Leaves out what may differ between workers (ranks, devices, flags of the chief), and what a hook fills in every forward."""
    if carried:
        return type(value) not in (bool, str)
    return isinstance(value, float | torch.Tensor | torch.nn.Module) or is_array(value) or is_generator(value)


def unregistered(shared: Mapping[str, object]) -> dict[str, str]:
    """Tensors of the shared modules that newcomers do not get: in plain attributes, and buffers that are not persistent."""
    described: dict[str, str] = {}
    for name, root in shared.items():
        for path, module in modules_of(root) if isinstance(root, torch.nn.Module) else ():
            unsaved = {key: module._buffers.get(key) for key in module._non_persistent_buffers_set}
            attributes: dict[str, object] = {**vars(module), **unsaved}
            for key, value in attributes.items():
                if isinstance(value, torch.Tensor):
                    kind = UNSAVED if key in module._buffers else UNREGISTERED
                    described[".".join(part for part in (name, path, key) if part)] = kind + describe(value)
    return described


def modules_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The module and all inside, by path."""
    yield from module.named_modules()


def _compared(value: object, memory: frozenset[int]) -> object:
    """A value that can be compared and sent: plain ones as they are, objects described."""
    plain = _plain(value)
    return plain if plain is not _missing or value is _missing else describe(value, shared=memory) or _missing


def _plain(value: object, depth: int = 0) -> object:
    """A value that can be compared and sent; `_missing` for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach().item()
    if type(value) in _PLAIN:
        return value
    if _is_collection(value) and depth < 2:
        if len(value) > MAX_ENTRIES:
            return _missing
        entries = [_plain(entry, depth + 1) for entry in value]
        return _missing if _missing in entries else sorted(map(str, entries)) if isinstance(value, AbstractSet) else entries
    if is_dict(value) and type(value) is dict and depth < 2 and len(value) <= MAX_ENTRIES:
        entries = {str(key): _plain(entry, depth + 1) for key, entry in value.items()}
        return _missing if _missing in entries.values() else entries
    return _missing


def _is_collection(value: object) -> TypeGuard[Collection[object]]:
    return isinstance(value, list | tuple | set | frozenset | deque)


def is_own(value: object) -> bool:
    """An instance of a class of the script's."""
    if isinstance(value, type) or not hasattr(value, "__dict__") or type(value).__module__ == "builtins":
        return False
    path = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
    return not os.path.abspath(path).startswith(LIBRARIES)


def counted_draws(*, step: int) -> str:
    """What is wrong if `for i in range(n)` draws steps with `next`: it counts the steps of this process. Empty if it does not."""
    for frame in script_frames():
        draw = counted_draw(frame.f_code.co_filename, frame.f_lineno)
        if draw is not None and step:
            name, line = draw
            return (
                f"`{name}` of range ({os.path.basename(frame.f_code.co_filename)}:{line}) begins at 0 here, the job is at step "
                f"{step}: it counts the steps that this process draws with next(…). Count those of the job instead: "
                f"`while job.step < n:`"
            )
    return ""


@functools.lru_cache(maxsize=64)
def counted_draw(path: str, line: int) -> tuple[str, int] | None:
    """The counter of `for i in range(n)`, with its line, around a `next(…)` at this line."""

    def within(node: ast.AST) -> bool:
        return isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)

    nodes = [node for node in ast.walk(parse(path)) if within(node)]  # the outer ones first
    drawn = any(
        isinstance(call, ast.Call) and _name(call.func) == "next" and call.lineno <= line <= (call.end_lineno or line)
        for node in nodes
        for call in ast.walk(node)
    )
    loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
    inner = loops[-1] if drawn and loops else None
    if isinstance(inner, ast.For) and isinstance(inner.iter, ast.Call) and _name(inner.iter.func) == "range":
        return _name(inner.target) or "i", inner.lineno
    return None


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
