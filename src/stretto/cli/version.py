"""`stretto version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import typer

from stretto.cli.options import Json
from stretto.cli.printing import emit
from stretto.core.version import VERSION


def command(*, json: Json = False) -> None:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = None
    if json:
        emit({"stretto": VERSION, "python": platform.python_version(), "torch": torch})
    else:
        typer.echo(f"stretto {VERSION} (Python {platform.python_version()}, torch {torch or 'not installed'})")
