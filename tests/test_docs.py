"""What the documentation names exists: files, make targets, verbs, flags of `stretto run`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
CODE = re.compile(r"```.*?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
WORDS = {"is", "needs", "and", "alone", "adds", "writes", "then", "gives"}
"""What may follow the name of the project in a sentence."""


def _code(page: Path) -> str:
    """The page's code, in lines and in words: what readers will type."""
    return "\n".join("".join(pair) for pair in CODE.findall(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    missing = [target for target, _ in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for line in re.findall(r"^\s*make ([a-z -]+)", _code(page), re.MULTILINE) for word in line.split()}
    assert named <= targets | {"bench-"}, named - targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_verb_exists(page: Path) -> None:
    from stretto.cli.verbs import VERBS

    named = set(re.findall(r"^(?:\$ )?stretto ([a-z]+)", _code(page), re.MULTILINE))
    assert named - WORDS <= set(VERBS), named - set(VERBS)


def test_every_flag_of_run_that_is_documented_exists() -> None:
    text = "\n".join(_code(page) for page in PAGES)
    lines = [line.split(".py")[0] for line in re.findall(r"stretto run ([^\n]*)", text)]  # what follows the script is its own
    named = {flag for line in lines for flag in re.findall(r"(?<!\S)--[a-z-]+", line)}
    run = subprocess.run([sys.executable, "-m", "stretto.cli.main", "run", "--help"], capture_output=True, text=True, timeout=240,
                         env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"}, cwd=ROOT)
    known = set(re.findall(r"--[a-z-]+", run.stdout))
    assert named <= known, named - known


def test_the_readme_begins_with_one_sentence_and_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines[0] == "# stretto"
    assert lines[2].endswith(".")
    assert lines[4] == "```"
    assert lines[7] == "```"
