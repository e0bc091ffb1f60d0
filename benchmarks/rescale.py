"""What a worker that joins, leaves, is killed or frozen costs the others: stretto, torchrun and torchft in turns.

Two figures for each: the pause is the time that the change itself took, the gap is the longest time without a finished step on a
worker that stays, beyond the usual step. The gap is what users see; bars are set on it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic import Cost, Elastic, Stretto, Torchft, Torchrun
from benchmarks.models import build_large
from benchmarks.process import PYTHON, finish, free_port, launch, wait_for
from benchmarks.report import Row, at_most, inform, publish

EVENTS = ("join", "leave", "kill", "freeze")
Costs = dict[str, list[Cost]]
"""What was measured, by event."""
SYSTEMS: dict[str, type[Elastic]] = {"stretto": Stretto, "torchft": Torchft, "torchrun": Torchrun}


def measure_job(system: Elastic) -> Costs:
    """One job under a system: every event once, and as many joins as the events need."""
    costs: Costs = {event: [] for event in EVENTS}
    replaces_workers = not isinstance(system, Torchft)
    with system:
        system.start()
        costs["join"].append(system.join())
        costs["kill"].append(system.kill())
        if not replaces_workers:
            costs["join"].append(system.join())
        freeze = system.freeze()
        if freeze is not None:
            costs["freeze"].append(freeze)
            if not replaces_workers:
                costs["join"].append(system.join())
        costs["leave"].append(system.leave())
    return costs


@dataclass(frozen=True, slots=True)
class LargeJoins:
    """Joins of a job with 100 million parameters and Adam."""

    costs: list[Cost]
    broadcasts_s: list[float]
    """gloo broadcasts of the same bytes: the lower bound for transferring the state."""


def measure_large_joins(folder: Path, *, rounds: int) -> LargeJoins:
    costs: list[Cost] = []
    state_bytes = 3 * 4 * sum(parameter.numel() for parameter in build_large().parameters())
    with Stretto(folder / "large", "large", base=1, steps=3) as system:
        system.start()
        for _ in range(rounds):
            costs.append(system.join())
            system.leave()
    return LargeJoins(costs, measure_broadcasts(folder, state_bytes, turns=max(3, rounds)))


def measure_broadcasts(folder: Path, size: int, *, turns: int) -> list[float]:
    port, output = free_port(), folder / "broadcast"
    script = [PYTHON, "-m", "benchmarks.scripts.broadcast", output]
    processes = [
        launch([*script, *map(str, (rank, 2, port, size, turns))], log=folder / f"broadcast-{rank}.log") for rank in range(2)
    ]
    try:
        wait_for(lambda: all(process.poll() is not None for process in processes), what="a broadcast", limit_s=300)
    finally:
        finish(processes)
    return [float(line) for line in output.read_text().split()]


def median_gap_s(costs: list[Cost]) -> float:
    return statistics.median(cost.gap_s for cost in costs)


def median_pause_s(costs: list[Cost]) -> float:
    return statistics.median(cost.pause_s for cost in costs)


def compare(event: str, name: str, by_system: dict[str, Costs], bars: dict[str, float]) -> list[Row]:
    """One row for each peer that the event has a bar against, or one row without a bar."""
    measured = {system: costs[event] for system, costs in by_system.items() if costs[event]}
    figures = {f"{system} gap ms": median_gap_s(costs) * 1e3 for system, costs in measured.items()}
    figures |= {f"{system} pause ms": median_pause_s(costs) * 1e3 for system, costs in measured.items()}
    if "stretto" not in measured:
        return [inform(f"{name}: not measured for stretto", None, peers=figures)]
    gap_s = median_gap_s(measured["stretto"])
    rows = [
        at_most(f"{name}: stretto / {peer}", gap_s / median_gap_s(measured[peer]), bar, bar=f"≤ 1/{1 / bar:g}", peers=figures)
        for peer, bar in bars.items()
        if peer in measured
    ]
    return rows or [inform(f"{name}: stretto, ms", gap_s * 1e3, peers=figures)]


def large_row(joins: LargeJoins) -> Row:
    floor_s = statistics.median(joins.broadcasts_s)
    return at_most(
        "join with 100M parameters and Adam: pause, s",
        median_pause_s(joins.costs),
        1.5 * floor_s + 0.05,
        bar="≤ 1.5 × broadcast + 50 ms",
        peers={
            "broadcast of the same bytes, s": floor_s,
            "gap, s": median_gap_s(joins.costs),
            "longest gap, s": max(cost.gap_s for cost in joins.costs),
        },
    )


NOTES = [
    "two workers stay, a third comes and goes; a 1M-parameter MLP; medians over all joins, leaves, kills and freezes",
    "gap: the longest time between two steps of a worker that stays, beyond the usual step; the ratios compare gaps",
    "pause: the change itself. stretto: `switch_ms` in the journal; torchft: the wait for a quorum; torchrun: from the last step "
    "to the moment at which the next start has its process group and its checkpoint",
    "torchrun: last_call_timeout=1, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (without it scaling up hangs); a frozen worker is noticed "
    "only by the timeout of the collective",
    "torchft 0.2.0: join_timeout_ms=1000, a timeout of 5 s for collectives, heartbeat timeout 5 s (its default)",
    "100M parameters: one worker and a second, stretto only",
]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3, help="jobs under each system")
    options.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    options.add_argument("--no-large", action="store_true", help="leave out the job with 100 million parameters")
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stretto-rescale-"))
    by_system: dict[str, Costs] = {system: {event: [] for event in EVENTS} for system in args.systems}
    for number in range(args.rounds):
        for system in args.systems:
            print(f"round {number + 1}: {system} …", file=sys.stderr, flush=True)
            for event, costs in measure_job(SYSTEMS[system](folder / f"{system}-{number}", "small")).items():
                by_system[system][event] += costs
    rows = compare("join", "join", by_system, {"torchrun": 1 / 50, "torchft": 1.0})
    rows += compare("kill", "SIGKILL", by_system, {"torchrun": 1 / 20, "torchft": 1 / 4})
    rows += compare("freeze", "SIGSTOP", by_system, {"torchft": 1 / 4})
    rows += compare("leave", "leave", by_system, {})
    if not args.no_large:
        print("100 million parameters with Adam …", file=sys.stderr, flush=True)
        rows.append(large_row(measure_large_joins(folder, rounds=args.rounds)))
    shutil.rmtree(folder)
    publish("rescale", rows, notes=NOTES)


if __name__ == "__main__":
    main()
