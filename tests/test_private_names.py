"""No module reaches into another's underscore names: what a module keeps to itself can be changed without reading the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "stretto"
LIBRARIES = {
    "agent/workers/zygote.py": {"_exit", "_run_exitfuncs", "_shutdown"},
    "server/decisions/policy_process.py": {"_exit"},
    "train/batch_controller.py": {"_scale"},
    "train/consistency.py": {"_buffers", "_non_persistent_buffers_set", "_parameters"},
    "train/data/dataset_changes.py": {"_version"},
    "train/data/sweeps.py": {"_getframe"},
    "train/entry/agent_channel.py": {"_exit"},
    "train/reduce/buffers.py": {"_NormBase", "_buffers", "_version"},
    "train/reduce/gradients.py": {"_version"},
    "train/reduce/process_group.py": {"_Options", "_devices", "_threads", "_timeout"},
    "train/script_checks/variables.py": {"_buffers", "_getframe", "_non_persistent_buffers_set"},
    "train/sharing/optimizer_hooks.py": {"_version"},
    "train/sharing/torchmetrics_state.py": {
        "_compute_groups_create_state_ref",
        "_computed",
        "_defaults",
        "_enable_compute_groups",
        "_forward_cache",
        "_groups",
        "_groups_checked",
        "_reductions",
        "_to_sync",
        "_update_count",
    },
    "train/state_sync.py": {"_version"},
}
"""Private names of other libraries (torch, torchmetrics, Python, SQLAlchemy) that a module uses for want of public ones."""


def _own_names(tree: ast.Module) -> set[str]:
    """Names that the module defines: functions, classes, variables, attributes of its own objects."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
    return names


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def uses(text: str, *, allowed: Set[str] = frozenset()) -> Iterator[str]:
    """Underscore names in this source that another module defines, each with its line."""
    tree = ast.parse(text)
    own = _own_names(tree) | allowed
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            if not _is_self(node.value) and node.attr not in own:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stretto"):
            yield from (f"{node.lineno}: import {alias.name}" for alias in node.names if _private(alias.name))


def test_no_module_uses_underscore_names_of_another() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{use}"
        for path in sorted(SOURCE.rglob("*.py"))
        for use in uses(path.read_text(), allowed=LIBRARIES.get(str(path.relative_to(SOURCE)), set()))
    ]
    assert not found, "\n".join(["give these a public name, or hand over what is needed:", *found])


def test_the_list_of_exceptions_has_no_more_than_is_used() -> None:
    """And a module that reaches into a library is there under its present name."""
    for name, allowed in LIBRARIES.items():
        used = "\n".join(uses((SOURCE / name).read_text()))
        assert all(f".{private}" in used for private in allowed), f"{name}: {allowed} beside {used}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def f(job):\n    return job._saver", 1),
        ("class A:\n    def f(self):\n        return self._job._saver", 1),
        ("from stretto.train.job import _secret", 1),
        ("class A:\n    def __init__(self, other):\n        self._x = other._x", 0),
        ("def f(tensor):\n    return tensor._version", 1),
        ("from stretto import __version__", 0),
    ],
)
def test_what_counts_as_reaching_into_another_module(text: str, count: int) -> None:
    assert len(list(uses(text))) == count
