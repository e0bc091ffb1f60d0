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

import numpy as np

from benchmarks.report import RESULTS, ROOT, Row, at_most, inform, publish
from stretto.batching.goodput import BatchRange, GoodputModel
from stretto.batching.throughput import ThroughputModel
from stretto.scheduling.genetic import Effort
from stretto.scheduling.policies.fifo import fifo
from stretto.scheduling.policies.goodput import goodput
from stretto.scheduling.policies.optimus import optimus
from stretto.scheduling.policies.pollux import pollux
from stretto.scheduling.policies.tiresias import tiresias
from stretto.scheduling.types import Allocation, ClusterNode, Policy, SchedulableJob
from stretto.simulation.cluster.build import build
from stretto.simulation.cluster.engine import Simulation, SimulationSettings
from stretto.simulation.cluster.job import Costs, RestartCost, StopFree
from stretto.simulation.cluster.report import figures
from stretto.simulation.cluster.trace import read_trace

LOADS = ("0.5", "1.0", "1.5", "2.0")
WORKLOADS = (1, 3, 5, 7)
PATIENCE = 12
"""Generations without a better solution after which Pollux' search is stopped: a quarter of the time, the same completion times."""
PUBLISHED = {
    "pollux": {
        "0.5": (1060, 1311, 977, 2881),
        "1.0": (2089, 2188, 2674, 3616),
        "1.5": (3856, 3300, 4007, 3218),
        "2.0": (6186, 5132, 6591, 3836),
    },
    "tiresias": {
        "0.5": (1451, 1870, 1425, 3979),
        "1.0": (2474, 3876, 3501, 5480),
        "1.5": (5520, 6562, 6832, 5367),
        "2.0": (10138, 10728, 12098, 8371),
    },
    "optimus": {
        "0.5": (1310, 1987, 1325, 5314),
        "1.0": (4087, 3944, 5656, 7291),
        "1.5": (7674, 5684, 7900, 6426),
        "2.0": (10807, 8363, 11830, 6998),
    },
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
    """`name` is a policy, with +declared for declared lengths, +history for the lengths of finished jobs of the same application,
    +stopfree for stretto's own pauses, +at-once for decisions also when jobs come and go, #n for a seed."""
    costs: Costs = StopFree() if "+stopfree" in name else RestartCost(30.0)
    plain = name.partition("+")[0].partition("#")[0]
    jobs = build(read_trace(workload(folder, load, number)), policy=plain, declared="+declared" in name, costs=costs)
    settings = SimulationSettings(costs=costs, history="+history" in name, on_events="+at-once" in name)
    started = time.process_time()
    outcome = Simulation(jobs, [ClusterNode(f"node-{n:02d}", 4) for n in range(16)], policy_of(name), settings).run()
    return figures(outcome).document() | {"cpu_s": time.process_time() - started}


def case(folder: Path, name: str, load: str, number: int) -> dict[str, Any]:
    path = KEPT / f"{name}-{load}-{number}.json"
    if not path.is_file():
        print(f"simulating {name}, load {load}, workload {number} …", file=sys.stderr, flush=True)
        document = simulate(folder, name, load, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
    return json.loads(path.read_text())


def decision_s(policy: Policy, slots: int, count: int, *, turns: int = 3, declared: bool = False) -> float:
    """CPU seconds of the fastest of some decisions for a running cluster: random jobs, half of them placed already.

    With `declared` all jobs declare their lengths, so that a policy that looks ahead does.
    """
    random = np.random.default_rng(1)
    bounds = BatchRange(128, 4096, 16, 512)
    jobs = [
        SchedulableJob(
            f"job-{n}",
            float(n),
            most=int(random.choice([1, 4, 16, 64])),
            profiled=32,
            attained_s=float(random.exponential(1e4)),
            remaining=float(random.exponential(1.0) ** 2 * 1e6) if declared else None,
            models={
                "default": GoodputModel(
                    ThroughputModel(
                        0.02, 0.001 * float(random.uniform(0.3, 3)), 0.08 * float(random.uniform(0.1, 4)), 0.001, 0.02, 0.001, 1.5
                    ),
                    1.0,
                    float(random.exponential(50)),
                    bounds,
                )
            },
        )
        for n in range(count)
    ]
    machines = [ClusterNode(f"node-{n:05d}", 4) for n in range(slots // 4)]
    now = policy(jobs[: count // 2], machines, Allocation(), 1e5)
    best = float("inf")
    for turn in range(turns):
        started = time.thread_time()
        policy(jobs, machines, now, 1e5 + 60.0 * (turn + 1))
        best = min(best, time.thread_time() - started)
    return best


def ratio(folder: Path, name: str, load: str, figure: str, *, of: str = "pollux") -> float:
    """Mean over workloads of a figure over that of another policy."""
    return float(np.mean([case(folder, name, load, n)[figure] / case(folder, of, load, n)[figure] for n in WORKLOADS]))


def faithful(folder: Path, loads: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for name, bound in (("tiresias", 0.03), ("optimus", 0.03), ("pollux", 0.10)):
        errors = {
            f"{load}/{n}": abs(case(folder, name, load, n)["average_s"] / PUBLISHED[name][load][place] - 1)
            for load in loads
            for place, n in enumerate(WORKLOADS)
        }
        worst = max(errors, key=lambda key: errors[key])
        rows.append(at_most(f"{name}: worst error against the published average", errors[worst], bound, peers={"at": worst}))
    return rows


def better(folder: Path, loads: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for load in loads:
        for name in ("goodput", "goodput+history", "goodput+declared"):
            bar = 1.0 if load != "1.0" else 0.85 if name == "goodput+declared" else 0.92
            peers = {
                "of the published": float(
                    np.mean(
                        [
                            case(folder, name, load, n)["average_s"] / PUBLISHED["pollux"][load][place]
                            for place, n in enumerate(WORKLOADS)
                        ]
                    )
                )
            }
            rows.append(
                at_most(f"load {load}: average of {name} / pollux", ratio(folder, name, load, "average_s"), bar, peers=peers)
            )
            for figure in ("p99_s", "makespan_s", "fairness_worst"):
                rows.append(at_most(f"load {load}: {figure} of {name} / pollux", ratio(folder, name, load, figure), 1.05))
        rows.append(
            inform(
                f"load {load}: average of goodput with stretto's pauses / pollux with 30 s restarts",
                ratio(folder, "goodput+stopfree", load, "average_s"),
            )
        )
        # As the job server decides. Pollux' published system has a fixed interval, so this is beside the comparison, not in it.
        for name in ("goodput+at-once", "goodput+declared+at-once"):
            peers = {figure: ratio(folder, name, load, figure) for figure in ("p99_s", "makespan_s", "fairness_worst")}
            name_of_row = f"load {load}: average of {name} / pollux every 60 s"
            rows.append(inform(name_of_row, ratio(folder, name, load, "average_s"), peers=peers))
    return rows


def quick(folder: Path | None) -> list[Row]:
    rows = [
        at_most(
            f"decision, {slots:,} slots, {count:,} jobs{', lengths declared' if declared else ''}: seconds",
            decision_s(goodput, slots, count, declared=declared),
            bar,
        )
        for slots, count, bar in ((64, 160, 0.010), (2048, 2000, 0.200), (16384, 10000, 1.5))
        for declared in (False, True)
    ]
    rows.append(
        inform("decision of pollux, 64 slots, 20 jobs: seconds", decision_s(partial(pollux, effort=Effort()), 64, 20, turns=1))
    )
    if folder is not None:
        slowest = max(case(folder, "goodput", "1.0", n)["cpu_s"] for n in WORKLOADS)
        rows.append(at_most("simulating a workload with goodput: seconds", slowest, 60.0))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="simulate only these policies, and print nothing else")
    parser.add_argument("--loads", nargs="*", default=LOADS)
    parser.add_argument("--fresh", action="store_true", help="forget what was simulated before")
    options = parser.parse_args(arguments)
    folder = traces()
    if folder is None:
        publish("policies", quick(None), notes=["the traces are not here: set STRETTO_TRACES to the folder that has pollux/ in it"])
        return
    if options.fresh:
        for path in KEPT.glob("*.json"):
            path.unlink()
    if options.only:
        progress(folder, options.only, options.loads)
        return
    rows = [*quick(folder), *faithful(folder, options.loads), *better(folder, options.loads)]
    publish("policies", rows, notes=["CPU seconds of one core; 16 nodes of 4 slots, 30 s restarts, a decision every 60 s"])


def progress(folder: Path, names: Sequence[str], loads: Sequence[str]) -> None:
    """Simulate these cases and say how each went."""
    for name in names:
        for load in loads:
            for place, number in enumerate(WORKLOADS):
                outcome = case(folder, name, load, number)
                published = PUBLISHED.get(name.partition("#")[0].partition("+")[0], {}).get(load)
                beside = f"{outcome['average_s'] / published[place] - 1:+.1%}" if published else ""
                print(name, load, number, f"{outcome['average_s']:.0f} s", beside, f"{outcome['cpu_s']:.0f} s CPU", flush=True)


if __name__ == "__main__":
    main()
