"""One version: the package's, the changelog's, the dashboard's; and checkpoints of it are read by it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from stretto.core.manifest import SAME_BITS

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_version_is_the_same_everywhere() -> None:
    changelog = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changelog is not None
    assert changelog[1] == VERSION
    assert json.loads((ROOT / "web" / "package.json").read_text())["version"] == VERSION
    assert f'return "{VERSION}"' in (ROOT / "src/stretto/core/version.py").read_text(), "what an uninstalled tree says"
    assert f"stretto {VERSION}: http" in (ROOT / "docs/guides/server.md").read_text()


def test_this_version_goes_on_from_checkpoints_of_every_version_in_the_changelog() -> None:
    versions = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(versions) == SAME_BITS, "a version that changes the bits leaves this set, and the changelog says so"
