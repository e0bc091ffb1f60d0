"""Every message that the guide quotes still exists in the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "troubleshooting.md"


def _messages() -> str:
    """All texts of the source, a line each; `…` stands for values."""
    found: list[str] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
    return "\n".join(found)


def _quoted(page: str) -> list[str]:
    """What the tables above those of scripts quote. (Those of scripts are compared with every `raise` in test_docs.py.)"""
    tables = page.split("## Refusals and cures")[0]
    return re.findall(r"^\| `([^`]+)`", tables, re.MULTILINE)


def _gone(quoted: list[str]) -> list[str]:
    messages = _messages()
    return [text for text in quoted if text not in messages]


def test_every_quoted_message_exists() -> None:
    quoted = _quoted(GUIDE.read_text())
    assert len(quoted) > 25
    assert not _gone(quoted)


def test_a_message_that_nothing_prints_is_noticed() -> None:
    """The control."""
    assert _gone(["nobody has ever printed this", "has not answered for"]) == ["nobody has ever printed this"]
