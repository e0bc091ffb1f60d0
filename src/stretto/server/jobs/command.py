"""What a job's `run` means: a script that stretto launches, a command as it is, or a text for the shell.

`python train.py …` is an elastic script, as a list and as a text; the interpreter is always the server's own. What stretto cannot
scale is one plain process with a fixed number of slots: `note` says so wherever the job is shown, unless the job file says
`plain: true`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from stretto.clusters.base import Workload
from stretto.server.models import JobState
from stretto.server.spec import Elastic, JobSpec

PYTHON = re.compile(r"^(.*/)?python(3(\.\d+)?)?$")
SHELL = re.compile(r"[|&;<>()$`\\*?\[\]{}~#!\n]")
"""What only a shell understands."""
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun"})
INSIDE = re.compile(r"(^|[\s;&|(])stretto\s+run\s")
"""A shell text whose elastic part is a `stretto run`."""
STARTS = re.compile(r"python[\d.]*\s+(?:-u\s+)?([^\s|&;<>()]+\.py)")
"""A script that a shell text starts by itself."""
NEVER_JOINED = "nothing of it ever joined (stretto.join under `stretto run`): nothing was elastic"
MOST_SHOWN = 60


def work_of(spec: JobSpec) -> Workload:
    """`python train.py …`, `train.py …` and `stretto run train.py …` are elastic; everything else is one plain process."""
    words = _words(spec)
    if words and not spec.plain and (script := _script(words)):
        return Workload(script=script, python=words[0] if PYTHON.match(words[0]) else "")
    return Workload(shell=spec.run) if isinstance(spec.run, str) else Workload(command=tuple(spec.run))


def scales(spec: JobSpec) -> bool:
    """Whether the job's number of workers can change."""
    work = work_of(spec)
    return work.elastic or (bool(INSIDE.search(work.shell)) and not spec.plain)


def refusal(spec: JobSpec) -> str | None:
    """Why a command is refused: it looks like training that would silently run on one fixed worker."""
    words = None if spec.plain else _words(spec)
    if not words or _script(words):
        return None
    meant = "or say `plain: true` to run it as it is, as one process that is never scaled"
    rest = _without_flags(words[1:])
    if PYTHON.match(words[0]) and rest[:1] == ["-m"]:
        module = rest[1] if len(rest) > 1 else "pkg.module"
        file = f"{module.replace('.', '/')}.py"
        return (
            f"`{_shown(words)}`: stretto runs script files, not modules: write [python, {file}], or a file that says `import "
            f"runpy; runpy.run_module({module!r}, run_name='__main__')`; {meant}"
        )
    if Path(words[0]).name in LAUNCHERS:
        return (
            f"`{_shown(words)}`: stretto takes the place of {Path(words[0]).name}: write [python, train.py] for a script that "
            f"calls stretto.join, [stretto, run, --restart-mode, torchrun, train.py] for one that torchrun can start; {meant}"
        )
    return None


def note(spec: JobSpec, *, state: JobState, steps: int) -> str:
    """A warning about a command that stretto cannot scale; empty if there is none."""
    finished = state is JobState.FINISHED
    if spec.plain or work_of(spec).elastic or (scales(spec) and (steps or not finished)) or (state.ended and not finished):
        return ""
    if finished:
        return NEVER_JOINED
    shown = _shown(spec.run.split() if isinstance(spec.run, str) else spec.run)
    inside = STARTS.search(spec.run) if isinstance(spec.run, str) else None
    fix = f"write `stretto run {inside[1]}` in it for `{inside[0]}`" if inside else "write `run: [python, train.py]`"
    return f"`{shown}` is not a stretto script: one plain process, never scaled; {fix}, or `plain: true` if that is meant"


def loader_environment(elastic: Elastic) -> dict[str, str]:
    """The environment that overrides arguments of the training loader. `fixed` leaves the batch to the script."""
    slices = {"STRETTO_SLICES": str(elastic.slices)} if elastic.slices is not None else {}
    return slices if elastic.batch == "fixed" else {**slices, "STRETTO_BATCH": elastic.batch}


def _words(spec: JobSpec) -> list[str] | None:
    """The argument list; of a text, if it is one simple command that needs no shell."""
    if not isinstance(spec.run, str):
        return list(spec.run)
    text = spec.run.strip()
    if SHELL.search(text):
        return None
    try:
        return shlex.split(text)
    except ValueError:
        return None


def _script(words: list[str]) -> tuple[str, ...]:
    """The script and its arguments; empty if the command is none."""
    if words[:2] == ["stretto", "run"]:
        return tuple(words[2:])
    if PYTHON.match(words[0]):
        rest = _without_flags(words[1:])
        return tuple(rest) if rest and not rest[0].startswith("-") else ()
    return tuple(words) if words[0].endswith(".py") else ()


def _without_flags(words: list[str]) -> list[str]:
    """Without `-u`, which changes nothing: a worker's output is not buffered."""
    while words[:1] == ["-u"]:
        words = words[1:]
    return words


def _shown(words: list[str]) -> str:
    text = " ".join(words)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
