"""Names in a script's source: which ones a statement reads, sets or only shows, and which ones a loop has from outside.

Only plain names (`tau`) and attributes of plain names (`self.tau`) are looked at.
"""

from __future__ import annotations

import ast
import functools
import linecache

STEERING = {"step", "zero_grad", "backward", "exit", "load_state_dict", "update_parameters", "requires_grad_"}
"""Methods that change what is trained: an `if` around one of them decides something."""
_MUTATING = {"append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft", "clear", "remove", "setdefault"}
_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_LOGGING = {
    "print",
    "log",
    "info",
    "debug",
    "warning",
    "write",
    "set_postfix",
    "set_description",
    "add_scalar",
    "append",
    "sum",
    "gather",
    "update",
    "format",
}
"""Functions and methods whose arguments are only kept or shown."""
_MATHS = {"torch", "math", "np", "numpy", "F", "jnp", "cmath"}
_DIMENSIONS = {"dim", "axis", "dtype", "keepdim", "keepdims", "index", "input"}


@functools.lru_cache(maxsize=16)
def parse(path: str) -> ast.Module:
    """The source as a tree; empty where there is none to read. Notebook cells are found as well."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def dotted(node: ast.AST) -> str:
    """`name` or `name.attribute`; nothing for anything longer."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{node.value.id}.{node.attr}" if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def names(node: ast.AST) -> set[str]:
    return {name for one in ast.walk(node) if (name := dotted(one))}


def loaded(node: ast.AST) -> set[str]:
    """Names that a statement or an expression reads; those of its own loops are set there."""
    loads = {
        dotted(inner) for inner in ast.walk(node) if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load)
    }
    own = {name for inner in ast.walk(node) if isinstance(inner, ast.For | ast.comprehension) for name in names(inner.target)}
    return ((loads - own) | {dotted(inner.target) for inner in ast.walk(node) if isinstance(inner, ast.AugAssign)}) - {""}


def stored(node: ast.AST, *, sums: bool) -> set[str]:
    """Names that a statement sets. `sums` counts `+=` and what is put into lists and dictionaries as well."""
    found = {
        dotted(inner)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name | ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and (sums or not isinstance(node, ast.AugAssign))
    }
    if sums:
        found |= {
            dotted(inner.func.value)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _MUTATING
        }
        found |= {
            dotted(inner.value) for inner in ast.walk(node) if isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store)
        }
    return found - {""}


def carried(body: list[ast.stmt], given: set[str], *, sums: bool) -> list[str]:
    """Names whose values in one turn of a loop come from the turn before. `sums` counts `+=` as well."""
    everything = {name for statement in body for name in stored(statement, sums=sums)}
    seen = set(given)
    found = [name for name in live(body, seen, sums=sums) if name in everything]
    conditional = {name for statement in body if isinstance(statement, ast.If | ast.Try) for name in stored(statement, sums=sums)}
    if sums:
        found += sorted(name for name in conditional & everything - seen if name not in found)
    return found


def live(body: list[ast.stmt], seen: set[str], *, sums: bool = False) -> list[str]:
    """Names that these statements read before they set them, in order. `seen` are set before; those set for certain are added."""
    found: list[str] = []

    def read(node: ast.AST) -> None:
        found.extend(sorted(name for name in loaded(node) if name not in seen and name not in found))

    def inside(statements: list[ast.stmt], known: set[str]) -> set[str]:
        found.extend(name for name in live(statements, known, sums=sums) if name not in found)
        return known

    for statement in body:
        for header in _headers(statement):
            read(header)
        if isinstance(statement, ast.If):
            ways = [(branch, inside(branch, set(seen))) for branch in (statement.body, statement.orelse)]
            staying = [known for branch, known in ways if not (branch and isinstance(branch[-1], _LEAVING))]
            seen |= set.intersection(*staying) if staying else set()
        elif isinstance(statement, ast.Try):
            ways = [inside(branch, set(seen)) for branch in (statement.body, *(handler.body for handler in statement.handlers))]
            seen |= set.intersection(*ways)
            inside([*statement.orelse, *statement.finalbody], seen)
        elif isinstance(statement, ast.For | ast.With | ast.While):
            if isinstance(statement, ast.For):
                seen |= names(statement.target)
            elif isinstance(statement, ast.With):
                seen |= {name for item in statement.items if item.optional_vars is not None for name in names(item.optional_vars)}
            inside(statement.body, seen if not isinstance(statement, ast.While) else set(seen))
        elif not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            read(statement)
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                seen |= stored(statement, sums=sums)
    return found


def _headers(statement: ast.stmt) -> list[ast.expr]:
    """What a compound statement computes before its bodies."""
    if isinstance(statement, ast.If | ast.While):
        return [statement.test]
    if isinstance(statement, ast.For):
        return [statement.iter]
    return [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []


def shown_in(node: ast.AST) -> set[int]:
    """The parts of a statement, by id, that are only kept or shown."""
    return {id(inner) for call in ast.walk(node) if isinstance(call, ast.Call) and _shows(call) for inner in ast.walk(call)}


def _shows(call: ast.Call) -> bool:
    """`step.sum(right=…)` and `wandb.log(…)` do, `losses.sum(dim=1)` and `torch.log(x)` compute."""
    name = called_name(call)
    if name in ("sum", "gather", "log"):
        words = {keyword.arg for keyword in call.keywords}
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        given = bool(words) if name != "log" else bool(words or call.args)
        return given and isinstance(owner, ast.Name) and owner.id not in _MATHS and not words & _DIMENSIONS
    return name in _LOGGING


def called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
