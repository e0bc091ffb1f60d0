"""Reads the classes of a script, never runs them: attributes that count on and decide, and whose values are worth comparing."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stretto.train.script_checks.dataflow import STEERING, dotted, names, parse, stored

REACH = 3
"""How far objects are followed into each other."""
MOST = 200
_INIT = {"__init__", "__post_init__", "reset", "load_state_dict", "__setstate__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def counting(value: Any) -> dict[str, Any]:
    """Attributes that an object counts on and computes with: the time of an annealer."""
    return {key: vars(value)[key] for key in sorted(_of(value)[0]) if key in vars(value)}


def steering(name: str, value: Any, own: Callable[[Any], bool], reach: int = REACH) -> Iterator[tuple[str, Any]]:
    """Attributes that decide in the methods of an object, and of those that it holds: the patience of a callback."""
    if not reach or isinstance(value, torch.nn.Module):
        return
    if isinstance(value, list | tuple | dict):
        for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value))[:MOST]:
            if own(entry):
                yield from steering(f"{name}[{key!r}]", entry, own, reach - 1)
    elif own(value):
        yield from ((f"{name}.{key}", vars(value)[key]) for key in sorted(_of(value)[1]) if key in vars(value))
        for key, entry in list(vars(value).items())[:MOST]:
            if isinstance(entry, list | tuple | dict) or own(entry):
                yield from steering(f"{name}.{key}", entry, own, reach - 1)


def _of(value: Any) -> tuple[frozenset[str], frozenset[str]]:
    path = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
    return attributes(path).get(type(value).__name__, (frozenset(), frozenset()))


@functools.lru_cache(maxsize=64)
def attributes(path: str) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """By class: attributes that it counts on and computes with, and those that it tests before it steers something else."""
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
    for _ in range(REACH):  # what decides about a deciding one decides as well
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
