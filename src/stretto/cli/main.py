"""The `stretto` command. Verbs are loaded when they are called, so help is quick and loads no torch."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer
import typer.core
import typer.main

from stretto.cli.usage import Misuse, Sectioned, message, no_verb
from stretto.cli.verbs import VERBS
from stretto.core.errors import StrettoError, UsageError

USAGE = 2


class LazyVerbs(typer.core.TyperGroup):
    """Knows every verb by name and imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        return self.commands.get(cmd_name) or typer.core.TyperCommand(cmd_name, help=VERBS[cmd_name].help)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, ["version", *args[1:]] if args[:1] in (["--version"], ["-V"]) else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in VERBS:
            self.commands[args[0]] = load(args[0])
        elif args and not args[0].startswith("-"):
            raise UsageError(no_verb(args))
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """Imports the verb and returns its command. A missing extra gives an error that names it."""
    verb = VERBS[name]
    try:
        module = importlib.import_module(verb.module)
    except ModuleNotFoundError as error:
        if not verb.extra or (error.name or "").startswith("stretto"):
            raise
        raise UsageError(
            f"`stretto {name}` needs {error.name}, which is not installed: pip install 'stretto[{verb.extra}]'"
        ) from error
    target = getattr(module, verb.function)
    if isinstance(target, typer.Typer):
        app = target
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = {"allow_interspersed_args": False} if verb.script else None
        app.command(name, help=verb.help, cls=Sectioned, context_settings=settings)(target)
    command = typer.main.get_command(app)
    command.name = name
    return command


def group() -> LazyVerbs:
    return LazyVerbs(
        name="stretto",
        help="Train PyTorch models on a number of workers that may change at any step: nobody stops, and the model comes out "
        "the same, bit for bit.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder does not exist any more: cd to another one") from None


def main() -> None:
    """Exit codes: 0 done, 1 the job failed or a check did not hold, 2 a mistake in the call."""
    try:
        _check_folder()
        code = group().main(prog_name="stretto", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except Misuse as error:
        print(message(error), file=sys.stderr)
        sys.exit(USAGE)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE)
    except StrettoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads the output any more
        sys.exit(1)


if __name__ == "__main__":
    main()
