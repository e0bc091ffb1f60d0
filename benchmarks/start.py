"""From `stretto scale` to the first step with the newcomer, against a cold `python -c "import torch"`, in turns.

The time includes the start of the `stretto scale` command itself.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.elastic import LIMIT_S, Stretto
from benchmarks.process import PYTHON, wait_for
from benchmarks.report import at_most, publish


def start_s(system: Stretto) -> float:
    """Adds a worker, waits for its first step, and removes it again."""
    started_at = time.time()
    system.scale(2)

    def first_step_at() -> float | None:
        commits = (line for line in system.journal() if line["kind"] == "commit")
        return next((line["t"] for line in commits if line["t"] > started_at and line["workers"] == 2), None)

    wait_for(lambda: first_step_at() is not None, what="a step with the newcomer", limit_s=LIMIT_S)
    ended_at = first_step_at()
    assert ended_at is not None
    system.leave()
    return ended_at - started_at


def cold_import_s() -> float:
    started_at = time.monotonic()
    subprocess.run([PYTHON, "-c", "import torch"], check=True, timeout=LIMIT_S)
    return time.monotonic() - started_at


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7)
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stretto-start-"))
    warm: list[float] = []
    cold: list[float] = []
    with Stretto(folder / "job", "small", base=1) as system:
        system.start()
        for number in range(args.rounds):
            print(f"round {number + 1} …", file=sys.stderr, flush=True)
            warm.append(start_s(system))
            # The job goes on training meanwhile, so both are measured on the same, equally busy machine.
            cold.append(cold_import_s())
    shutil.rmtree(folder)
    ratio = statistics.median(a / b for a, b in zip(warm, cold, strict=True))
    publish(
        "start",
        [
            at_most(
                "from `stretto scale` to the newcomer's first step / cold `import torch`",
                ratio,
                1.0,
                bar="< 1",
                peers={"stretto s": statistics.median(warm), "import torch s": statistics.median(cold), "rounds": len(warm)},
            )
        ],
    )


if __name__ == "__main__":
    main()
