"""The generated reference pages are what the code says now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("commands.md", "job-file.md", "rest.md", "journal.md", "prometheus.md")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(generate: ModuleType, name: str) -> None:
    page = ROOT / "docs" / "reference" / name
    assert page.read_text() == generate.generated(name)[page], (
        f"docs/reference/{name} is out of date: run `make docs` and commit it"
    )


def test_every_page_is_compared(generate: ModuleType) -> None:
    assert set(PAGES) == set(generate.PAGES)


def test_a_changed_page_is_noticed(generate: ModuleType, tmp_path: Path) -> None:
    """The control: a hand in the generated part is undone, one around it stays."""
    page = tmp_path / "prometheus.md"
    text = (ROOT / "docs" / "reference" / "prometheus.md").read_text()
    page.write_text(text.replace("Jobs by state.", "Typed by hand.") + "Typed below.\n")
    again = generate.filled(page, generate.prometheus())
    assert "Typed by hand." not in again
    assert again.endswith("Typed below.\n")
