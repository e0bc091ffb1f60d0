"""How verbs print: tables for people, JSON and YAML for scripts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stretto.cli.options import OutputFormat

if TYPE_CHECKING:
    from pydantic import BaseModel


def emit(document: object, output: OutputFormat = OutputFormat.JSON) -> None:
    """Prints plain values as JSON, or as YAML if `output` says so."""
    text = json.dumps(document, indent=1, default=str)
    if output is OutputFormat.YAML:
        import yaml

        text = yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True).rstrip("\n")
    print(text)


def show(value: BaseModel | Sequence[BaseModel], output: OutputFormat) -> bool:
    """Prints the server's answer as JSON or YAML. Returns False for a table, which the caller prints."""
    if output is OutputFormat.TABLE:
        return False
    plain = [item.model_dump(mode="json") for item in value] if isinstance(value, Sequence) else value.model_dump(mode="json")
    if output is OutputFormat.JSON:
        print(json.dumps(plain, indent=2, ensure_ascii=False))
    else:
        import yaml

        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), end="")
    return True


def show_next(value: Mapping[str, object], output: OutputFormat) -> None:
    """Prints one item of a stream: a line of JSON, or a document of YAML."""
    if output is OutputFormat.JSON:
        print(json.dumps(value, ensure_ascii=False), flush=True)
    else:
        import yaml

        print(yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, explicit_start=True), end="", flush=True)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Prints a table. A terminal folds long cells, a pipe gets them whole."""
    from rich.console import Console
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(made)


def ago(t: float | None) -> str:
    """The distance of a time from now: 3m, 2h."""
    return span(abs(time.time() - t)) if t is not None else "-"


def span(seconds: float | None) -> str:
    """A duration in its largest fitting unit."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def number(value: float | None) -> str:
    """Four significant digits."""
    return "-" if value is None else f"{value:.4g}"
