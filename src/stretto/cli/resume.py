"""`stretto resume`: continues a run from its last complete checkpoint, on any number of workers."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Option

from stretto.agent.attempts import next_life
from stretto.agent.control_server import alive
from stretto.agent.options import Checkpoints, RunOptions, parse_workers
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.run import run as execute
from stretto.cli import server_commands
from stretto.cli.options import Json, Output, OutputFormat, Quiet, Run, Runs, Server, output_format
from stretto.cli.run import watch
from stretto.cli.targets import folder_of, on_server
from stretto.core.errors import UsageError
from stretto.core.journal import Checkpoint
from stretto.train.checkpoint.catalog import CheckpointEntry, choose
from stretto.train.checkpoint.storage import open_storage


def command(
    run: Run,
    *,
    workers: Annotated[
        str | None,
        Option(
            "--workers", "-w", metavar="N|A:B", help="Number of workers, or fewest:most [default: as before].", show_default=False
        ),
    ] = None,
    start: Annotated[int | None, Option(help="Number of workers at the start [default: the minimum].", show_default=False)] = None,
    step: Annotated[
        int | None,
        Option(help="Step of the checkpoint, or 0 to start from scratch [default: the last complete one].", show_default=False),
    ] = None,
    allow_mixed: Annotated[
        bool, Option("--allow-mixed", help="Continue even if the bits will differ; the journal records it.")
    ] = False,
    runs: Runs = None,
    quiet: Quiet = False,
    json: Json = False,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Goes on with a local run from a checkpoint, or with a paused job of the server."""
    if on_server(server, runs, run):
        return server_commands.resume(run, server, output_format(json, output))
    if output is OutputFormat.YAML:
        raise UsageError("-o yaml: a run in the foreground prints lines of JSON; use -o json")
    json = json or output is OutputFormat.JSON
    folder = RunFolder(folder_of(run, runs).path.absolute())
    options = _options(folder, workers=workers, start=start, allow_mixed=allow_mixed)
    assert options.checkpoints is not None
    entry = _entry(folder, options.checkpoints, step=step)
    options.validate()
    options.checkpoints.claim(folder.name)
    life = next_life(folder, entry)
    with contextlib.suppress(FileNotFoundError):
        folder.result.unlink()
    watch(folder, lambda observer: execute(options, folder, observer=observer, life=life), quiet=quiet, json=json)


def _entry(folder: RunFolder, checkpoints: Checkpoints, *, step: int | None) -> CheckpointEntry | None:
    """What to go on from; None to begin anew, which has to be said where the run has saved something."""
    if step == 0:
        return None
    vault = open_storage(checkpoints.url)
    try:
        entry = choose(vault, step=step)
    except OSError as error:
        raise UsageError(f"{vault.where()} cannot be read: {error.strerror or error}") from error
    saved = [record.step for record in folder.records() if isinstance(record, Checkpoint)] if entry is None else []
    if saved:
        raise UsageError(
            f"there is no checkpoint in {vault.where()}, but run {folder.name!r} has saved step {saved[-1]} there: "
            "bring it back (is it mounted?), or begin anew with --step 0"
        )
    return entry


def _options(folder: RunFolder, *, workers: str | None, start: int | None, allow_mixed: bool) -> RunOptions:
    """The options of the run, overridden by those of this call. Enters the folder that the run was started in."""
    document = folder.read(folder.request) or {}
    if document.get("restart_mode"):
        raise UsageError(
            f"run {folder.name!r} is in restart mode: its script loads what it saved, so start it again with `stretto run`"
        )
    result = folder.read(folder.result)
    if result is not None and result.get("state") == "finished":
        weights = f" (`stretto export {folder.name} OUT` has its weights)" if document.get("checkpoints") else ""
        raise UsageError(f"run {folder.name!r} has finished: there is nothing to go on with{weights}")
    if document.get("shared"):
        raise UsageError(
            f"run {folder.name!r} is one host's part of a job: start the job again with the same `stretto run "
            "--store` command, and it goes on from its last checkpoint"
        )
    if alive(folder):
        raise UsageError(f"run {folder.name!r} runs: stop it first with `stretto stop {folder.name}`")
    options = RunOptions.from_dict(document)
    if options.checkpoints is None:
        raise UsageError(f"run {folder.name!r} was started without --checkpoint: there is nothing to go on from")
    try:
        os.chdir(str(document.get("cwd", ".")))
    except OSError as error:
        raise UsageError(
            f"the folder that the run was started in, {document.get('cwd')}, cannot be entered: {error.strerror}"
        ) from error
    least, most = parse_workers(workers) if workers is not None else (options.least, options.most)
    begin = start if start is not None else (None if workers is not None else options.start)
    return replace(
        options, least=least, most=most, start=begin, allow_mixed=options.allow_mixed or allow_mixed, runs=Path(options.runs)
    )
