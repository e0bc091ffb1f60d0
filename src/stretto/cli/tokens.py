"""`stretto tokens`: who may use the server."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from stretto.cli.options import Output, OutputFormat, Server
from stretto.cli.printing import ago, show, span, table
from stretto.cli.targets import client

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Tokens of the job server.")

Id = Annotated[str, typer.Argument(metavar="TOKEN", help="Its id (t-…).", show_default=False)]


@app.command("list")
def list_tokens(*, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """All tokens, without their secrets."""
    import time

    with client(server) as ask:
        found = ask.tokens()
    if not show(found, output):
        rows: list[tuple[object, ...]] = []
        for one in found.items:
            ends = (
                "revoked" if one.revoked_at else "never" if one.expires_at is None else span(max(0.0, one.expires_at - time.time()))
            )
            rows.append((one.id, one.name, one.scope, one.tenant, ago(one.created_at), ago(one.used_at), ends))
        table(("id", "name", "scope", "tenant", "age", "used", "expires"), rows)


@app.command("create")
def create(
    name: str,
    *,
    scope: Annotated[str, Option(help="viewer, submitter or admin.")] = "submitter",
    tenant: Annotated[str, Option(help="Whose jobs it sees.")] = "default",
    hours: Annotated[float | None, Option(help="Until it expires [default: never].", show_default=False)] = None,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """A new token. Its secret is shown once."""
    with client(server) as ask:
        made = ask.create_token(name, scope=scope, tenant=tenant, expires_s=None if hours is None else hours * 3600)
    if not show(made, output):
        print(made.secret)


@app.command("revoke")
def revoke(token: Id, *, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """From now on it is refused."""
    with client(server) as ask:
        ask.revoke_token(token)
        found = [one for one in ask.tokens().items if one.id == token]
    if not show(found, output):
        print(f"{token} is revoked")
