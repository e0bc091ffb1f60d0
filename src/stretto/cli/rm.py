"""`stretto rm`: forget ended jobs and remove their folders."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from stretto.cli.remote import Out, Output, Server, client, show


def command(
    jobs: Annotated[list[str], Argument(metavar="JOB…", help="Ids or names.", show_default=False)],
    *,
    server: Server = None,
    output: Out = Output.TABLE,
) -> None:
    with client(server) as ask:
        found = [ask.job(job) for job in jobs]
        for job, asked in zip(found, jobs, strict=True):
            ask.remove(job.id)
            if output is Output.TABLE:
                print(f"{asked} is removed")
    show(found, output)
