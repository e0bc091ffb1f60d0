"""What a message can say about the script itself: which of its variables is the likely cause. Read from its source, never run."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterable
from pathlib import Path


def carried(path: str, line: int) -> list[str]:
    """Variables that the loop at this line sets, and uses before it sets them: their values come from the turn before."""
    loops = [node for node in ast.walk(_parsed(path)) if isinstance(node, ast.For) and node.lineno <= line <= node.iter.lineno]
    return [name for loop in loops[-1:] for name in _used_before_set(loop)]


def local_counters() -> str:
    """Names counters that a newcomer's script begins anew: of `enumerate`, and those that decide when a loop ends."""
    tree = _script()
    found = [*_enumerated(tree), *_deciding(tree)]
    if not found:
        return ""
    name, line = found[0]
    return (f" (likely `{name}`, {_name()}:{line}: it begins anew on a worker that joins; share it: "
            f"`job.state.{name} = …` before training, and `job.state.{name}` in its place)")


def _name() -> str:
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "the script"


def _script() -> ast.AST:
    return _parsed(sys.argv[0]) if sys.argv and sys.argv[0] else ast.Module(body=[], type_ignores=[])


@functools.lru_cache(maxsize=8)
def _parsed(path: str) -> ast.AST:
    """The source as a tree; empty where there is none to read. Notebook cells are found as well."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _used_before_set(loop: ast.For) -> list[str]:
    """Variables whose value in one turn of a loop comes from the turn before, plain sums (`+=`) left out."""
    stored = _stored(loop.body)
    seen: set[str] = _names(loop.target)
    found: list[str] = []
    for statement in loop.body:
        loads = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        found += sorted(name for name in loads & stored - seen if name not in found)
        seen |= _stored([statement])
    return found


def _stored(statements: Iterable[ast.stmt]) -> set[str]:
    return {node.id for statement in statements for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not isinstance(statement, ast.AugAssign)}


def _enumerated(tree: ast.AST) -> list[tuple[str, int]]:
    """The counters of `for i, step in enumerate(data)` whose loop has a loop over the step inside."""
    found: list[tuple[str, int]] = []
    for loop in ast.walk(tree):
        if (isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and "enumerate" in _names(loop.iter.func)
                and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name)
                and any(isinstance(inner, ast.For) and inner is not loop for inner in ast.walk(loop))):
            found.append((loop.target.elts[0].id, loop.lineno))
    return found


def _deciding(tree: ast.AST) -> list[tuple[str, int]]:
    """Variables that the script changes and that decide, by an `if`, whether a loop is left or an optimizer steps."""
    changed = {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)}
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(_leaves(inner) for statement in node.body for inner in ast.walk(statement)):
            found += [(name, node.lineno) for name in sorted(_names(node.test) & changed)]
    return found


def _leaves(node: ast.AST) -> bool:
    if isinstance(node, ast.Break | ast.Return | ast.Raise):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("step", "exit")
