"""`stretto serve`: the job server."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

from typer import Option


def command(
    *,
    home: Annotated[
        Path,
        Option(
            help="Database, run folders and the saved login. Clients look for the login in $STRETTO_HOME: set it there too.",
            envvar="STRETTO_HOME",
        ),
    ] = Path("~/.stretto"),
    database: Annotated[str | None, Option(metavar="URL", help="sqlite:///file or postgresql://… [default: in the home].")] = None,
    host: Annotated[str, Option(help="The address to listen on; any but loopback needs TLS.")] = "127.0.0.1",
    port: Annotated[int, Option(help="The port; 0 for any free one.")] = 8787,
    tls_cert: Annotated[Path | None, Option(help="PEM file.", show_default=False)] = None,
    tls_key: Annotated[Path | None, Option(help="PEM file.", show_default=False)] = None,
    allowed_host: Annotated[list[str] | None, Option(help="Another host name of this server.", show_default=False)] = None,
    slots: Annotated[int | None, Option(help="Slots per node [default: its GPUs, or its cores].", show_default=False)] = None,
    nodes: Annotated[int | None, Option(help="Nodes on this machine [default: 1].", show_default=False)] = None,
    price: Annotated[float | None, Option(help="Price per slot and hour [default: 0].", show_default=False)] = None,
    cluster: Annotated[
        str, Option(metavar="NAME", help="Where jobs run: `local`, a name that a package has registered, or module:attribute.")
    ] = "local",
    cluster_option: Annotated[
        list[str] | None,
        Option(metavar="KEY=VALUE", help="An option of the cluster; local: nodes, slots, price, nodes-file.", show_default=False),
    ] = None,
    policy: Annotated[str | None, Option(help="The policy [default: the last one chosen, or goodput].", show_default=False)] = None,
    interval: Annotated[float, Option(help="Seconds between decisions.")] = 10.0,
    policy_timeout: Annotated[float, Option(help="Seconds that a decision may take.")] = 5.0,
    quota: Annotated[int | None, Option(help="Maximum number of slots per tenant.", show_default=False)] = None,
    cooldown: Annotated[float, Option(help="Seconds after a resize in which a job is not grown again.")] = 5.0,
) -> None:
    from stretto.clusters.registry import parse_options
    from stretto.server.serve import serve
    from stretto.server.settings import ServerSettings

    serve(
        ServerSettings(
            home=home,
            database=database,
            host=host,
            port=port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            allowed_hosts=tuple(allowed_host or ()),
            slots=slots,
            nodes=nodes,
            price=price,
            cluster=cluster,
            cluster_options=parse_options(tuple(cluster_option or ())),
            policy=policy,
            interval_s=interval,
            policy_timeout_s=policy_timeout,
            quota=quota,
            cooldown_s=cooldown,
        ),
        say=lambda url, token: print("\n".join(_opening(url, token, home)), flush=True),
    )


def _opening(url: str, token: str, home: Path) -> list[str]:
    """What the server says when it listens. Clients look in another home than one that was given by hand: what to set is said."""
    from stretto.server import VERSION

    lines = [f"stretto {VERSION}: {url}/#token={token}", f"token: {token}"]
    usual = Path(os.environ.get("STRETTO_HOME") or "~/.stretto").expanduser().absolute()
    if home.expanduser().absolute() != usual:
        lines.append(f"for clients: export STRETTO_HOME={shlex.quote(str(home.expanduser().absolute()))}")
    return lines
