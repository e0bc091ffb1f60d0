"""What a job's `run` means: a script that stretto launches, a command as it is, or a text for the shell."""

from __future__ import annotations

import re

from stretto.clusters.base import Work
from stretto.server.spec import Elastic, JobSpec

PYTHON = re.compile(r"^(.*/)?python(3(\.\d+)?)?$")


def work_of(spec: JobSpec) -> Work:
    """`python train.py …`, `train.py …` and `stretto run train.py …` are elastic; everything else is one plain process."""
    if isinstance(spec.run, str):
        return Work(shell=spec.run)
    words = list(spec.run)
    if words[:2] == ["stretto", "run"]:
        return Work(script=tuple(words[2:]))
    if PYTHON.match(words[0]):
        rest = words[1:]
        while rest and rest[0] == "-u":
            rest = rest[1:]
        if rest and not rest[0].startswith("-"):
            return Work(script=tuple(rest))
        return Work(command=tuple(words))
    if words[0].endswith(".py"):
        return Work(script=tuple(words))
    return Work(command=tuple(words))


def asked(elastic: Elastic) -> dict[str, str]:
    """What the job's training loader is asked for (train/data/asked.py), as environment. `fixed` leaves it to the script."""
    found = {"STRETTO_SLICES": str(elastic.slices)} if elastic.slices is not None else {}
    return found if elastic.batch == "fixed" else {**found, "STRETTO_BATCH": elastic.batch}
