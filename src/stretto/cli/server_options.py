"""Talking to a job server from the command line: finding it, and printing what it says."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from stretto.server.client import Client


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's id or name.", show_default=False)]
Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="The job server [default: $STRETTO_SERVER, or the saved login].")
]
Out = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print it.")]


def client(server: str | None) -> Client:
    """A client, or an error that says how to get one."""
    from stretto.server.client import Client

    return Client(server)


def named_server(server: str | None) -> bool:
    """Whether a server was named, by an option or in the environment."""
    return bool(server or os.environ.get("STRETTO_SERVER"))


def known_server(server: str | None) -> bool:
    """Whether there is a server to ask: one is named, or a login is saved."""
    if named_server(server):
        return True
    home = Path(os.environ.get("STRETTO_HOME") or "~/.stretto").expanduser()
    if not (home / "login.json").is_file():
        return False
    from stretto.server.credentials import read_login

    return read_login(home / "login.json") is not None


def show(value: BaseModel | Sequence[BaseModel], output: OutputFormat) -> bool:
    """Prints JSON or YAML. False for tables: they are the caller's."""
    if output is OutputFormat.TABLE:
        return False
    plain: Any = [one.model_dump(mode="json") for one in value] if isinstance(value, Sequence) else value.model_dump(mode="json")
    if output is OutputFormat.JSON:
        print(json.dumps(plain, indent=2, ensure_ascii=False))
    else:
        import yaml

        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), end="")
    return True


def show_next(value: dict[str, Any], output: OutputFormat) -> None:
    """One of many that follow each other: a line of JSON, or a document of YAML."""
    if output is OutputFormat.JSON:
        print(json.dumps(value, ensure_ascii=False), flush=True)
    else:
        import yaml

        print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, explicit_start=True), end="", flush=True)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A plain table; long cells are folded on a terminal and left whole in a pipe."""
    from rich.console import Console
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(made)


def ago(t: float | None) -> str:
    """A time as its distance from now: 3m, 2h."""
    return span(abs(time.time() - t)) if t is not None else "-"


def span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
