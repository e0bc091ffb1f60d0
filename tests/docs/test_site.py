"""The documentation builds as a site, strictly; and a broken link, a broken anchor and a missing Python name fail it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("mkdocs", reason="mkdocs is not installed: `make docs` installs it")


def _build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=root, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the documentation whose only other page is the one that a test adds."""
    copied = tmp_path / "copy"
    (copied / "docs").mkdir(parents=True)
    config = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[0]
    (copied / "mkdocs.yml").write_text(config)
    shutil.copytree(ROOT / "src", copied / "src", ignore=shutil.ignore_patterns("__pycache__", "static"))
    (copied / "docs" / "index.md").write_text("# Home\n\n[other](other.md#there)\n\n::: stretto.join\n")
    (copied / "docs" / "other.md").write_text("# Other\n\n## There\n")
    return copied


def test_the_site_builds_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    built = _build(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stdout + built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        html = page.read_text()
        loaded = re.findall(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(https?:[^"'\s>]+)""", html)
        loaded += re.findall(r"""<link[^>]*rel=["']?(?:stylesheet|preconnect|icon)["']?[^>]*href=["']?(https?:[^"'\s>]+)""", html)
        assert not loaded, f"{page.name} loads {loaded}"


def test_the_copy_builds(copy: Path, tmp_path: Path) -> None:
    built = _build(copy, tmp_path / "site")
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.mark.parametrize(
    "mistake",
    ["[gone](gone.md)", "[gone](other.md#gone)", "[gone](#gone)", "::: stretto.gone", "[gone](/other.md)"],
)
def test_a_mistake_fails_the_build(copy: Path, tmp_path: Path, mistake: str) -> None:
    page = copy / "docs" / "index.md"
    page.write_text(f"{page.read_text()}\n{mistake}\n")
    built = _build(copy, tmp_path / "site")
    assert built.returncode != 0
    assert "gone" in built.stdout + built.stderr or "/other.md" in built.stdout + built.stderr
