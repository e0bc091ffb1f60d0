"""Verbs that show the server itself: nodes, policies, events, tokens."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from stretto.cli.options import Output, OutputFormat, Server
from stretto.cli.printing import ago, show, show_next, span, table
from stretto.cli.targets import client

if TYPE_CHECKING:
    from stretto.server.models import Event


def nodes(
    *,
    cordon: Annotated[
        str | None,
        Option(metavar="NODE", help="Take the node out of use: it gets no new workers and loses those it has.", show_default=False),
    ] = None,
    uncordon: Annotated[str | None, Option(metavar="NODE", help="Put the node back into use.", show_default=False)] = None,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Lists the cluster's nodes, and takes one out of use or back."""
    with client(server) as api:
        if cordon is not None:
            api.cordon(cordon)
        if uncordon is not None:
            api.cordon(uncordon, cordoned=False)
        listing = api.nodes()
        names = {item.job: item.name for item in api.allocation().items}
    if not show(listing, output):
        rows = [
            (item.name, item.type, f"{item.used}/{item.slots}", "cordoned" if item.cordoned else "ready", _jobs(item.jobs, names))
            for item in listing.items
        ]
        table(("node", "type", "used", "state", "jobs"), rows)


def _jobs(jobs: dict[str, int], names: dict[str, str]) -> str:
    return ", ".join(f"{names.get(job, job)} ({count})" for job, count in jobs.items()) or "-"


def policies(
    *,
    use: Annotated[str | None, Option(metavar="NAME", help="Switch to this policy.", show_default=False)] = None,
    what_if: Annotated[
        str | None, Option(metavar="NAME", help="Replay the last hours under this policy.", show_default=False)
    ] = None,
    hours: Annotated[float, Option(help="With --what-if: hours to replay.")] = 6.0,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Lists policies, chooses one, or replays the last hours under another."""
    with client(server) as api:
        if what_if is not None:
            answer = api.what_if(what_if, hours=hours)
            if not show(answer, output):
                print(answer.sentence)
                rows = [
                    (
                        outcome.policy,
                        span(outcome.average_s),
                        span(outcome.median_s),
                        span(outcome.p99_s),
                        f"{outcome.utilisation:.0%}",
                    )
                    for outcome in (answer.baseline, answer.other)
                ]
                table(("policy", "average", "median", "p99", "used"), rows)
            return
        answer = api.use_policy(use) if use is not None else api.policies()
    if not show(answer, output):
        table(("policy", "", "what it is"), [(item.name, "decides" if item.active else "", item.text) for item in answer.items])


def events(
    job: Annotated[
        str | None, Argument(metavar="[JOB]", help="The job's id or name [default: all jobs].", show_default=False)
    ] = None,
    *,
    follow: Annotated[bool, Option("--follow", "-f", help="Keep printing new events.")] = False,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Prints the events of one job or of all jobs."""
    with client(server) as api:
        after = 0
        items: list[Event] = []
        while page := api.events(job, after=after).items:
            items += page
            after = page[-1].id
        if not follow and show(items, output):
            return
        for event in items:
            print_event(event.model_dump(mode="json"), output)
        if follow:
            wanted = api.resolve(job) if job else None
            for frame in api.stream(last_event_id=after):
                if frame.kind == "event" and wanted in (None, frame.data["job"]):
                    print_event(frame.data, output)


def print_event(event: Mapping[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        print(f"{datetime.datetime.fromtimestamp(event['t']):%H:%M:%S}  {event['kind']:<11} {event['text']}", flush=True)
    else:
        show_next(event, output)


tokens = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Tokens of the job server.")

Id = Annotated[str, typer.Argument(metavar="TOKEN", help="Its id (t-…).", show_default=False)]


@tokens.command("list")
def list_tokens(*, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """Lists all tokens, without their secrets."""
    import time

    with client(server) as api:
        answer = api.tokens()
    if not show(answer, output):
        rows: list[tuple[object, ...]] = []
        for token in answer.items:
            ends = (
                "revoked"
                if token.revoked_at
                else "never"
                if token.expires_at is None
                else span(max(0.0, token.expires_at - time.time()))
            )
            rows.append((token.id, token.name, token.scope, token.tenant, ago(token.created_at), ago(token.used_at), ends))
        table(("id", "name", "scope", "tenant", "age", "used", "expires"), rows)


@tokens.command("create")
def create(
    name: str,
    *,
    scope: Annotated[str, Option(help="viewer, submitter or admin.")] = "submitter",
    tenant: Annotated[str, Option(help="The tenant whose jobs it may see.")] = "default",
    hours: Annotated[float | None, Option(help="Hours until it expires [default: never].", show_default=False)] = None,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Creates a token. Its secret is shown once."""
    with client(server) as api:
        made = api.create_token(name, scope=scope, tenant=tenant, expires_s=None if hours is None else hours * 3600)
    if not show(made, output):
        print(made.secret)


@tokens.command("revoke")
def revoke(token: Id, *, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """Revokes a token: the server refuses it from now on."""
    with client(server) as api:
        api.revoke_token(token)
        revoked = [item for item in api.tokens().items if item.id == token]
    if not show(revoked, output):
        print(f"{token} is revoked")
