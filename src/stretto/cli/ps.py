"""`stretto ps`: the runs of a folder."""

from __future__ import annotations

from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Option

from stretto.agent.records.run_folder import RunFolder, every
from stretto.cli.common import Json, Runs, emit, runs_folder, standing
from stretto.core.errors import UsageError

SHOWN = 20


def command(
    *,
    runs: Runs = None,
    all: Annotated[bool, Option("--all", "-a", help=f"All, not only the last {SHOWN}.")] = False,
    json: Json = False,
) -> None:
    if runs is not None and not runs.is_dir():
        kind = "is not a folder" if runs.exists() else "does not exist"
        raise UsageError(f"--runs {runs} {kind}: name the folder that the runs are in")
    folders = list(every(runs_folder(runs)))
    rows = [_standing(folder) for folder in (folders if all else folders[-SHOWN:])]
    if json:
        return emit(rows)
    if not rows:
        return print(f"no runs in {runs_folder(runs)}")
    table = Table(box=None, pad_edge=False)
    for title in ("run", "state", "workers", "step", "steps/s", "metrics"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    Console(highlight=False).print(table)


def _standing(folder: RunFolder) -> dict[str, Any]:
    """One run whose files are damaged does not hide the others."""
    try:
        return standing(folder)
    except UsageError as error:
        return {"name": folder.name, "state": "damaged", "error": str(error)}


def _cells(row: dict[str, Any]) -> list[str]:
    running = "members" in row
    workers = f"{row['members']} of {row['least']}:{row['most']}" if running else ""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in list((row.get("metrics") or {}).items())[:3])
    rate = f"{row['steps_per_s']:.1f}" if running else ""
    if row.get("stalled"):
        metrics = f"stalled: {row['stalled']}"
    return [str(row["name"]), str(row["state"]), workers, str(row.get("steps", "")), rate, metrics]
