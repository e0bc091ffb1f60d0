"""`stretto policies`: who decides, and what another policy would have done."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from stretto.cli.server_options import Out, OutputFormat, Server, client, show, span, table


def command(
    *,
    use: Annotated[str | None, Option(metavar="NAME", help="Decide with this one from now on.", show_default=False)] = None,
    what_if: Annotated[str | None, Option(metavar="NAME", help="Replay the last hours under this one.", show_default=False)] = None,
    hours: Annotated[float, Option(help="Of --what-if.")] = 6.0,
    server: Server = None,
    output: Out = OutputFormat.TABLE,
) -> None:
    with client(server) as ask:
        if what_if is not None:
            answer = ask.what_if(what_if, hours=hours)
            if not show(answer, output):
                print(answer.sentence)
                rows = [
                    (one.policy, span(one.average_s), span(one.median_s), span(one.p99_s), f"{one.utilisation:.0%}")
                    for one in (answer.baseline, answer.other)
                ]
                table(("policy", "average", "median", "p99", "used"), rows)
            return
        found = ask.use_policy(use) if use is not None else ask.policies()
    if not show(found, output):
        table(("policy", "", "what it is"), [(one.name, "decides" if one.active else "", one.text) for one in found.items])
