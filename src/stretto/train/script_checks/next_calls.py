"""Reads a script's source, never runs it: steps that are drawn by `next` in a loop that counts them itself."""

from __future__ import annotations

import ast
import functools
import os

from stretto.train.script_checks.source_analysis import parse
from stretto.train.script_checks.variables import script_frames


def counted_draws(*, step: int) -> str:
    """What is wrong where `for i in range(n)` draws steps by `next`: it counts the steps of this process."""
    for frame in script_frames():
        found = counted_draw(frame.f_code.co_filename, frame.f_lineno)
        if found is not None and step:
            name, line = found
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
        isinstance(one, ast.Call) and _name(one.func) == "next" and one.lineno <= line <= (one.end_lineno or line)
        for node in nodes
        for one in ast.walk(node)
    )
    loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
    inner = loops[-1] if drawn and loops else None
    if isinstance(inner, ast.For) and isinstance(inner.iter, ast.Call) and _name(inner.iter.func) == "range":
        return _name(inner.target) or "i", inner.lineno
    return None


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
