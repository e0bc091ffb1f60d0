"""Help in sections, and messages about mistakes: one sentence with the value and the fix."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, cast

import typer
import typer.core
from typer.core import TyperArgument, TyperOption

from stretto.cli.scripts import no_module
from stretto.cli.verbs import VERBS
from stretto.core.errors import UsageError

Misuse: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's own exception for a wrong call. typer exports only this subclass of it."""
EXPECTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}


class Details(TypedDict, total=False):
    """One mistake, as pydantic describes it."""

    input: object
    type: str
    ctx: dict[str, object]


def message(error: Any) -> str:
    """The text to print: the help if a verb was called without arguments, else the mistake and its fix."""
    return str(error.format_message()) if type(error).__name__ == "NoArgsIsHelpError" else f"error: {sentence(error)}"


def closest(word: str, known: Iterable[str]) -> str | None:
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def no_verb(words: Sequence[str]) -> str:
    """For a first word that is no verb: the verb that was probably meant, or the one that runs a script or submits a job file."""
    word = words[0]
    if word.endswith(".py"):
        return f"{word!r} is not a verb: did you mean `stretto run {shlex.join(words)}`?"
    if word.endswith((".yaml", ".yml")):
        return f"{word!r} is not a verb: did you mean `stretto submit {shlex.join(words)}`?"
    meant = closest(word.lower(), VERBS)
    return f"there is no verb {word!r}: " + (f"did you mean `stretto {meant}`?" if meant else "see `stretto --help`")


def sentence(error: Any) -> str:
    """One sentence for an error of the parser."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "stretto"
    if hasattr(error, "possibilities"):
        return _no_option(error, command)
    if type(error).__name__ == "MissingParameter":
        return f"`{command}` needs {_described(error.param)}: {_usage(error.ctx)}"
    if isinstance(error, typer.BadParameter) and error.param is not None:
        return _bad_value(error, cast("TyperArgument | TyperOption", error.param))
    text = str(error.format_message()).strip().rstrip(".")
    if "Did you mean" in text:
        return f"{text[:1].lower()}{text[1:]}".replace(". Did", ": did")
    return f"{text[:1].lower()}{text[1:]}; see `{command} --help`"


def _no_option(error: Any, command: str) -> str:
    flag = error.option_name
    if flag[1:].isdigit():
        return f"{flag} is a negative number: `{command}` takes none"
    if error.ctx is not None and error.ctx.parent is None:
        return f"stretto itself has no option {flag}: options follow the verb, as in `stretto run --workers 4 train.py`"
    known = [name for parameter in error.ctx.command.params for name in parameter.opts] if error.ctx is not None else []
    meant = closest(flag, known)
    fix = f"did you mean {meant}?" if meant else f"see `{command} --help`"
    if command.endswith(" submit") and meant is None:
        fix = "if it belongs to the script, put -- before the command: stretto submit -- python train.py " + flag
    return f"`{command}` has no option {flag}: {fix}"


def _bad_value(error: typer.BadParameter, parameter: TyperArgument | TyperOption) -> str:
    """`--threads 'x' is not a whole number: …`. The parser's own words only where they say more."""
    name, value, kind = _named(parameter), None, ""
    details = getattr(error.__cause__, "errors", None)
    if callable(details):
        mistakes = cast("list[Details]", details())
        first = mistakes[0] if mistakes else Details()
        value, kind = first.get("input"), first.get("type", "")
        expected = first.get("ctx", {}).get("expected")
        if expected:
            return f"{name} {value!r} is unknown: choose {str(expected).replace(chr(39), '')}"
    for prefix, words in EXPECTED.items():
        if value is not None and kind.startswith(prefix):
            return f"{name} {value!r} is not {words}"
    return f"{name}: {str(error.message).removeprefix('Value error, ').strip().rstrip('.')}"


def _named(parameter: TyperArgument | TyperOption) -> str:
    """`--threads`, or an argument's name as the usage line writes it."""
    if isinstance(parameter, TyperArgument):
        return str(parameter.metavar or str(parameter.name).upper())
    return max(parameter.opts, key=len)


def _described(parameter: TyperArgument | TyperOption) -> str:
    """`WORKERS (the new number of workers)`."""
    text = (parameter.help or "").rstrip(".")
    return f"{_named(parameter)} ({text[:1].lower()}{text[1:]})" if text else _named(parameter)


def _usage(context: typer.Context) -> str:
    return "`" + " ".join(context.get_usage().removeprefix("Usage: ").replace("{", "").replace("}", "").split()) + "`"


SECTIONS = {
    "Checkpoints": ("checkpoint", "checkpoint_every", "keep"),
    "Sizing": ("autoscale", "price", "worth", "stragglers"),
    "Several hosts": (
        "store",
        "job",
        "hosts",
        "slots",
        "interface",
        "host",
        "lease",
        "fence",
        "store_token",
        "store_ca",
        "store_cert",
        "store_key",
    ),
    "Restart mode": ("restart_mode", "nproc_per_node", "nnodes", "standalone"),
    "Job server": ("server", "pin"),
}
"""Options of the verbs that train or look at runs, by their parameters' names; all others are plain options."""


class Sectioned(typer.core.TyperCommand):
    """A verb with many options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Misuse as error:
            # What follows a module's name is the module's own, and no option of ours that is misspelt.
            flag = str(getattr(error, "option_name", ""))
            if "-m" in words[:-1] and flag in words and words.index("-m") < words.index(flag) and self.name == "run":
                raise UsageError(no_module(words[words.index("-m") + 1])) from None
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        titles = {name: title for title, names in SECTIONS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *SECTIONS)}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else titles.get(parameter.name or "", "Options")
                rows[title].append(row)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
