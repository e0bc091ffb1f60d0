"""Reads the source of a script's classes: which attributes count and decide, and so are worth comparing. Runs nothing."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterable, Iterator

import torch

from stretto.core.type_guards import is_dict, is_sequence
from stretto.train.script_checks.dataflow import STEERING, dotted, names, parse, stored

REACH = 3
"""How far objects are followed into each other."""
MAX_ENTRIES = 200
_INIT = {"__init__", "__post_init__", "reset", "load_state_dict", "__setstate__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def counting(value: object) -> dict[str, object]:
    """Attributes that an object increments and computes with, such as the time of an annealer."""
    return {key: vars(value)[key] for key in sorted(_attributes_of(value)[0]) if key in vars(value)}


def steering(name: str, value: object, own: Callable[[object], bool], reach: int = REACH) -> Iterator[tuple[str, object]]:
    """Attributes that decide in the methods of an object and of those inside it, such as the patience of a callback."""
    if not reach or isinstance(value, torch.nn.Module):
        return
    if is_dict(value) or is_sequence(value):
        items: Iterable[tuple[object, object]] = value.items() if is_dict(value) else enumerate(value)
        for key, entry in list(items)[:MAX_ENTRIES]:
            if own(entry):
                yield from steering(f"{name}[{key!r}]", entry, own, reach - 1)
    elif own(value):
        yield from ((f"{name}.{key}", vars(value)[key]) for key in sorted(_attributes_of(value)[1]) if key in vars(value))
        for key, entry in list(vars(value).items())[:MAX_ENTRIES]:
            if is_sequence(entry) or is_dict(entry) or own(entry):
                yield from steering(f"{name}.{key}", entry, own, reach - 1)


def _attributes_of(value: object) -> tuple[frozenset[str], frozenset[str]]:
    path = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
    return attributes(path).get(type(value).__name__, (frozenset(), frozenset()))


@functools.lru_cache(maxsize=64)
def attributes(path: str) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """By class: attributes that it increments and computes with, and attributes whose tests decide something else."""
    return {node.name: (_counted(node), _tested(node)) for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)}


def _methods(kind: ast.ClassDef) -> list[Function]:
    return [statement for statement in kind.body if isinstance(statement, Function) and statement.name not in _INIT]


def _counted(kind: ast.ClassDef) -> frozenset[str]:
    simple = [
        node
        for method in _methods(kind)
        for node in ast.walk(method)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr)
    ]
    counted = {dotted(node.target) for node in simple if isinstance(node, ast.AugAssign)}
    used = {
        name
        for node in simple
        if node.value is not None
        for name in names(node.value)
        if not (isinstance(node, ast.AugAssign) and dotted(node.target) == name)
    }
    return _plain(counted & used)


def _tested(kind: ast.ClassDef) -> frozenset[str]:
    changed = {name for method in _methods(kind) for statement in method.body for name in stored(statement, sums=True)}
    chosen: set[str] = set()
    for _ in range(REACH):  # what decides about a deciding attribute decides as well
        for node in (node for method in _methods(kind) for node in ast.walk(method) if isinstance(node, ast.If)):
            if any(_steers(inner, chosen) for statement in [*node.body, *node.orelse] for inner in ast.walk(statement)):
                chosen |= names(node.test) & changed
    return _plain(chosen)


def _steers(node: ast.AST, chosen: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and (node.func.attr in STEERING or node.func.attr.endswith("_"))
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return dotted(node) in chosen or not dotted(node).startswith("self.")
    return False


def _plain(names_: set[str]) -> frozenset[str]:
    return frozenset(name.removeprefix("self.") for name in names_ if name.startswith("self."))
