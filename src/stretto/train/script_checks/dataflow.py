"""Data flow in a script's source: names that a statement reads, sets or only shows, and names that a loop gets from outside.

Only plain names (`tau`) and attributes of plain names (`self.tau`) are looked at. The source is read, never run. What the slices
compute with, and what goes into changes in place (`clip_grad_norm_`, `lerp_`, `load_state_dict`), is followed back through the
assignments of the loop and into the functions of the script that it calls.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

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
    return {name for child in ast.walk(node) if (name := dotted(child))}


def loaded(node: ast.AST) -> set[str]:
    """Names that a statement or an expression reads; those of its own loops are set there."""
    loads = {
        dotted(inner) for inner in ast.walk(node) if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load)
    }
    own = {name for inner in ast.walk(node) if isinstance(inner, ast.For | ast.comprehension) for name in names(inner.target)}
    return ((loads - own) | {dotted(inner.target) for inner in ast.walk(node) if isinstance(inner, ast.AugAssign)}) - {""}


def stored(node: ast.AST, *, sums: bool) -> set[str]:
    """Names that a statement sets. `sums` counts `+=` and what is put into lists and dictionaries as well."""
    targets = {
        dotted(inner)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name | ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and (sums or not isinstance(node, ast.AugAssign))
    }
    if sums:
        targets |= {
            dotted(inner.func.value)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _MUTATING
        }
        targets |= {
            dotted(inner.value) for inner in ast.walk(node) if isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store)
        }
    return targets - {""}


def carried(body: list[ast.stmt], given: set[str], *, sums: bool) -> list[str]:
    """Names whose values in one iteration of a loop come from the iteration before. `sums` counts `+=` as well."""
    everything = {name for statement in body for name in stored(statement, sums=sums)}
    seen = set(given)
    names_ = [name for name in live(body, seen, sums=sums) if name in everything]
    conditional = {name for statement in body if isinstance(statement, ast.If | ast.Try) for name in stored(statement, sums=sums)}
    if sums:
        names_ += sorted(name for name in conditional & everything - seen if name not in names_)
    return names_


def live(body: list[ast.stmt], seen: set[str], *, sums: bool = False) -> list[str]:
    """Names that these statements read before they set them, in order. `seen` are set before; those set for certain are added."""
    reads: list[str] = []

    def read(node: ast.AST) -> None:
        reads.extend(sorted(name for name in loaded(node) if name not in seen and name not in reads))

    def inside(statements: list[ast.stmt], before: set[str]) -> set[str]:
        reads.extend(name for name in live(statements, before, sums=sums) if name not in reads)
        return before

    for statement in body:
        for header in _headers(statement):
            read(header)
        if isinstance(statement, ast.If):
            branches = [(branch, inside(branch, set(seen))) for branch in (statement.body, statement.orelse)]
            staying = [names_after for branch, names_after in branches if not (branch and isinstance(branch[-1], _LEAVING))]
            seen |= _in_all(staying)
        elif isinstance(statement, ast.Try):
            ways = [inside(branch, set(seen)) for branch in (statement.body, *(handler.body for handler in statement.handlers))]
            seen |= _in_all(ways)
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
    return reads


def _in_all(sets: list[set[str]]) -> set[str]:
    return {name for name in sets[0] if all(name in other for other in sets)} if sets else set()


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


_CHANGING = {"backward", "load_state_dict", "update_parameters"}
_FILLING = {"normal_", "uniform_", "random_", "fill_"}
"""Tensors that are filled again in every iteration carry nothing. Nor do globals that a function sets, such as a forward hook."""
_BODIES = ("body", "orelse", "finalbody")


@functools.lru_cache(maxsize=64)
def inputs(path: str, line: int) -> tuple[str, ...]:
    """Names whose values come from outside the loop at this line, or from its last iteration, and decide what is trained in it."""
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
    reads = {
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
            inner_reads = {name for statement in function.body for name in _read(statement, functions, free, seen | {called})}
            free |= {name for name in inner_reads if name.partition(".")[0] not in own and name != "self"}
    return reads - stored(node, sums=True) if isinstance(node, ast.stmt) else reads
