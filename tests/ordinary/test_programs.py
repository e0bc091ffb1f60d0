"""Random programs under random schedules keep the rule: the result of plain `python`, or a refusal before the first wrong step.

`STRETTO_PROGRAMS` says how many, `STRETTO_PROGRAMS_SEED` where they begin: a failure names its seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic import Change
from fuzz import STEPS, misses, random_schedule, verdict
from plain import plain
from programs import Program, program

COUNT = int(os.environ.get("STRETTO_PROGRAMS", "2"))
FIRST = int(os.environ.get("STRETTO_PROGRAMS_SEED", "200"))
JOIN = (Change(10, "scale", 2), Change(20, "kill", 0))
RESUME = (Change(10, "resume", 2),)

FOUND = {
    "a scheduler that steps before the loop": (Program((("before steps", "scheduler from the second epoch on"),)), JOIN),
    "a scheduler that steps before the loop, resumed": (Program((("before steps", "scheduler"),)), RESUME),
    "an evaluation before the loop": (Program((("before steps", "evaluation sets the rate"),)), JOIN),
    "an evaluation before the loop, resumed": (Program((("before steps", "evaluation sets the rate"),)), RESUME),
    "accumulation by job.step": (Program((("before slices", "counter"),), accumulation="job.step"), JOIN),
    "accumulation by enumerate": (Program((("before slices", "scheduler"),), accumulation="enumerate"), JOIN),
    "a local count that evaluates": (Program((("after slices", "local counter evaluates"),)), JOIN),
    "early stopping by a list": (Program((("after steps", "local early stopping"),)), JOIN),
    "early stopping by a list, resumed": (Program((("after steps", "local early stopping"),)), RESUME),
    "a draw before the loop": (Program((("before steps", "draw for an epoch"),), optimizer=1), JOIN),
    "a draw after a step": (Program((("after slices", "draw after a step"),), optimizer=2), JOIN),
    "a module set once": (Program((("before steps", "freeze once"), ("before steps", "dropout once")), zero_grad="model"), JOIN),
    "epochs counted by range": (Program((("after steps", "scheduler"),), epochs="range"), JOIN),
}
"""What broke the rule once, cut down to what it takes."""
SHORT = (
    "a scheduler that steps before the loop, resumed",
    "an evaluation before the loop",
    "accumulation by enumerate",
    "early stopping by a list",
)


def holds(tried: Program, changes: tuple[Change, ...], folder: Path) -> None:
    kind, how = verdict(tried, changes, folder=folder)
    assert kind != "WRONG", f"{how}\n{tried}\n{changes}\n{tried.text()}"


@pytest.mark.parametrize("name", SHORT)
def test_what_was_wrong_once_is_equal_or_refused(tmp_path: Path, name: str) -> None:
    holds(*FOUND[name], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(FOUND) - set(SHORT)))
def test_all_that_was_wrong_once_is_equal_or_refused(tmp_path: Path, name: str) -> None:
    holds(*FOUND[name], tmp_path)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_random_program_is_equal_or_refused(tmp_path: Path, seed: int) -> None:
    holds(program(seed), random_schedule(seed, steps=STEPS), tmp_path)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed % 15 == 0 else pytest.mark.slow) for seed in range(0, 60, 3)])
def test_a_random_program_alone_trains_as_in_pytorch(tmp_path: Path, seed: int) -> None:
    """Losses are those of a loop without stretto, whatever was in `p.grad` when a pass began."""
    path = tmp_path / "program.py"
    path.write_text(program(seed).text())
    reference = plain(path, cwd=tmp_path)
    if reference.code:
        assert "Error: " in reference.output, reference.output
    else:
        assert misses(program(seed), reference, plain(path, cwd=tmp_path, oracle=True)) == ""
