"""`stretto cancel`: a job of the server."""

from __future__ import annotations

from stretto.cli import jobs
from stretto.cli.remote import JobName, Out, Output, Server


def command(job: JobName, *, server: Server = None, output: Out = Output.TABLE) -> None:
    jobs.change(server, job, "cancel", output=output)
