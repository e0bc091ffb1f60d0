"""Reads a script's source: which variables carry a value from one iteration to the next, and which decide what is trained.

The source is read, never run. Scopes are not distinguished, and only plain names and attributes of plain names count: a hint for
messages, and a list of what is worth comparing.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator

from stretto.train.script_checks.dataflow import STEERING, called_name, carried, dotted, names, parse, shown_in, stored, trains_with


def carried_at(path: str, line: int) -> list[str]:
    """Variables that the loop at this line sets, and uses before it sets them: their values come from the iteration before."""
    loops = [node for node in ast.walk(parse(path)) if isinstance(node, ast.For) and node.lineno <= line <= node.iter.lineno]
    return [name for loop in loops[-1:] for name in carried(loop.body, names(loop.target), sums=False)]


@functools.lru_cache(maxsize=16)
def counters(path: str) -> tuple[tuple[str, int], ...]:
    """The counters of `for i, step in enumerate(data)` that decide something in a loop with another loop inside, with lines."""
    tree = parse(path)
    tested = {name for test, _ in _decisions(tree) for name in names(test)} | {name for name, _ in _computing(tree)}
    counts: list[tuple[str, int]] = []
    for loop in ast.walk(tree):
        if (
            isinstance(loop, ast.For)
            and isinstance(loop.iter, ast.Call)
            and "enumerate" in names(loop.iter.func)
            and isinstance(loop.target, ast.Tuple)
            and isinstance(loop.target.elts[0], ast.Name)
            and any(isinstance(inner, ast.For) and inner is not loop for inner in ast.walk(loop))
            and (loop.target.elts[0].id in tested or trains_with(loop, tree, loop.target.elts[0].id))
        ):
            counts.append((loop.target.elts[0].id, loop.lineno))
    return tuple(counts)


@functools.lru_cache(maxsize=16)
def deciding(path: str) -> tuple[tuple[str, int], ...]:
    """Variables, with lines, that are carried through a loop and decide what is trained: by an `if` that leaves a loop or guards a
    step, or because the slices compute with them."""
    tree = parse(path)
    kept = carried_names(path)
    chosen = {name: line for name, line in _computing(tree) if name in kept}
    for _ in range(4):  # a variable that decides about a deciding variable decides as well
        before = len(chosen)
        for test, line in _decisions(tree, also=chosen.keys()):
            for name in names(test) & kept:
                chosen.setdefault(name, line)
        if len(chosen) == before:
            break
    return tuple(sorted(chosen.items(), key=lambda item: item[1]))


@functools.lru_cache(maxsize=16)
def changing(path: str) -> tuple[tuple[str, str], ...]:
    """Variables that are carried through a loop and change an object, each with the object's name: `data.level += 1` (data.level),
    `data.level = level` and `data.set_level(level)` (level)."""
    tree = parse(path)
    kept = carried_names(path)
    changed = {name: name.partition(".")[0] for name in sorted(kept) if "." in name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            owners = [dotted(target) for target in node.targets]
            sources: list[ast.expr] = [node.value]
        elif isinstance(node, ast.Call):
            owners, sources = [dotted(node.func)], [*node.args, *(keyword.value for keyword in node.keywords)]
        else:
            continue
        for owner in owners:
            if "." in owner:
                changed.update(
                    {
                        name: owner.partition(".")[0]
                        for keyword in sources
                        for name in sorted(names(keyword) & kept)
                        if name not in changed
                    }
                )
    return tuple(changed.items())


@functools.lru_cache(maxsize=16)
def called_objects(path: str) -> frozenset[str]:
    """Names of objects one of whose methods is called in a loop without arguments: `data.harder()`."""
    return frozenset(
        dotted(node.func).partition(".")[0]
        for loop in ast.walk(parse(path))
        if isinstance(loop, ast.For | ast.While)
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and not node.args and not node.keywords and "." in dotted(node.func)
    )


@functools.lru_cache(maxsize=16)
def carried_names(path: str) -> frozenset[str]:
    """Variables that are carried through any of the script's loops."""
    return frozenset(
        name
        for loop in ast.walk(parse(path))
        if isinstance(loop, ast.For | ast.While)
        for name in carried(loop.body, names(loop.target) if isinstance(loop, ast.For) else set(), sums=True)
    )


@functools.lru_cache(maxsize=16)
def tested_objects(path: str) -> frozenset[str]:
    """Names of objects one of whose attributes, or whose call, decides something: an early stopping of the script's own."""
    tested: set[str] = set()
    for test, _ in _decisions(parse(path)):
        for node in ast.walk(test):
            if isinstance(node, ast.Attribute | ast.Call):
                inner = node.value if isinstance(node, ast.Attribute) else node.func
                tested |= {inner.id} if isinstance(inner, ast.Name) else set()
    return frozenset(tested)


def _computing(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that the loop around `backward` reads for more than keeping or showing them, and those that are put or loaded into
    something."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.For)
            and _calls(node, "backward")
            and not any(inner is not node and isinstance(inner, ast.For) and _calls(inner, "backward") for inner in ast.walk(node))
        ):
            for statement in node.body:
                yield from ((name, statement.lineno) for name in sorted(_read(statement)))
        elif isinstance(node, ast.Call) and called_name(node) == "load_state_dict":
            yield from ((name, node.lineno) for argument in node.args for name in sorted(names(argument)))
        elif isinstance(node, ast.Assign) and any(isinstance(target, ast.Subscript | ast.Attribute) for target in node.targets):
            yield from ((name, node.lineno) for name in sorted(names(node.value)))


def _calls(node: ast.AST, method: str) -> bool:
    return any(
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == method
        for inner in ast.walk(node)
    )


def _read(statement: ast.stmt) -> set[str]:
    """Names that a statement reads, without those that it only adds to, keeps in a list or shows."""
    shown = shown_in(statement)
    read = {
        dotted(node)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in shown
    } - {""}
    return read - stored(statement, sums=True)


def _decisions(tree: ast.AST, also: Iterable[str] = ()) -> Iterator[tuple[ast.expr, int]]:
    """The tests of those `if`s whose branches leave a loop, change what is trained, evaluate, or set one of these names."""
    chosen, loops = set(also), _functions_with_loops(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            branches = [*node.body, *node.orelse]
            if any(
                _steers(inner, chosen) or _goes_through_steps(inner, loops)
                for statement in branches
                for inner in ast.walk(statement)
            ):
                yield node.test, node.lineno


def _functions_with_loops(tree: ast.AST) -> set[str]:
    """Functions that go through a loader's steps, themselves or through others: whether they are called is part of the result."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    looping: set[str] = set()
    for _ in range(4):
        before = len(looping)
        looping |= {
            function.name for function in functions if any(_goes_through_steps(inner, looping) for inner in ast.walk(function))
        }
        if len(looping) == before:
            break
    return looping


def _goes_through_steps(node: ast.AST, functions: set[str]) -> bool:
    """`for step in data: for x, y in step: …`, or a call of a function that does so."""
    if isinstance(node, ast.For):
        steps = names(node.target)
        return any(isinstance(inner, ast.For) and inner is not node and names(inner.iter) & steps for inner in ast.walk(node))
    return isinstance(node, ast.Call) and called_name(node) in functions


def _steers(node: ast.AST, chosen: set[str]) -> bool:
    if isinstance(node, ast.Break | ast.Return | ast.Raise | ast.Continue):
        return True
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in STEERING
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return dotted(node) in chosen or not (isinstance(node, ast.Attribute) and dotted(node).startswith("self."))
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in chosen
