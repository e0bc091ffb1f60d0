"""`stretto attach`: shows again what the hosts of a job say that was started with `stretto run --hosts`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from stretto.cli.common import Runs
from stretto.cli.hosts import attach, show_console


def command(
    job: Annotated[str, Argument(metavar="JOB", help="The job's name.", show_default=False)],
    *,
    runs: Runs = None,
    console: Annotated[str | None, Option(hidden=True)] = None,
    pid: Annotated[int, Option(hidden=True)] = 0,
    tail: Annotated[int, Option(hidden=True)] = 0,
) -> None:
    if console is not None:
        return show_console(console, pid, tail=tail)
    attach(job, runs=runs)
