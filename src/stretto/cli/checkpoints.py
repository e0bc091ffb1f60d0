"""`stretto checkpoints`: what there is to go on from."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table

from stretto.agent.options import RunOptions
from stretto.agent.records.run_folder import RunFolder
from stretto.cli.common import Json, Run, Runs, emit, folder_of
from stretto.core.errors import UsageError
from stretto.train.checkpoint.catalog import CheckpointEntry, entries
from stretto.train.checkpoint.storage import CheckpointStorage, open_vault


def command(run: Run, *, runs: Runs = None, json: Json = False) -> None:
    vault = vault_of(folder_of(run, runs))
    try:
        found = entries(vault)
    except OSError as error:
        raise UsageError(f"{vault.where()} cannot be read: {error.strerror or error}") from error
    rows = [_row(entry, now=time.time()) for entry in found]
    if json:
        return emit(rows)
    if not rows:
        print(f"no checkpoints in {vault.where()} yet")
        return
    table = Table(box=None, header_style="bold")
    for column, align in (("STEP", "right"), ("SIZE", "right"), ("STATE", "left"), ("AGE", "right"), ("PATH", "left")):
        table.add_column(column, justify=align, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(str(row["step"]), _size(row["bytes"]), row["state"], _age(row["age_s"]), row["problem"] or row["path"])
    Console().print(table)


def vault_of(folder: RunFolder) -> CheckpointStorage:
    """Where a run's checkpoints lie. `UsageError` if it has none by request."""
    options = RunOptions.read(folder.read(folder.request) or {})
    if options.checkpoints is None:
        raise UsageError(f"run {folder.name!r} was started without --checkpoint DIR: it has saved nothing")
    return open_vault(options.checkpoints.url)


def _row(entry: CheckpointEntry, *, now: float) -> dict[str, Any]:
    state = "damaged" if entry.problem else "incomplete" if entry.manifest is None else "final" if entry.final else "complete"
    age = round(now - entry.manifest.created, 1) if entry.manifest is not None else None
    return {
        "step": entry.step,
        "bytes": entry.bytes,
        "state": state,
        "complete": entry.complete,
        "age_s": age,
        "path": entry.path,
        "problem": entry.problem,
    }


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for bound, unit in ((60.0, "s"), (3600.0, "min"), (86400.0, "h")):
        if seconds < bound:
            return f"{seconds / (bound / 60 if unit != 'h' else 3600):.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
