"""Other ways of `stretto run`: restart mode with torchrun's flags, and the replay of an earlier run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from typer import Exit

from stretto.agent.completion import RunOutcome
from stretto.agent.options import RunOptions
from stretto.agent.records import replay
from stretto.agent.records.recorder import RunObserver
from stretto.agent.records.run_folder import RunFolder, create, write_json
from stretto.agent.restart.restarter import one_node, processes
from stretto.agent.run import open_run, run, run_restarting
from stretto.core.errors import UsageError
from stretto.core.version import VERSION

Watch = Callable[[RunFolder, Callable[[RunObserver], RunOutcome]], None]
MODES = ("torchrun",)


@dataclass(frozen=True, slots=True)
class TorchrunFlags:
    """torchrun's flags, from the command line or from PET_* variables."""

    nnodes: str | None
    nproc_per_node: str | None
    max_restarts: int | None

    @staticmethod
    def read(*, nnodes: str | None, nproc_per_node: str | None, max_restarts: int | None) -> TorchrunFlags:
        restarts = os.environ.get("PET_MAX_RESTARTS")
        if max_restarts is None and restarts is not None and not restarts.isdigit():
            raise UsageError(f"PET_MAX_RESTARTS={restarts!r} is no number of restarts")
        return TorchrunFlags(
            nnodes if nnodes is not None else os.environ.get("PET_NNODES"),
            nproc_per_node if nproc_per_node is not None else os.environ.get("PET_NPROC_PER_NODE"),
            max_restarts if max_restarts is not None else int(restarts) if restarts is not None else None,
        )

    def bounds(self, workers: tuple[int, int] | None, start: int | None) -> tuple[int, int, int | None]:
        """Minimum, maximum and initial number of workers. torchrun's number is the initial one; --workers, if given, bounds it."""
        one_node(self.nnodes)
        count = processes(self.nproc_per_node)
        if workers is not None:
            return workers[0], workers[1], start if start is not None else count
        if count is None:
            return 1, 1, start
        return 1, max(count, os.cpu_count() or 1), start if start is not None else count


def open_restarting(options: RunOptions) -> RunFolder:
    if options.checkpoints is not None:
        raise UsageError(
            "--checkpoint does not go with --restart-mode: the script saves and loads by itself "
            "(see stretto.on_save and docs/guides/restart-mode.md)"
        )
    options.validate()
    folder = create(options.runs, name=options.name, script=options.script)
    write_json(folder.request, {"name": folder.name, **options.to_dict(), "restart_mode": True, "version": VERSION})
    return folder


def run_restart_mode(options: RunOptions, folder: RunFolder, *, observer: RunObserver) -> RunOutcome:
    return asyncio.run(run_restarting(options, folder, observer=observer))


def replay_run(options: RunOptions, old: RunFolder, *, watch: Watch, quiet: bool) -> None:
    """Repeats the old run and compares the digests: if they differ, the exit code is 1."""
    document = replay.plan(old)
    options = replay.again(options, old)
    folder = open_run(options)
    replay.write_plan(document, folder)
    try:
        watch(folder, lambda observer: run(options, folder, observer=observer))
    except Exit as end:
        digest = (folder.read(folder.result) or {}).get("digest")
        same = replay.same(old, str(digest) if digest else None)
        if end.exit_code == 0 and same is False:
            print(
                f"error: the digest is not that of {old.name}: was the script, the data or the environment another?",
                file=sys.stderr,
            )
            raise Exit(1) from None
        if end.exit_code == 0 and same and not quiet:
            print(f"the same digest as {old.name}", file=sys.stderr)
        raise
