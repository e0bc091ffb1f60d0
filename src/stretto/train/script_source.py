"""Reads a script's source, never runs it: which of its variables carry something from turn to turn, and which decide what it does.

Scopes are not told apart, and only plain names and attributes of plain names are looked at: a hint for messages, and a list of what
is worth comparing.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator

_STEERING = {"step", "zero_grad", "backward", "exit", "load_state_dict", "update_parameters", "requires_grad_"}
"""Methods that change what is trained: an `if` around one of them decides something."""
_MUTATING = {"append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft", "clear", "remove", "setdefault"}
_LOGGING = {"print", "log", "info", "debug", "warning", "write", "set_postfix", "set_description", "add_scalar", "append", "sum",
            "gather", "update", "format"}
"""Functions and methods whose arguments are only kept or shown."""


@functools.lru_cache(maxsize=16)
def parse(path: str) -> ast.Module:
    """The source as a tree; empty where there is none to read. Notebook cells are found as well."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def carried_at(path: str, line: int) -> list[str]:
    """Variables that the loop at this line sets, and uses before it sets them: their values come from the turn before."""
    loops = [node for node in ast.walk(parse(path)) if isinstance(node, ast.For) and node.lineno <= line <= node.iter.lineno]
    return [name for loop in loops[-1:] for name in _carried(loop.body, _names(loop.target), sums=False)]


@functools.lru_cache(maxsize=16)
def counters(path: str) -> tuple[tuple[str, int], ...]:
    """The counters of `for i, step in enumerate(data)` that decide something in a loop with another loop inside, with lines."""
    tree = parse(path)
    tested = {name for test, _ in _decisions(tree) for name in _names(test)} | {name for name, _ in _computing(tree)}
    found: list[tuple[str, int]] = []
    for loop in ast.walk(tree):
        if (isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and "enumerate" in _names(loop.iter.func)
                and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name)
                and any(isinstance(inner, ast.For) and inner is not loop for inner in ast.walk(loop))
                and loop.target.elts[0].id in tested):
            found.append((loop.target.elts[0].id, loop.lineno))
    return tuple(found)


@functools.lru_cache(maxsize=16)
def deciding(path: str) -> tuple[tuple[str, int], ...]:
    """Variables, with lines, that are carried through a loop and decide what is trained: by an `if` that leaves a loop or guards a
    step, or because the slices compute with them."""
    tree = parse(path)
    carried = _carried_anywhere(tree)
    chosen = {name: line for name, line in _computing(tree) if name in carried}
    for _ in range(4):  # a variable that decides about a deciding one decides as well
        before = len(chosen)
        for test, line in _decisions(tree, also=chosen.keys()):
            for name in _names(test) & carried:
                chosen.setdefault(name, line)
        if len(chosen) == before:
            break
    return tuple(sorted(chosen.items(), key=lambda item: item[1]))


@functools.lru_cache(maxsize=16)
def changing(path: str) -> tuple[tuple[str, str], ...]:
    """Variables that are carried through a loop and change an object, each with the object's name: `data.level += 1` (data.level),
    `data.level = level` and `data.set_level(level)` (level)."""
    tree = parse(path)
    carried = _carried_anywhere(tree)
    found = {name: name.partition(".")[0] for name in sorted(carried) if "." in name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            owners = [_dotted(target) for target in node.targets]
            sources: list[ast.expr] = [node.value]
        elif isinstance(node, ast.Call):
            owners, sources = [_dotted(node.func)], [*node.args, *(one.value for one in node.keywords)]
        else:
            continue
        for owner in owners:
            if "." in owner:
                found.update({name: owner.partition(".")[0] for one in sources for name in sorted(_names(one) & carried)
                              if name not in found})
    return tuple(found.items())


@functools.lru_cache(maxsize=16)
def called(path: str) -> frozenset[str]:
    """Names of objects one of whose methods is called in a loop without arguments: `data.harder()`."""
    return frozenset(_dotted(node.func).partition(".")[0] for loop in ast.walk(parse(path)) if isinstance(loop, ast.For | ast.While)
                     for node in ast.walk(loop)
                     if isinstance(node, ast.Call) and not node.args and not node.keywords and "." in _dotted(node.func))


def _carried_anywhere(tree: ast.AST) -> set[str]:
    return {name for loop in ast.walk(tree) if isinstance(loop, ast.For | ast.While)
            for name in _carried(loop.body, _names(loop.target) if isinstance(loop, ast.For) else set(), sums=True)}


@functools.lru_cache(maxsize=16)
def tested_objects(path: str) -> frozenset[str]:
    """Names of objects one of whose attributes, or whose call, decides something: an early stopping of the script's own."""
    found: set[str] = set()
    for test, _ in _decisions(parse(path)):
        for node in ast.walk(test):
            if isinstance(node, ast.Attribute | ast.Call):
                inner = node.value if isinstance(node, ast.Attribute) else node.func
                found |= {inner.id} if isinstance(inner, ast.Name) else set()
    return frozenset(found)


def _computing(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that the loop around `backward` reads for more than keeping or showing them, and those that are put into something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and _calls(node, "backward") and not any(
                inner is not node and isinstance(inner, ast.For) and _calls(inner, "backward") for inner in ast.walk(node)):
            for statement in node.body:
                yield from ((name, statement.lineno) for name in sorted(_read(statement)))
        elif isinstance(node, ast.Assign) and any(isinstance(target, ast.Subscript | ast.Attribute) for target in node.targets):
            yield from ((name, node.lineno) for name in sorted(_names(node.value)))


def _calls(node: ast.AST, method: str) -> bool:
    return any(isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == method
               for one in ast.walk(node))


def _read(statement: ast.stmt) -> set[str]:
    """Names that a statement reads, without those that it only adds to, keeps in a list or shows."""
    shown = {id(inner) for node in ast.walk(statement) if isinstance(node, ast.Call) and _called(node) in _LOGGING
             for inner in ast.walk(node)}
    names = {_dotted(node) for node in ast.walk(statement) if isinstance(node, ast.Name | ast.Attribute)
             and isinstance(node.ctx, ast.Load) and id(node) not in shown} - {""}
    return names - _stored(statement, sums=True)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _decisions(tree: ast.AST, also: Iterable[str] = ()) -> Iterator[tuple[ast.expr, int]]:
    """The tests of those `if`s whose branches leave a loop, change what is trained, or set one of these names."""
    names = set(also)
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            branches = [*node.body, *node.orelse]
            if any(_steers(inner, names) for statement in branches for inner in ast.walk(statement)):
                yield node.test, node.lineno


def _steers(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Break | ast.Return | ast.Raise | ast.Continue):
        return True
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _STEERING
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return _dotted(node) in names or not (isinstance(node, ast.Attribute) and _dotted(node).startswith("self."))
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names


def _dotted(node: ast.AST) -> str:
    """`name` or `name.attribute`; nothing for anything longer."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    return {name for one in ast.walk(node) if (name := _dotted(one))}


def _loaded(statement: ast.stmt) -> set[str]:
    """Names that a statement reads; those of its own loops are set there."""
    loads = {_dotted(node) for node in ast.walk(statement)
             if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)}
    own = {name for node in ast.walk(statement) if isinstance(node, ast.For | ast.comprehension) for name in _names(node.target)}
    return (loads - own) | ({_dotted(node.target) for node in ast.walk(statement) if isinstance(node, ast.AugAssign)} - {""})


def _stored(statement: ast.stmt, *, sums: bool) -> set[str]:
    """Names that a statement sets. `sums` counts `+=` and what is put into lists and dictionaries as well."""
    found = {_dotted(node) for node in ast.walk(statement)
             if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
             and (sums or not isinstance(statement, ast.AugAssign))}
    if sums:
        found |= {_dotted(node.func.value) for node in ast.walk(statement)
                  if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATING}
        found |= {_dotted(node.value) for node in ast.walk(statement)
                  if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)}
    return found - {""}


def _carried(body: list[ast.stmt], given: set[str], *, sums: bool) -> list[str]:
    """Names whose values in one turn of a loop come from the turn before. `sums` counts `+=` as well."""
    everything = {name for statement in body for name in _stored(statement, sums=sums)}
    seen, found = set(given), list[str]()
    for statement in body:
        found += sorted(name for name in _loaded(statement) & everything - seen if name not in found)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.For | ast.With):
            seen |= _stored(statement, sums=sums)
    conditional = {name for statement in body if isinstance(statement, ast.If | ast.Try) for name in _stored(statement, sums=sums)}
    if sums:
        found += sorted(name for name in conditional & everything - seen if name not in found)
    return found
