"""Reads a script's source, never runs it: which names its loop over the steps takes from outside to train with.

What the slices compute with, and what goes into changes in place (`clip_grad_norm_`, `lerp_`, `load_state_dict`), is followed back
through the assignments of the loop and into the functions of the script that it calls.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from stretto.train.script_checks.dataflow import called_name, dotted, live, loaded, names, parse, shown_in, stored

_CHANGING = {"backward", "load_state_dict", "update_parameters"}
_FILLING = {"normal_", "uniform_", "random_", "fill_"}
"""Tensors that are filled anew in every turn carry nothing. Nor do globals that a function sets, such as a forward hook."""
_BODIES = ("body", "orelse", "finalbody")


@functools.lru_cache(maxsize=64)
def taken(path: str, line: int) -> tuple[str, ...]:
    """Names whose values come from outside the loop at this line, or from its last turn, and decide what is trained in it."""
    tree = parse(path)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and node.lineno <= line <= node.iter.lineno]
    if not loops:
        return ()
    loop, functions = loops[-1], _functions(tree)
    outside = set(live(loop.body, names(loop.target)))
    free: set[str] = set()
    chosen = _sources(loop, functions, free)
    filled = {
        dotted(node.func.value)
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING
    }
    filled |= {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names} - stored(loop, sums=True)
    return tuple(sorted(name for name in ((chosen & outside) | free) - filled if name in free or name.partition(".")[0] in outside))


def trains_with(loop: ast.For, tree: ast.Module, name: str) -> bool:
    """Whether a variable of the loop decides what is trained in it."""
    return name in _sources(loop, _functions(tree), set())


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _sources(loop: ast.For, functions: dict[str, ast.FunctionDef], free: set[str]) -> set[str]:
    """Names that the loop trains with, directly or through its assignments. `free` gets what its functions read from outside."""
    reads = list(_training(loop.body, functions, inside=_is_slices(loop, functions)))
    if not reads:
        return set()
    chosen = {name for node in reads for name in _read(node, functions, free)}
    last = max(node.lineno for node in reads)
    assignments = [node for node in ast.walk(loop) if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= last]
    size = -1
    while size != len(chosen):
        size = len(chosen)
        for node in assignments:
            if node.value is not None and stored(node, sums=True) & chosen:
                chosen |= _read(node.value, functions, free)
    return chosen


def _training(body: list[ast.stmt], functions: dict[str, ast.FunctionDef], *, inside: bool) -> Iterator[ast.stmt | ast.expr]:
    """Statements, and headers of compound ones, that train: all in the slices, elsewhere those that change something in place."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        parts = [part for key in _BODIES for part in getattr(statement, key, [])]
        parts += [part for handler in getattr(statement, "handlers", []) for part in handler.body]
        if not parts:
            if (inside and not _only_calls(statement, functions)) or _changes(statement, functions):
                yield statement
            continue
        if _changes(statement, functions) or (inside and not all(map(_only_shows, parts))):
            yield from (part for part in (getattr(statement, key, None) for key in ("test", "iter")) if part is not None)
            yield from (item.context_expr for item in getattr(statement, "items", []))
        yield from _training(parts, functions, inside=inside or _is_slices(statement, functions))


def _is_slices(statement: ast.stmt, functions: dict[str, ast.FunctionDef]) -> bool:
    """The innermost loop that calls `backward`, by itself or in a function of the script's."""
    return (
        isinstance(statement, ast.For)
        and _changes(statement, functions, only="backward")
        and not any(
            inner is not statement and isinstance(inner, ast.For) and _changes(inner, functions, only="backward")
            for inner in ast.walk(statement)
        )
    )


def _only_shows(statement: ast.stmt) -> bool:
    """Nothing that follows depends on it: `print(…)`, `torch.save(…)`, `pass`."""
    if not isinstance(statement, ast.Expr):
        return isinstance(statement, ast.Pass)
    call = statement.value
    return not isinstance(call, ast.Call) or called_name(call) == "save" or id(call) in shown_in(statement)


def _only_calls(statement: ast.stmt, functions: dict[str, ast.FunctionDef]) -> bool:
    """`meter.add(loss)`, whose result nobody uses. If what it changes is trained with, another statement reads it."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and called_name(call) not in functions


def _changes(node: ast.AST, functions: dict[str, ast.FunctionDef], *, only: str = "", seen: frozenset[str] = frozenset()) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and inner.attr == "data" and not only:
            return True
        if not isinstance(inner, ast.Call):
            continue
        called = called_name(inner)
        if called == only if only else called in _CHANGING or (called.endswith("_") and not called.endswith("__")):
            return True
        if called in functions and called not in seen and _changes(functions[called], functions, only=only, seen=seen | {called}):
            return True
    return False


def _read(node: ast.AST, functions: dict[str, ast.FunctionDef], free: set[str], seen: frozenset[str] = frozenset()) -> set[str]:
    """Names that a statement reads to compute with. Functions of the script's that it calls add what they read from outside."""
    shown = shown_in(node)
    found = {
        dotted(inner)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load) and id(inner) not in shown
    } & loaded(node)
    for inner in ast.walk(node):
        called = called_name(inner) if isinstance(inner, ast.Call) and id(inner) not in shown else ""
        if called in functions and called not in seen:
            function = functions[called]
            own = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)} - {"self"}
            own |= {name for statement in function.body for name in stored(statement, sums=False) if "." not in name}
            read = {name for statement in function.body for name in _read(statement, functions, free, seen | {called})}
            free |= {name for name in read if name.partition(".")[0] not in own and name != "self"}
    kept = stored(node, sums=True) if isinstance(node, ast.stmt) else set()
    return found - kept
