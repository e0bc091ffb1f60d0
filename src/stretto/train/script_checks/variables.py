"""Variables of the script's own that decide what is trained: a worker that joins or resumes begins them anew.

They cannot be given to it. So their values travel with the state, and a worker whose own values differ when it reaches the job's
place is refused by name, before its first step.
"""

from __future__ import annotations

import ast
import functools
import os
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from stretto.train.data.dataset_changes import Changes, plain_attributes, within
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
MOST = 200
"""Variables that are looked at."""
ENTRIES = 64
"""Longer lists are compared as objects."""
LONG = 160
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


def variables(shared: Mapping[str, Any], datasets: Iterable[Changes], *, arriving: bool = False) -> dict[str, Any]:
    """Values of the deciding variables at this moment, by name, and of those that change a dataset. What is shared is left out.

    Of a dataset with methods that change it these are the attributes that the script has changed; of one on a worker that is
    `arriving`, and may have changed less, all.
    """
    datasets = list(datasets)
    read = {id(shared_object): changes for changes in datasets for shared_object in within(changes.dataset)}
    shared_ids = {id(shared_object) for shared_object in shared.values()} | {
        id(getattr(shared_object, "values", None)) for shared_object in shared.values()
    }
    memory = _memory(shared)
    values_by_name: dict[str, Any] = {}
    for frame in script_frames():
        path, values = frame.f_code.co_filename, {**frame.f_globals, **frame.f_locals}
        for name, _ in source_analysis.deciding(path):
            held = _look_up(values, name)
            if id(held) not in shared_ids:
                values_by_name.setdefault(name, _compared(held, memory))
        for name in dataflow.taken(path, frame.f_lineno):
            held, owner = _look_up(values, name), values.get(name.partition(".")[0])
            own = type(owner).__module__.startswith("stretto.") or {id(held), id(owner)} & shared_ids
            if not own and _decides(held, carried=name in source_analysis.carried_names(path)):
                values_by_name.setdefault(name, _compared(held, memory))
            if not own and is_own(held) and not isinstance(held, torch.nn.Module):
                for key, value in class_attributes.counting(held).items():
                    values_by_name.setdefault(f"{name}.{key}", _plain(value))
        for name, owner in source_analysis.changing(path):
            if id(values.get(owner)) in read:
                values_by_name.setdefault(name, _plain(_look_up(values, name)))
        for name in source_analysis.called(path):
            changes = read.get(id(values.get(name)))
            if changes is not None:
                changed = plain_attributes(changes.dataset) if arriving else changes.since_made()
                for key, value in changed.items():
                    values_by_name.setdefault(f"{name}.{key}", _plain(value))
        for name in source_analysis.tested_objects(path):
            held = values.get(name)
            if id(held) not in shared_ids and is_own(held):
                for key, value in vars(held).items():
                    values_by_name.setdefault(f"{name}.{key}", _plain(value))
        for name, held in values.items():
            if id(held) not in shared_ids and id(held) not in read and (is_own(held) or isinstance(held, list | tuple | dict)):
                for key, value in class_attributes.steering(
                    name, held, lambda shared_object: id(shared_object) not in shared_ids and is_own(shared_object)
                ):
                    values_by_name.setdefault(key, _plain(value))
            if id(held) in read:
                for key, value in read[id(held)].arrays(everything=arriving).items():
                    values_by_name.setdefault(f"{name}.{key}", describe(value) or _missing)
    values_by_name.update(unregistered(shared))
    return {name: value for name, value in list(values_by_name.items())[:MOST] if value is not _missing}


def difference(given: Mapping[str, Any], own: Mapping[str, Any], *, position: int) -> str:
    """What differs, and how to mend it; nothing where a worker may go on. `position` is the step within the epoch."""
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
    """The two lines that mend it."""
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
    """The variables that most likely make one worker's script do something else, for messages; nothing where none is found."""
    path = sys.argv[0] if sys.argv else ""
    if not path:
        return ""
    for name, line in source_analysis.counters(path):
        return f" (likely `{name}` of enumerate, {os.path.basename(path)}:{line}. Use step.index or job.step instead)"
    for name, line in source_analysis.deciding(path):
        return f" (likely `{name}`, {os.path.basename(path)}:{line}. {advice(name)})"
    return ""


_missing = object()


def _look_up(values: Mapping[str, Any], name: str) -> Any:
    first, _, attribute = name.partition(".")
    value = values.get(first, _missing)
    return value if not attribute or value is _missing else getattr(value, attribute, _missing)


def _text(value: Any) -> str:
    """The value in a message: objects are described already."""
    described = isinstance(value, str) and value.endswith(")") and value.startswith(("a ", "an ", UNREGISTERED, UNSAVED))
    text = value if described else repr(value)
    return text if len(text) <= LONG else f"{text[:LONG]}…"


def _memory(shared: Mapping[str, Any]) -> frozenset[int]:
    """The memory of the shared modules' tensors: who reaches them by another name, reaches shared state."""
    modules = [one for one in shared.values() if isinstance(one, torch.nn.Module)]
    return storages(tensor for module in modules for tensors in (module.parameters(), module.buffers()) for tensor in tensors)


def _decides(value: Any, *, carried: bool) -> bool:
    """Not what workers may have of their own (ranks, devices, flags of the chief), nor what a hook fills in every forward."""
    if carried:
        return type(value) not in (bool, str)
    return isinstance(value, float | torch.Tensor | torch.nn.Module) or is_array(value) or is_generator(value)


def unregistered(shared: Mapping[str, Any]) -> dict[str, str]:
    """Tensors of the shared modules that newcomers do not get: in plain attributes, and buffers that are not persistent."""
    described: dict[str, str] = {}
    for name, root in shared.items():
        for path, module in root.named_modules() if isinstance(root, torch.nn.Module) else ():
            unsaved = {key: module._buffers.get(key) for key in module._non_persistent_buffers_set}
            for key, value in {**module.__dict__, **unsaved}.items():
                if isinstance(value, torch.Tensor):
                    kind = UNSAVED if key in module._buffers else UNREGISTERED
                    described[".".join(part for part in (name, path, key) if part)] = kind + describe(value)
    return described


def _compared(value: Any, memory: frozenset[int]) -> Any:
    """A value that can be compared and sent: plain ones as they are, objects described."""
    plain = _plain(value)
    return plain if plain is not _missing or value is _missing else describe(value, shared=memory) or _missing


def _plain(value: Any, depth: int = 0) -> Any:
    """A value that can be compared and sent; `_missing` for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach().item()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple | set | frozenset | deque) and depth < 2:
        if len(value) > ENTRIES:
            return _missing
        entries = [_plain(entry, depth + 1) for entry in value]
        return _missing if _missing in entries else sorted(map(str, entries)) if isinstance(value, set | frozenset) else entries
    if type(value) is dict and depth < 2 and len(value) <= ENTRIES:
        entries = {str(key): _plain(entry, depth + 1) for key, entry in value.items()}
        return _missing if _missing in entries.values() else entries
    return _missing


def is_own(value: Any) -> bool:
    """An instance of a class of the script's."""
    if isinstance(value, type) or not hasattr(value, "__dict__") or type(value).__module__ == "builtins":
        return False
    path = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
    return not os.path.abspath(path).startswith(LIBRARIES)


def counted_draws(*, step: int) -> str:
    """What is wrong where `for i in range(n)` draws steps by `next`: it counts the steps of this process."""
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
