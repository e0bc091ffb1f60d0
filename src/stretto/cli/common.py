"""Options and small habits that verbs share."""

from __future__ import annotations

import json
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.agent.control_server import alive, ask
from stretto.agent.records.run_folder import RunFolder, find
from stretto.core.errors import UsageError

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", show_default=False, help="The run's name or its folder; its script's name for the last run of that script."
    ),
]
Runs = Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Where runs live [default: $STRETTO_RUNS or runs].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def runs_folder(runs: Path | None) -> Path:
    return runs or Path(os.environ.get("STRETTO_RUNS", "runs"))


def folder_of(run: str, runs: Path | None) -> RunFolder:
    return find(run, runs=runs_folder(runs))


as_yaml: ContextVar[bool] = ContextVar("as_yaml", default=False)
"""What is emitted is written as YAML: `-o yaml` of a verb that knows `--json` only (cli/either.py)."""


def emit(document: Any) -> None:
    """JSON on standard output."""
    text = json.dumps(document, indent=1, default=str)
    if as_yaml.get():
        import yaml

        text = yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True).rstrip("\n")
    typer.echo(text)


def standing(folder: RunFolder) -> dict[str, Any]:
    """What can be said of a run: from its agent while it lives, from its result afterwards, `lost` if neither is there."""
    result = folder.read(folder.result)
    if result is not None:
        return result
    if alive(folder):
        try:
            return ask(folder, "status", timeout_s=5.0)
        except UsageError as error:
            return {"name": folder.name, "state": folder_state(folder), "error": str(error)}
    return {"name": folder.name, "state": folder_state(folder)}


def folder_state(folder: RunFolder) -> str:
    """Of a run whose agent does not answer."""
    result = folder.read(folder.result)
    return str(result["state"]) if result is not None else "lost"
