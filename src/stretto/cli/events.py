"""`stretto events`: what happened to a job, or to all."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from typer import Argument, Option

from stretto.cli.server_options import Out, OutputFormat, Server, client, show, show_next


def command(
    job: Annotated[
        str | None, Argument(metavar="[JOB]", help="The job's id or name; all jobs without one.", show_default=False)
    ] = None,
    *,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on with what happens.")] = False,
    server: Server = None,
    output: Out = OutputFormat.TABLE,
) -> None:
    with client(server) as ask:
        after, items = 0, []
        while page := ask.events(job, after=after).items:
            items += page
            after = page[-1].id
        if not follow and show(items, output):
            return
        for event in items:
            line(event.model_dump(mode="json"), output)
        if follow:
            wanted = ask.resolve(job) if job else None
            for frame in ask.stream(last_event_id=after):
                if frame.kind == "event" and wanted in (None, frame.data["job"]):
                    line(frame.data, output)


def line(event: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        print(f"{datetime.datetime.fromtimestamp(event['t']):%H:%M:%S}  {event['kind']:<11} {event['text']}", flush=True)
    else:
        show_next(event, output)
