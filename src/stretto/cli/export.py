"""`stretto export`: the weights of a checkpoint as one safetensors file, loadable without stretto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from stretto.cli.checkpoints import vault_of
from stretto.cli.common import Json, Run, Runs, emit, folder_of
from stretto.core.errors import Refused, UsageError
from stretto.train.checkpoint.catalog import entries
from stretto.train.checkpoint.export import export


def command(
    run: Run,
    out: Annotated[Path, Argument(help="The file to write.", show_default=False)],
    *,
    step: Annotated[int | None, Option(help="Of this checkpoint [default: the last complete one].", show_default=False)] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    folder = folder_of(run, runs)
    vault = vault_of(folder)
    found = [entry for entry in entries(vault) if entry.complete]
    chosen = [entry for entry in found if step is None or entry.step == step]
    if not chosen:
        there = ", ".join(str(entry.step) for entry in found) or "none"
        raise UsageError(f"run {folder.name!r} has no complete checkpoint{f' of step {step}' if step is not None else ''} in "
                         f"{vault.where()} (there are: {there})")
    newest = max(chosen, key=lambda entry: (entry.step, entry.final))
    assert newest.manifest is not None
    try:
        size = export(vault, newest.manifest, out)
    except Refused as error:
        before = [entry.step for entry in found if entry.step < newest.step]
        offer = f"the previous one is of step {before[-1]}: --step {before[-1]}" if before else "there is no other"
        raise UsageError(f"{error}; {offer}") from error
    if json:
        return emit({"path": str(out), "step": newest.step, "bytes": size})
    print(f"{out}: the weights after step {newest.step}, {size} bytes")
