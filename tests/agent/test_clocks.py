"""Nothing waits by the wall clock: it may jump. What reads it only writes it down."""

from __future__ import annotations

import ast
from pathlib import Path

import stretto

SOURCE = Path(stretto.__file__).parent
ROOMS = ("core", "membership", "agent", "train")
WALL = {"time", "time_ns", "localtime", "gmtime", "now", "utcnow", "today"}
CLOCKS = ("time", "datetime", "date")
WRITTEN_DOWN = {
    "agent/hosts/join.py:_enter": "when the job began, for people",
    "agent/records/journal_writer.py:write": "every line's time, for people",
    "agent/records/recorder.py:warn": "the same",
    "agent/run.py:open_run": "when the run was made, for people",
    "train/checkpoint/catalog.py:claim": "since when a run has this place, for people",
    "train/checkpoint/saver.py:_commit": "when a checkpoint was made, for people",
}


def readers(path: Path) -> set[str]:
    """Functions of a file that read the wall clock."""
    found: set[str] = set()

    def look(node: ast.AST, inside: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = node.name
        if isinstance(node, ast.Attribute) and node.attr in WALL and ast.unparse(node.value).split(".")[-1] in CLOCKS:
            found.add(inside)
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime") and {one.name for one in node.names} & WALL:
            found.add(inside)
        for child in ast.iter_child_nodes(node):
            look(child, inside)

    look(ast.parse(path.read_text()), "")
    return found


def test_the_wall_clock_is_read_only_to_be_written_down() -> None:
    files = [path for room in ROOMS for path in sorted((SOURCE / room).rglob("*.py"))]
    assert len(files) > 60
    found = {f"{path.relative_to(SOURCE)}:{name}" for path in files for name in readers(path)}
    assert found == set(WRITTEN_DOWN), "deadlines, ages and orders break when the wall clock is set: use time.monotonic()"


def test_a_deadline_by_the_wall_clock_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    for text in (
        "import time\ndef wait():\n    until = time.time() + 3\n",
        "from time import time\ndef wait():\n    time()\n",
        "import datetime\ndef wait():\n    return datetime.datetime.now()\n",
    ):
        wrong.write_text(text)
        assert readers(wrong), text
