"""Scripts on the command line of `run` and `submit`: launchers that stand where the script belongs, and flags behind it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from typer import Context
from typer.core import TyperOption

from stretto.core.errors import UsageError

PYTHON = re.compile(r"^(.*/)?python(3(\.\d+)?)?$")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun")
MOST_READ = 1 << 20


def check_launcher(script: str, args: Sequence[str], *, verb: str = "stretto run") -> None:
    """Refuses `stretto run python train.py` and its like, with the command that works."""
    if os.path.isfile(script):
        return
    if PYTHON.match(script):
        rest = list(args)
        while rest and rest[0] == "-u":
            rest = rest[1:]
        if rest and rest[0] == "-m":
            raise UsageError(no_module(rest[1] if len(rest) > 1 else "pkg.module", verb=verb))
        if rest and not rest[0].startswith("-"):
            raise UsageError(f"leave `{script}` out, stretto starts Python by itself: {verb} {shlex.join(rest)}")
        raise UsageError(f"`{script}` is not a script: name the training script, as in `{verb} train.py`")
    if Path(script).name in LAUNCHERS:
        raise UsageError(
            f"{script} is a launcher, not a script, and stretto takes its place: `{verb} --workers 4 train.py` for a "
            f"script that calls stretto.join, `{verb} --restart-mode torchrun --nproc-per-node 4 train.py` for one "
            "that torchrun can start"
        )


def no_module(module: str, *, verb: str = "stretto run") -> str:
    """The message for `-m pkg.module`."""
    path = module.replace(".", "/") + ".py"
    return (
        f"-m {module}: stretto runs script files, not modules: `{verb} {path}`; if the module needs its package, run a file "
        f"that says: import runpy; runpy.run_module({module!r}, run_name='__main__')"
    )


def stray_flags(context: Context, script: str, args: Sequence[str]) -> list[str]:
    """The words behind the script that look like options of ours: `["--workers", "4"]`.

    Not those that the script declares itself (its text has the quoted flag), and not those that were also given in front of it.
    """
    given = _given(context)
    ours = {
        name: option
        for option in context.command.params
        if isinstance(option, TyperOption) and not option.hidden and option.name not in given
        for name in (*option.opts, *option.secondary_opts)
        if name not in ("--help", "-h")
    }
    text, strays = _text(script), list[str]()
    for place, word in enumerate(args):
        flag = word.partition("=")[0]
        if word == "--":
            break
        if flag not in ours or f'"{flag}"' in text or f"'{flag}'" in text:
            continue
        strays.append(word)
        if "=" not in word and not ours[flag].is_flag and place + 1 < len(args):
            strays.append(args[place + 1])
    return strays


def _given(context: Context) -> list[str]:
    """The names of the options given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def stray_hint(verb: str, rest: str, strays: Sequence[str], *, name: str | None = None) -> str:
    """`rest` is what follows the options: the script, for `submit` with what leads to it."""
    words = shlex.join(strays)
    return f"{words} after {name or rest} goes to the script; put it before: {verb} {words} {rest}"


def own_frames(traceback: str) -> str:
    """A script's traceback from its first line on, without the frames that started it."""
    lines, kept = traceback.splitlines(), list[str]()
    ours = False
    for line in lines:
        if line.startswith('  File "'):
            ours = "<frozen runpy>" in line or "/stretto/train/entry/script_runner.py" in line
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return "\n".join(kept)


def _text(script: str) -> str:
    try:
        with open(script, encoding="utf-8", errors="replace") as file:
            return file.read(MOST_READ)
    except OSError:
        return ""
