"""Checks that the files and programs of a job exist: before it is queued, not when it starts."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from stretto.clusters.base import Workload

PYTHON = re.compile(r"^(.*/)?python(3(\.(\d+))?)?$")


def find_missing(workload: Workload, workdir: str | None, *, env: Mapping[str, str], scripts: bool = True) -> str | None:
    """The first thing that a job lacks, with the fix; None if nothing is missing. Scripts are checked only with `scripts`."""
    if workdir is not None and not os.path.isdir(workdir):
        kind = "is a file, not a folder" if os.path.exists(workdir) else "does not exist on the server's machine"
        return f"workdir: {workdir} {kind}: make it, or change workdir"
    if workload.command and (text := _missing_program(workload.command[0], workdir, env)) is not None:
        return text
    if not scripts:
        return None
    if workload.python and (text := _wrong_python(workload.python, workdir)) is not None:
        return text
    script = _script(workload)
    return _missing_script(script, workdir) if script is not None else None


def uses_restart_mode(workload: Workload) -> bool:
    """Whether it is `stretto run --restart-mode …`: such a script saves its own checkpoints."""
    return any(word.partition("=")[0] == "--restart-mode" for word in _options(workload))


def _wrong_python(word: str, workdir: str | None) -> str | None:
    """Why a named interpreter is not the one that would run the script: the server's own."""
    match = PYTHON.match(word)
    if match is None:
        return None
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder, minor = match.group(1), match.group(4)
    if folder and Path(workdir or ".", folder).resolve() != Path(sys.executable).parent.resolve():
        return f"run: {word} is not the server's Python ({sys.executable}), which runs all scripts: write `python`"
    if minor and f"3.{minor}" != own:
        return f"run: {word} is not the server's Python {own}, which runs all scripts: write `python`"
    return None


def _missing_program(program: str, workdir: str | None, env: Mapping[str, str]) -> str | None:
    if "/" in program:
        path = os.path.join(workdir or "", program)
        if os.path.isabs(path) and not os.path.isfile(path):
            return f"run: {path} does not exist on the server's machine: name a script or a program"
        return None
    if shutil.which(program, path=env.get("PATH")) is None:
        return f"run: the server finds no program {program!r}: install it, or name a script, as in [python, train.py]"
    return None


def _script(workload: Workload) -> str | None:
    """The script's file, where it can be told from the options before it."""
    return (
        workload.script[0]
        if workload.script and not workload.script[0].startswith("-")
        else next((word for word in workload.script if word.endswith(".py")), None)
    )


def _options(workload: Workload) -> tuple[str, ...]:
    """The words before the script."""
    for index, word in enumerate(workload.script):
        if word.endswith(".py"):
            return workload.script[:index]
    return workload.script


def _missing_script(script: str, workdir: str | None) -> str | None:
    if not os.path.isabs(script) and workdir is None:
        return f"run: {script} is a relative path, and the job has no workdir: add `workdir: /its/folder`, or write the whole path"
    path = os.path.join(workdir or "", script)
    if os.path.isdir(path):
        return f"run: {path} is a folder, not a script: name the training script"
    if not os.path.isfile(path):
        return f"run: {path} does not exist on the server's machine: name the training script, relative to workdir or whole"
    if not os.access(path, os.R_OK):
        return f"run: {path} may not be read by the server's user: change its permissions"
    return None
