"""Scheduling policies on the published workloads, in one simulator: completion times, fairness, decision times.

Every case (policy, load, workload) is simulated once and kept in results/policies/, so that a run that was stopped goes on where it
was. `--fresh` forgets them. The traces are not part of the project: $STRETTO_TRACES or ../shared/traces beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.report import RESULTS, ROOT
from stretto.scheduling.genetic import Effort
from stretto.scheduling.policies.fifo import fifo
from stretto.scheduling.policies.goodput import goodput
from stretto.scheduling.policies.optimus import optimus
from stretto.scheduling.policies.pollux import pollux
from stretto.scheduling.policies.tiresias import tiresias
from stretto.scheduling.words import Node, Policy
from stretto.simulation.cluster.build import build
from stretto.simulation.cluster.engine import Settings, Simulation
from stretto.simulation.cluster.job import Costs, Restart, StopFree
from stretto.simulation.cluster.report import figures
from stretto.simulation.cluster.trace import read_trace

LOADS = ("0.5", "1.0", "1.5", "2.0")
WORKLOADS = (1, 3, 5, 7)
PATIENCE = 12
"""Generations without a better solution after which Pollux' search is stopped: a quarter of the time, the same completion times."""
PUBLISHED = {
    "pollux": {"0.5": (1060, 1311, 977, 2881), "1.0": (2089, 2188, 2674, 3616), "1.5": (3856, 3300, 4007, 3218),
               "2.0": (6186, 5132, 6591, 3836)},
    "tiresias": {"0.5": (1451, 1870, 1425, 3979), "1.0": (2474, 3876, 3501, 5480), "1.5": (5520, 6562, 6832, 5367),
                 "2.0": (10138, 10728, 12098, 8371)},
    "optimus": {"0.5": (1310, 1987, 1325, 5314), "1.0": (4087, 3944, 5656, 7291), "1.5": (7674, 5684, 7900, 6426),
                "2.0": (10807, 8363, 11830, 6998)},
}
"""Average completion times (s) of the published simulation, by load and workload."""
KEPT = RESULTS / "policies"


def traces() -> Path | None:
    """The folder of the published traces, if it is here."""
    for folder in (os.environ.get("STRETTO_TRACES"), ROOT.parent / "shared" / "traces"):
        if folder and (Path(folder) / "pollux").is_dir():
            return Path(folder) / "pollux"
    return None


def workload(folder: Path, load: str, number: int) -> Path:
    return folder / ("workloads" if load == "1.0" else f"workloads-{load}") / f"workload-{number}.csv"


def policy_of(name: str) -> Policy:
    if name.startswith("pollux"):
        seed = int(name.partition("#")[2] or 0)
        return partial(pollux, seed=seed, effort=Effort(patience=PATIENCE))
    return {"fifo": fifo, "tiresias": tiresias, "optimus": optimus, "goodput": goodput}[name.partition("+")[0]]


def simulate(folder: Path, name: str, load: str, number: int) -> dict[str, Any]:
    """`name` is a policy, with +declared for declared lengths, +stopfree for stretto's own pauses, #n for a seed."""
    costs: Costs = StopFree() if "+stopfree" in name else Restart(30.0)
    plain = name.partition("+")[0].partition("#")[0]
    jobs = build(read_trace(workload(folder, load, number)), policy=plain, declared="+declared" in name, costs=costs)
    started = time.process_time()
    outcome = Simulation(jobs, [Node(f"node-{n:02d}", 4) for n in range(16)], policy_of(name), Settings(costs=costs)).run()
    return figures(outcome).document() | {"cpu_s": time.process_time() - started}


def case(folder: Path, name: str, load: str, number: int) -> dict[str, Any]:
    path = KEPT / f"{name}-{load}-{number}.json"
    if not path.is_file():
        print(f"simulating {name}, load {load}, workload {number} …", file=sys.stderr, flush=True)
        document = simulate(folder, name, load, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
    return json.loads(path.read_text())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="simulate only these policies, and print nothing else")
    parser.add_argument("--loads", nargs="*", default=LOADS)
    options = parser.parse_args(arguments)
    folder = traces()
    if folder is None:
        print("the traces are not here: set STRETTO_TRACES to their folder; nothing was measured")
        return
    for name in options.only or ():
        for load in options.loads:
            for number in WORKLOADS:
                found = case(folder, name, load, number)
                published = PUBLISHED.get(name.partition("#")[0].partition("+")[0], {}).get(load)
                beside = f"{found['average_s'] / published[WORKLOADS.index(number)] - 1:+.1%}" if published else ""
                print(name, load, number, f"{found['average_s']:.0f} s", beside, f"{found['cpu_s']:.0f} s CPU", flush=True)


if __name__ == "__main__":
    main()
