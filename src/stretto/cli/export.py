"""`stretto export`: the weights of a checkpoint as one safetensors file, loadable without stretto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from stretto.cli.checkpoints import vault_of
from stretto.cli.common import Json, Run, Runs, emit, folder_of
from stretto.core.errors import Refused, UsageError
from stretto.core.text import quantity
from stretto.train.checkpoint.catalog import choose, previous
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
    try:
        chosen = choose(vault, step=step, final=True)
        if chosen is None or chosen.manifest is None:
            raise UsageError(f"run {folder.name!r} has no complete checkpoint in {vault.where()} yet")
        try:
            size = export(vault, chosen.manifest, out)
        except Refused as error:
            raise UsageError(f"{error}; {previous(vault, chosen.step)}") from error
    except OSError as error:
        raise UsageError(f"{vault.where()} cannot be read: {error.strerror or error}") from error
    if json:
        return emit({"path": str(out), "step": chosen.step, "bytes": size})
    print(f"{out}: the weights after step {chosen.step}, {quantity(size, 'byte')}")
