"""Verbs that mean a local run or a job of the server: which of the two, and one command line for both.

`--server` or STRETTO_SERVER says the server, `--runs` says local. Otherwise a local run of that name comes first,
then the server of the saved login, if it answers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from stretto.cli.common import as_yaml, runs_folder
from stretto.cli.server_options import Out, OutputFormat, Server, known_server, named_server
from stretto.core.errors import UsageError

Command = Callable[..., Any]
Pin = Annotated[bool, Option("--pin", help="Of a job of the server: exactly this many, whatever the policy thinks.")]


def either(local: Command, remote: str) -> Command:
    """The local command with the server's options; `remote` is the function of `cli/server_commands.py` for the server's side."""
    signature = inspect.signature(local, eval_str=True)
    own = list(signature.parameters.values())
    added = {"server": (Server, None), "output": (Out, OutputFormat.TABLE)} | ({"pin": (Pin, False)} if remote == "scale" else {})
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in added.items()
    ]

    def command(**given: Any) -> Any:
        options = {name: given.pop(name) for name in added}
        if not ask_server(options["server"], given.get("runs"), given.get("run")):
            done = local(**_written(given, options["output"]))
            if remote == "ps" and given["runs"] is None and options["output"] is OutputFormat.TABLE:
                _mention()
            return done
        from stretto.cli import server_commands

        output = OutputFormat.JSON if given.pop("json", False) else options["output"]
        return getattr(server_commands, remote)(**{**given, **options, "output": output})

    command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in [*own, *more]}
    command.__doc__ = local.__doc__
    return command


def _written(given: dict[str, Any], output: OutputFormat) -> dict[str, Any]:
    """What a verb of local runs is given so that it writes as `-o` says."""
    if output is OutputFormat.TABLE:
        return given
    if "json" not in given:
        raise UsageError(f"-o {output}: a local run's logs are text; leave -o away")
    as_yaml.set(output is OutputFormat.YAML)
    return {**given, "json": True}


def _mention() -> None:
    """`ps` without a name shows local runs where there are some: jobs of a server are not to be overlooked for that."""
    if known_server(None) and answers():
        from stretto.cli.server_options import client

        with client(None) as ask:
            url, jobs = ask.url, ask.overview().jobs
        count = sum(number for state, number in jobs.items() if not state.ended)
        if count:
            those = "1 job that has" if count == 1 else f"{count} jobs that have"
            print(f"the server {url} has {those} not ended: stretto ps --server {url}", file=sys.stderr)


def ask_server(server: str | None, runs: Path | None, run: str | None) -> bool:
    if named_server(server):
        return True
    if runs is not None or not known_server(server):
        return False
    if run is not None and any((path / "run.json").is_file() for path in (runs_folder(None) / run, Path(run))):
        return False
    if run is None and runs_folder(None).is_dir():
        return False
    if answers():
        return True
    print("the server of the saved login does not answer, so these are local runs: is `stretto serve` running?", file=sys.stderr)
    return False


def answers() -> bool:
    """Whether the server of the saved login is there: a login outlives its server."""
    from stretto.server.client import Client, ServerError

    try:
        with Client(timeout_s=3.0) as client:
            client.overview()
        return True
    except ServerError:
        return False
