"""The texts of all errors that a script can meet, read from the source: every `raise ScriptError(…)` and what it is made of."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GAP = "…"
"""Stands for a value in a text."""
LETTERS = 12
"""A text with fewer letters of its own is made elsewhere."""
ELSEWHERE = {
    "data.text",  # of an error that was raised in a process that reads ahead
    "str(error)",  # a Refused of checkpoint/shard_layout.py, which is found as well
    "text",  # the argument of a function whose calls are found
    "f'{name}={kind}(…): {SAMPLERS.get(kind, WAYS)}'",  # constants: `samplers` has them
}
"""Arguments of errors whose texts are found at other places."""


@dataclass(frozen=True, slots=True)
class Raised:
    """One place that refuses something."""

    place: str
    argument: str
    texts: tuple[str, ...]


@functools.cache
def raised(*folders: Path) -> list[Raised]:
    """Every place in these folders, with the texts that it can give; none where they cannot be found."""
    trees = {path: ast.parse(path.read_text()) for folder in folders for path in sorted(folder.rglob("*.py"))}
    functions = [(path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [
        Raised(
            f"{path.name}:{call.lineno}",
            ast.unparse(call.args[0]),
            tuple(text for text in _texts(call.args[0], function, functions) if len(re.findall(r"[a-z]", text)) >= LETTERS),
        )
        for path, function in functions
        for call in _refusals(function, also="Refused" if path.name == "shard_layout.py" else "")
    ]


def samplers() -> list[str]:
    """What is said about samplers."""
    from stretto.train.data.loader_arguments import SAMPLERS, WAYS

    return [*SAMPLERS.values(), WAYS]


Functions = Sequence[tuple[Path, ast.FunctionDef]]


def _refusals(function: ast.FunctionDef, *, also: str) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name and name in ("ScriptError", "Misplaced", "refusal", also):
                yield node


def _texts(value: ast.expr, function: ast.FunctionDef, functions: Functions) -> Iterator[str]:
    match value:
        case ast.Constant() | ast.JoinedStr() | ast.BinOp():
            yield _template(value, function)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):  # a function that makes the text
            yield from _made_by(name, functions)
        case ast.Subscript(value=ast.Name(id=name)):  # the first of a list that a function of this name fills
            yield from _made_by(f"_{name}", functions)
        case ast.Name(id=name):
            for assigned in _assigned(name, function):
                yield from _texts(assigned, function, functions)
        case _:
            return


def _template(value: ast.expr, function: ast.FunctionDef) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_template(one, function) for one in values)
        case ast.BinOp(left=left, right=right):
            return _template(left, function) + _template(right, function)
        case ast.FormattedValue(value=ast.Name(id=name)):  # a text that was begun before
            begun = [one for one in _assigned(name, function) if isinstance(one, ast.JoinedStr | ast.BinOp)]
            return _template(begun[0], function) if begun else GAP
        case _:
            return GAP


def _assigned(name: str, function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
            yield node.value


def _made_by(name: str, functions: Functions) -> Iterator[str]:
    for _, function in functions:
        if function.name == name:
            for node in ast.walk(function):
                if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                    yield _template(node.value, function)
