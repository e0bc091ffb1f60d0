"""Ordinary scripts: each ends with the digest of plain `python`, whatever happens to its workers, or is refused as it says itself.

The first line of a script in `scripts/` promises one of these:

    # equal                       one digest, under plain `python` and in every run
    # refused alone: TEXT         refused under plain `python`, and at once in every run
    # refused when scaled: TEXT   fine under plain `python`; in a run it ends with that digest, or is refused (the whole job, or
                                  only the newcomer) before a wrong step; at least one of the runs says TEXT

`STRETTO_ORDINARY_SEEDS` says how many random schedules each script is run with beside the fixed ones, `STRETTO_ORDINARY_SEED`
where they begin.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic import Change, Outcome, random_schedule, run
from plain import Ended, plain

SCRIPTS = Path(__file__).parent / "scripts"
SEEDS = int(os.environ.get("STRETTO_ORDINARY_SEEDS", "0"))
FIRST = int(os.environ.get("STRETTO_ORDINARY_SEED", "0"))

CHANGES = (Change(5, "scale", 2), Change(10, "kill", 0), Change(15, "scale", 3), Change(20, "kill", 2), Change(24, "scale", 1))
"""Newcomers in the middle of epochs; the chief dies, then another one."""
BOTH = (Change(5, "scale", 2), Change(10, "kill", 0), Change(16, "resume", 2))
"""Some of all of it, in a third of the time."""
RESUME = (Change(9, "resume", 2),)
"""Everything is killed; what goes on gets a second worker."""

SHORT = {
    "scheduler_before_loop": ("both",),
    "evaluate_first_and_before_each_epoch": ("both",),
    "accumulate_by_job_step": ("both",),
    "accumulate_by_enumerate": ("changes",),
    "early_stopping_shared_dict": ("both",),
    "early_stopping_local_counters": ("changes",),
    "gan_in_dcgan_order": ("three",),
    "gradient_surgery": ("three",),
    "step_inside_slices": ("three",),
    "random_seed": ("three",),
    "range_of_epochs": ("both",),
}
"""What `make test` runs of which; all of all is in `make test-ordinary`."""


@dataclass(frozen=True)
class Promise:
    """What a script's first line says."""

    kind: str
    text: str = ""

    @classmethod
    def of(cls, script: str) -> Promise:
        line = script.splitlines()[0]
        found = re.fullmatch(r"# (equal|refused alone|refused when scaled)(?:: (.+))?", line)
        assert found is not None and (found[1] == "equal") == (found[2] is None), f"{line!r} promises nothing that is known"
        return cls(found[1], found[2] or "")


def schedules() -> dict[str, tuple[str, int, tuple[Change, ...]]]:
    """Names of runs: their workers, how many they begin with, and what happens to them."""
    chances = {f"random {seed}": ("1:3", 1, random_schedule(seed, steps=32)) for seed in range(FIRST, FIRST + SEEDS)}
    return {
        "one": ("1", 1, ()),
        "three": ("3", 3, ()),
        "changes": ("1:3", 1, CHANGES),
        "resumes": ("1:3", 1, RESUME),
        "both": ("1:3", 1, BOTH),
        **chances,
    }


def names() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("*.py"))


def check(name: str, launch, folder: Path, wanted: tuple[str, ...]) -> None:
    """Runs a script alone and in the wanted runs, and compares all of them with its promise."""
    text = (SCRIPTS / f"{name}.py").read_text()
    promise = Promise.of(text)
    (folder / "plain").mkdir()
    reference = plain(SCRIPTS / f"{name}.py", cwd=folder / "plain")
    if promise.kind == "refused alone":
        assert reference.code != 0 and promise.text in reference.output, reference.output
        assert len(reference.commits or ()) <= 1, "it was refused only after its second step"
        wanted = tuple(run for run in wanted if run in ("one", "three"))
    else:
        assert reference.code == 0, reference.output
    told = False
    for number, which in enumerate(wanted):
        workers, start, changes = schedules()[which]
        outcome = run(launch, text, folder=folder, name=f"job{number}", workers=workers, start=start, changes=changes)
        wrong = _wrong(promise, outcome, reference)
        assert not wrong, f"{which}: {wrong}\n{outcome.story}\n{outcome.output}"
        told = told or (bool(promise.text) and promise.text in outcome.output + outcome.refusals)
    assert told or promise.kind == "equal", f"no run said {promise.text!r}: {wanted}"


def _wrong(promise: Promise, outcome: Outcome, reference: Ended) -> str:
    """What is wrong with a run."""
    if promise.kind == "equal":
        return outcome.wrong(reference) if outcome.code == 0 else "it was refused or failed, and promised not to be"
    if promise.kind == "refused alone":
        if outcome.code == 0 or promise.text not in outcome.output:
            return f"it was not refused for {promise.text!r}"
        return f"{len(outcome.commits)} steps were committed before it was refused" if len(outcome.commits) > 1 else ""
    return outcome.wrong(reference, why=promise.text)


@pytest.mark.parametrize("name", sorted(SHORT))
def test_an_ordinary_script_keeps_its_promise(launch, tmp_path: Path, name: str) -> None:
    check(name, launch, tmp_path, SHORT[name])


UNLIKE = {"random_seed"}
"""No two runs of these are alike, under plain `python` neither: what `SHORT` runs of them is all that can be compared."""


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in names() if name not in UNLIKE])
def test_every_ordinary_script_keeps_its_promise_in_every_run(launch, tmp_path: Path, name: str) -> None:
    check(name, launch, tmp_path, tuple(run for run in schedules() if run != "both"))
