"""Rules of the source that no linter has: names that mean one thing, docstrings on what others use, kinds spelled in one place.

Each has controls: sources that break it, and are found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest

from stretto.core.journal import JOURNAL
from stretto.core.messages import TO_AGENT, TO_WORKER

SOURCE = Path(__file__).resolve().parent.parent / "src" / "stretto"
SCHEMAS = {"core/journal.py", "core/messages.py"}
KINDS = frozenset(JOURNAL.kinds) | frozenset(TO_AGENT.kinds) | frozenset(TO_WORKER.kinds)


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    found = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    assert len(found) > 100, "the source is not where this test looks"
    return found


def classes(text: str) -> Iterator[ast.ClassDef]:
    """All classes of a source, those inside others and inside functions too."""
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))


def repeated_classes(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Class names that stand more than once, and where."""
    places: dict[str, list[str]] = {}
    for path, text in sources.items():
        for node in classes(text):
            places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


def undocumented_classes(sources: Mapping[str, str]) -> list[str]:
    return [
        f"{path}:{node.lineno} {node.name}"
        for path, text in sources.items()
        for node in classes(text)
        if not node.name.startswith("_") and not (ast.get_docstring(node) or "").strip()
    ]


def spelled_kinds(text: str, kinds: Set[str] = KINDS) -> Iterator[str]:
    """Where a source spells a kind of the schema: `{"kind": "commit"}`, `line["kind"] == "commit"`, `case {"kind": "commit"}`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            values = [value for key, value in zip(node.keys, node.values, strict=True) if _string(key) == "kind"]
        elif isinstance(node, ast.Compare) and any(_is_kind(side) for side in (node.left, *node.comparators)):
            values = [side for side in (node.left, *node.comparators) if not _is_kind(side)]
        elif isinstance(node, ast.Match) and _is_kind(node.subject):
            values = [case.pattern for case in node.cases]
        elif isinstance(node, ast.MatchMapping):
            values = [pattern for key, pattern in zip(node.keys, node.patterns, strict=True) if _string(key) == "kind"]
        else:
            continue
        inside = [part for value in values for part in ast.walk(value)]
        yield from (f"{node.lineno}: {name!r}" for part in inside if (name := _string(part)) in kinds)


def _string(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_kind(node: ast.AST) -> bool:
    """`x["kind"]` or `x.get("kind")`."""
    if isinstance(node, ast.Subscript):
        return _string(node.slice) == "kind"
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and [_string(key) for key in node.args[:1]] == ["kind"]
    )


def test_no_class_name_stands_twice(sources: dict[str, str]) -> None:
    repeated = repeated_classes(sources)
    assert not repeated, f"whoever reads one of these names takes it for the other: {repeated}"


def test_every_public_class_says_what_it_is(sources: dict[str, str]) -> None:
    missing = undocumented_classes(sources)
    assert not missing, "\n".join(["these have no docstring (its purpose and guarantee, not its name again):", *missing])


def test_kinds_of_lines_and_messages_are_spelled_in_the_schema_alone(sources: dict[str, str]) -> None:
    found = [f"{path}:{use}" for path, text in sources.items() if path not in SCHEMAS for use in spelled_kinds(text)]
    assert not found, "\n".join(["make or match the class of core/journal.py or core/messages.py:", *found])


@pytest.mark.parametrize(
    "twin",
    ["class Roster: ...", "class Other:\n    class Roster: ...", "def f():\n    class Roster: ..."],
    ids=["module", "nested", "local"],
)
def test_a_class_name_of_another_module_is_found(sources: dict[str, str], twin: str) -> None:
    assert "agent/twin.py:" in str(repeated_classes({**sources, "agent/twin.py": twin})["Roster"])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("class A:\n    x = 1", 1),
        ('class A:\n    ""', 1),
        ('class A:\n    """Words."""\n    class B: ...', 1),
        ("class _A: ...", 0),
        ('class A:\n    """Words."""', 0),
    ],
)
def test_a_class_without_words_is_found(text: str, count: int) -> None:
    assert len(undocumented_classes({"a.py": text})) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('send({"kind": "commit", "step": 1})', 1),
        ('line["kind"] == "commit"', 1),
        ('line.get("kind") in ("commit", "eval")', 2),
        ('match line["kind"]:\n    case "commit" | "eval": ...', 2),
        ('match line:\n    case {"kind": "commit"}: ...', 1),
        ('event = {"kind": "no kind of the schema"}', 0),
        ('what = "commit"', 0),
    ],
)
def test_a_kind_spelled_by_hand_is_found(text: str, count: int) -> None:
    assert len(list(spelled_kinds(text))) == count
