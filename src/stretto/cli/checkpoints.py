"""Verbs for a run's checkpoints: checkpoints, export."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console, JustifyMethod
from rich.table import Table
from typer import Argument, Option

from stretto.agent.options import RunOptions
from stretto.agent.records.run_folder import RunFolder
from stretto.cli.options import Json, Run, Runs
from stretto.cli.printing import emit
from stretto.cli.targets import folder_of
from stretto.core.errors import Refused, UsageError
from stretto.core.text import quantity
from stretto.train.checkpoint.catalog import CheckpointEntry, choose, entries, previous
from stretto.train.checkpoint.export import export as write_weights
from stretto.train.checkpoint.storage import CheckpointStorage, open_storage


def checkpoints(run: Run, *, runs: Runs = None, json: Json = False) -> None:
    """Lists the checkpoints that a run can resume from."""
    vault = vault_of(folder_of(run, runs))
    try:
        listing = entries(vault)
    except OSError as error:
        raise UsageError(f"{vault.where()} cannot be read: {error.strerror or error}") from error
    rows = [_row(entry, now=time.time()) for entry in listing]
    if json:
        return emit(rows)
    if not rows:
        print(f"no checkpoints in {vault.where()} yet")
        return
    table = Table(box=None, header_style="bold")
    columns: dict[str, JustifyMethod] = {"STEP": "right", "SIZE": "right", "STATE": "left", "AGE": "right", "PATH": "left"}
    for column, align in columns.items():
        table.add_column(column, justify=align, overflow="fold")
    for row in rows:
        table.add_row(str(row["step"]), _size(row["bytes"]), row["state"], _age(row["age_s"]), row["problem"] or row["path"])
    Console().print(table)


def export(
    run: Run,
    out: Annotated[Path, Argument(help="The file to write.", show_default=False)],
    *,
    step: Annotated[int | None, Option(help="Step of the checkpoint [default: the last complete one].", show_default=False)] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    """Writes a checkpoint's weights as one safetensors file, loadable without stretto."""
    folder = folder_of(run, runs)
    vault = vault_of(folder)
    try:
        chosen = choose(vault, step=step, final=True)
        if chosen is None or chosen.manifest is None:
            raise UsageError(f"run {folder.name!r} has no complete checkpoint in {vault.where()} yet")
        try:
            size = write_weights(vault, chosen.manifest, out)
        except Refused as error:
            raise UsageError(f"{error}; {previous(vault, chosen.step)}") from error
    except OSError as error:
        raise UsageError(f"{vault.where()} cannot be read: {error.strerror or error}") from error
    if json:
        return emit({"path": str(out), "step": chosen.step, "bytes": size})
    print(f"{out}: the weights after step {chosen.step}, {quantity(size, 'byte')}")


def vault_of(folder: RunFolder) -> CheckpointStorage:
    """The storage of a run's checkpoints. `UsageError` if the run saves none."""
    options = RunOptions.from_dict(folder.read(folder.request) or {})
    if options.checkpoints is None:
        raise UsageError(f"run {folder.name!r} was started without --checkpoint DIR: it has saved nothing")
    return open_storage(options.checkpoints.url)


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
