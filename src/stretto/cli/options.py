"""Options that several verbs share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_type_hints

from typer import Argument, Context, Option

if TYPE_CHECKING:
    from stretto.agent.hosts.store_options import StoreOptions


T = TypeVar("T")


class OutputFormat(StrEnum):
    """How a verb prints its answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Run = Annotated[
    str,
    Argument(
        metavar="RUN", show_default=False, help="The run's name or its folder; its script's name for the last run of that script."
    ),
]
JobName = Annotated[str, Argument(metavar="JOB", help="The job's id or name.", show_default=False)]
Runs = Annotated[Path | None, Option("--runs", metavar="DIR", help="Folder of the runs [default: $STRETTO_RUNS or runs].")]
Json = Annotated[bool, Option("--json", help="Print JSON for scripts.")]
Output = Annotated[OutputFormat, Option("--output", "-o", help="Output format.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show only problems.")]
Wait = Annotated[float, Option(help="Maximum number of seconds to wait.")]

Server = Annotated[
    str | None, Option("--server", metavar="URL", help="The job server [default: $STRETTO_SERVER, or the saved login].")
]
Pin = Annotated[bool, Option("--pin", help="For a job of the server: exactly this number, whatever the policy decides.")]

Store = Annotated[
    str | None, Option("--store", metavar="URL", help="For a job on several hosts: the store that they share.", show_default=False)
]
StoreToken = Annotated[str | None, Option("--store-token", metavar="FILE", help="The store's secret.", show_default=False)]
StoreCa = Annotated[str | None, Option("--store-ca", metavar="FILE", help="The store's CA certificate.", show_default=False)]
StoreCert = Annotated[str | None, Option("--store-cert", metavar="FILE", help="A client certificate.", show_default=False)]
StoreKey = Annotated[str | None, Option("--store-key", metavar="FILE", help="The certificate's key.", show_default=False)]


def store_options(
    url: str, job: str | None, *, token: str | None, ca: str | None, cert: str | None, key: str | None
) -> StoreOptions:
    """The store of a verb's `--store…` options, checked."""
    from stretto.agent.hosts.store_options import StoreOptions

    options = StoreOptions(url, job or "any", token_file=token, ca=ca, certificate=cert, key=key)
    options.validate()
    return options


def output_format(json: bool, output: OutputFormat) -> OutputFormat:
    """`--json` is short for `-o json`."""
    return OutputFormat.JSON if json else output


def verb_of(table: Callable[..., T], run: Callable[[Context, T], None]) -> Callable[..., None]:
    """A verb whose options are the fields of a dataclass, for verbs with many: typer reads them as a function's parameters."""

    def command(context: Context, **values: object) -> None:
        run(context, table(**values))

    hints = get_type_hints(table, include_extras=True)
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    options = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in inspect.signature(table).parameters.items()
    ]
    command.__dict__["__signature__"] = inspect.Signature([context, *options])
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (context, *options)}
    return command
