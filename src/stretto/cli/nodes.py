"""`stretto nodes`: the cluster's nodes, and taking one out of use."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from stretto.cli.server_options import Out, OutputFormat, Server, client, show, table


def command(
    *,
    cordon: Annotated[
        str | None, Option(metavar="NODE", help="It gets no workers any more and loses those it has.", show_default=False)
    ] = None,
    uncordon: Annotated[str | None, Option(metavar="NODE", help="It takes workers again.", show_default=False)] = None,
    server: Server = None,
    output: Out = OutputFormat.TABLE,
) -> None:
    with client(server) as ask:
        if cordon is not None:
            ask.cordon(cordon)
        if uncordon is not None:
            ask.cordon(uncordon, cordoned=False)
        found = ask.nodes()
        names = {one.job: one.name for one in ask.allocation().items}
    if not show(found, output):
        rows = [
            (one.name, one.type, f"{one.used}/{one.slots}", "cordoned" if one.cordoned else "ready", _jobs(one.jobs, names))
            for one in found.items
        ]
        table(("node", "type", "used", "state", "jobs"), rows)


def _jobs(jobs: dict[str, int], names: dict[str, str]) -> str:
    return ", ".join(f"{names.get(job, job)} ({count})" for job, count in jobs.items()) or "-"
