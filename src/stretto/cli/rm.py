"""`stretto rm`: forget ended jobs and remove their folders."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from stretto.cli.remote import Server, client


def command(
    jobs: Annotated[list[str], Argument(metavar="JOB…", help="Ids or names.", show_default=False)], *, server: Server = None
) -> None:
    with client(server) as ask:
        for job in jobs:
            ask.remove(job)
            print(f"{job} is removed")
