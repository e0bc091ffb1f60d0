"""`stretto rm`: forget ended jobs and remove their folders."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from stretto.cli.server_options import Out, OutputFormat, Server, client, show


def command(
    jobs: Annotated[list[str], Argument(metavar="JOB…", help="Ids or names.", show_default=False)],
    *,
    server: Server = None,
    output: Out = OutputFormat.TABLE,
) -> None:
    with client(server) as ask:
        found = [ask.job(job) for job in jobs]
        for job, asked in zip(found, jobs, strict=True):
            ask.remove(job.id)
            if output is OutputFormat.TABLE:
                print(f"{asked} is removed")
    show(found, output)
