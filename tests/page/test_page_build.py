"""The page's source passes its own checks, the committed build matches it, and its types match the server's models."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from page_harness import ROOT

STATIC = ROOT / "src" / "stretto" / "server" / "static"
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"web_{name}", ROOT / "web" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def npm_or_skip() -> Iterator[ModuleType]:
    """web/build.py; skips without npm, and if its packages are not installed and cannot be fetched."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: the page's source was not checked")
    npm = load("build")
    try:
        yield npm
    except npm.NpmError as error:
        if any(code in str(error) for code in UNREACHABLE):
            pytest.skip("the npm registry cannot be reached: the page's source was not checked")
        raise


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_committed_build_matches_its_source(tmp_path: Path) -> None:
    with npm_or_skip() as npm:
        npm.build(tmp_path / "built")
    built, committed = contents(tmp_path / "built"), contents(STATIC)
    assert sorted(built) == sorted(committed)
    assert [name for name in built if built[name] != committed[name]] == [], "run 'make web' and commit what it changes"


def test_the_unit_tests_of_the_page_pass() -> None:
    with npm_or_skip() as npm:
        assert " passed" in npm.run_script("test")


def test_the_source_of_the_page_is_formatted_and_has_no_lint() -> None:
    with npm_or_skip() as npm:
        assert "Checked" in npm.run_script("lint")


def test_the_types_of_the_page_match_the_models_of_the_server() -> None:
    types = load("generate_types")
    assert types.TARGET.read_text() == types.generate(), "run 'python web/generate_types.py', then 'make web'"


def test_the_build_loads_nothing_from_other_sites() -> None:
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


def test_the_lock_pins_everything_and_names_no_registry() -> None:
    import json

    package = json.loads((ROOT / "web" / "package.json").read_text())
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    for versions in (package["dependencies"], package["devDependencies"]):
        assert all(version[0].isdigit() for version in versions.values()), versions
    assert all("resolved" not in entry for entry in lock["packages"].values())
    assert all("integrity" in entry for path, entry in lock["packages"].items() if path)


def test_the_build_contains_the_licences_of_what_it_bundles() -> None:
    notices = (STATIC / "licences.txt").read_text()
    for name in ("preact ", "@preact/signals ", "uplot "):
        assert name in notices
    assert notices.count("Permission is hereby granted") >= 3
