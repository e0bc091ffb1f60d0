"""`stretto run --replay RUN`: a run once more, with its batch plan, on any number of workers."""

from __future__ import annotations

import sys
from collections.abc import Callable

from typer import Exit

from stretto.agent.options import RunOptions
from stretto.agent.outcome import RunOutcome
from stretto.agent.records import replay
from stretto.agent.records.recorder import RunObserver
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.run import open_run, run

Watch = Callable[[RunFolder, Callable[[RunObserver], RunOutcome]], None]


def again(options: RunOptions, old: RunFolder, *, watch: Watch, quiet: bool) -> None:
    """Repeats the old run and says whether it came out the same: another digest is exit code 1."""
    document = replay.plan(old)
    options = replay.again(options, old)
    folder = open_run(options)
    replay.write_plan(document, folder)
    try:
        watch(folder, lambda observer: run(options, folder, observer=observer))
    except Exit as end:
        result = folder.read(folder.result) or {}
        same = replay.same(old, result.get("digest"))
        if end.exit_code == 0 and same is False:
            print(
                f"error: the digest is not that of {old.name}: was the script, the data or the environment another?",
                file=sys.stderr,
            )
            raise Exit(1) from None
        if end.exit_code == 0 and same and not quiet:
            print(f"the same digest as {old.name}", file=sys.stderr)
        raise
