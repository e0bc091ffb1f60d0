"""`stretto pause`: a job of the server."""

from __future__ import annotations

from stretto.cli import server_commands
from stretto.cli.server_options import JobName, Out, OutputFormat, Server


def command(job: JobName, *, server: Server = None, output: Out = OutputFormat.TABLE) -> None:
    server_commands.change(server, job, "pause", output=output)
