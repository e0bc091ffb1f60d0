"""Every tutorial, and every guide with files and commands, runs as it stands: its files, its commands, and what they print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tutorial_runner import Command, SavedFile, Shell, actions, follow, matches

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = [DOCS / "guides" / "own-cluster.md"]
QUICK = {"policies.md"}
PAGES = [
    pytest.param(page, id=page.stem, marks=() if page.name in QUICK else pytest.mark.slow)
    for page in [*sorted((DOCS / "tutorials").glob("*.md")), *GUIDES]
]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_runs_as_it_stands(page: Path, shell: Shell) -> None:
    text = page.read_text()
    assert len([action for action in actions(text) if isinstance(action, SavedFile)]) >= 1
    assert follow(text, shell) >= 2


def test_a_page_is_read_in_order() -> None:
    blocks = (
        "Save this as `a.txt`:\n\n```text\nhello\n```",
        "```console\n$ cat a.txt\nhello\n$ true\n```",
        "```python\nno file\n```",
    )
    page = "\n\nThen:\n\n".join(blocks)
    assert list(actions(page)) == [SavedFile("a.txt", "hello\n"), Command("cat a.txt", "hello\n"), Command("true", "")]


def test_the_shell_keeps_its_variables_and_a_wrong_output_is_noticed(shell: Shell) -> None:
    """The control."""
    assert shell.run("WORD=here") == (0, "")
    assert shell.run("echo $WORD; false") == (1, "here\n")
    assert matches("one\ntwo 17 three\nfour\n", "one\ntwo … three\nfour\n")
    assert matches("one\ntwo\nthree\n", "one\n…\n")
    assert not matches("one\ntwo\n", "one\n")
    assert not matches("two\n", "one\n")
