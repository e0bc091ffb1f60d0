"""Random programs under random schedules: `python tests/ordinary/fuzz.py --first 0 --count 100`.

Each program either ends like plain `python`, whatever happens to its workers, or is refused before its first wrong step.
Prints a line for each seed, and the program of each that breaks the rule.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from elastic import Change, Hang, random_schedule, run
from launching import launcher
from plain import Ended, plain
from programs import Program, program

STEPS = 32


def misses(tried: Program, reference: Ended, oracle: Ended) -> str:
    """Where a program's losses under plain `python` are others than PyTorch's own; empty if nowhere, or if that is not known."""
    if tried.norm or any(name.startswith(("draw for", "draw after")) for _, name in tried.statements):
        return ""
    assert reference.commits is not None and oracle.commits is not None
    if oracle.code:
        return f"the oracle failed: {oracle.output}"
    for step, commit in reference.commits.items():
        expected = oracle.commits.get(step)
        if expected is None or not math.isclose(commit["metrics"]["loss"], expected["metrics"]["loss"], rel_tol=1e-3):
            return f"step {step} is {commit}, and {expected} by hand"
    steps, by_hand = len(reference.commits), len(oracle.commits)
    return "" if steps == by_hand else f"{steps} steps, and {by_hand} by hand"


def verdict(tried: Program, changes: tuple[Change, ...], *, folder: Path) -> tuple[str, str]:
    """`equal`, `refused` or `WRONG`, and how."""
    path = folder / "plain" / "program.py"
    path.parent.mkdir()
    path.write_text(tried.text())
    reference = plain(path, cwd=path.parent)
    if reference.code:
        if "Traceback" in reference.output:
            last = reference.output.strip().splitlines()[-1]
            return ("refused", f"alone: {last}") if "ScriptError" in last else ("WRONG", f"alone, with a traceback: {last}")
        return "refused", f"alone: {reference.output.strip().splitlines()[-1]}"
    lost = misses(tried, reference, plain(path, cwd=path.parent, oracle=True))
    if lost:
        return "WRONG", f"not what PyTorch does: {lost}"
    try:
        with launcher(folder) as launch:
            outcome = run(launch, path.read_text(), folder=folder, changes=changes)
    except Hang as hang:
        return "WRONG", f"hang: {hang}"
    wrong = outcome.wrong(reference, why="error: ")
    said = next((line for line in reversed(outcome.output.splitlines()) if "error: " in line), "").strip()
    if wrong:
        return "WRONG", f"{wrong}; {outcome.story}; {said}"
    if outcome.code:
        return "refused", f"{outcome.story}; {said}"
    return "equal", f"{outcome.story}{' ' + outcome.refusals if outcome.refusals else ''}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=50)
    options.add_argument("--show", action="store_true", help="Only print the programs.")
    args = options.parse_args()
    wrong: list[int] = []
    for seed in range(args.first, args.first + args.count):
        tried, changes = program(seed), random_schedule(seed, steps=STEPS)
        if args.show:
            print(f"# seed {seed}: {tried}\n# {changes}\n{tried.text()}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            kind, how = verdict(tried, changes, folder=Path(folder))
        print(f"{seed} {kind}: {how}", flush=True)
        if kind == "WRONG":
            wrong.append(seed)
            print(f"    {tried}\n    {changes}", flush=True)
    print(f"{args.count} programs, {len(wrong)} wrong: {wrong}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
