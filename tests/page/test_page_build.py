"""The committed build is what the source gives, and the page's types are the server's models."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from page_harness import ROOT

STATIC = ROOT / "src" / "stretto" / "server" / "static"
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")


def load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"web_{name}", ROOT / "web" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_committed_build_is_what_the_source_gives(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: the committed build of the page was not compared with its source")
    build = load("build")
    try:
        build.build(tmp_path / "built")
    except build.BuildError as error:
        if any(word in str(error) for word in UNREACHABLE):
            pytest.skip("the npm registry cannot be reached: the committed build of the page was not compared with its source")
        raise
    built, committed = contents(tmp_path / "built"), contents(STATIC)
    assert sorted(built) == sorted(committed)
    assert [name for name in built if built[name] != committed[name]] == [], "run 'make web' and commit what it changes"


def test_the_types_of_the_page_are_the_models_of_the_server() -> None:
    shapes = load("shapes")
    assert shapes.TARGET.read_text() == shapes.written(), "run 'python web/shapes.py', then 'make web'"


def test_nothing_in_the_build_comes_from_elsewhere() -> None:
    """No CDN, no font service, no script or style inside the page: the content security policy would refuse them."""
    index = (STATIC / "index.html").read_text()
    assert "<style" not in index
    assert "style=" not in index
    assert '<script type="module" crossorigin src="/app.js"></script>' in index
    assert index.count("<script") == 1
    for name, body in contents(STATIC).items():
        if name.endswith((".html", ".css")):
            assert b"http://" not in body, name
            assert b"https://" not in body, name


def test_the_lock_names_no_registry_and_pins_everything() -> None:
    import json

    package = json.loads((ROOT / "web" / "package.json").read_text())
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    for versions in (package["dependencies"], package["devDependencies"]):
        assert all(version[0].isdigit() for version in versions.values()), versions
    assert all("resolved" not in entry for entry in lock["packages"].values())
    assert all("integrity" in entry for path, entry in lock["packages"].items() if path)


def test_notices_of_what_is_bundled_travel_with_it() -> None:
    notices = (STATIC / "licences.txt").read_text()
    for name in ("preact ", "@preact/signals ", "uplot "):
        assert name in notices
    assert notices.count("Permission is hereby granted") >= 3
