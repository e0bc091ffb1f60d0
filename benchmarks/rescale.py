"""How long the others stand still when a worker joins, leaves, is killed or frozen: stretto, torchrun and torchft in turns.

A pause is the longest time without a finished step on a worker that stays, beyond what a step takes anyway.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.elastic import Elastic, Stretto, Torchft, Torchrun
from benchmarks.models import build_large
from benchmarks.process import PYTHON, finish, free_port, launch, wait_for
from benchmarks.report import Row, at_most, inform, publish

EVENTS = ("join", "leave", "kill", "freeze")
Pauses = dict[str, list[float]]
SYSTEMS: dict[str, type[Elastic]] = {"stretto": Stretto, "torchft": Torchft, "torchrun": Torchrun}


def live(system: Elastic) -> Pauses:
    """One life of a job under a system: every event once, joins as often as they are needed."""
    found: Pauses = {event: [] for event in EVENTS}
    alone = isinstance(system, Torchft)  # nobody starts a new worker there
    with system:
        system.start()
        found["join"].append(system.join())
        found["kill"].append(system.kill())
        if alone:
            found["join"].append(system.join())
        frozen = system.freeze()
        if frozen is not None:
            found["freeze"].append(frozen)
            if alone:
                found["join"].append(system.join())
        found["leave"].append(system.leave())
    return found


def hand_over(folder: Path, *, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Joins of a job with 100 million parameters and Adam beside broadcasts of the same bytes: recorded, seen, broadcast."""
    recorded: list[float] = []
    seen: list[float] = []
    size = 3 * 4 * sum(parameter.numel() for parameter in build_large().parameters())
    with Stretto(folder / "large", "large", base=1, steps=3) as system:
        system.start()
        for _ in range(rounds):
            seen.append(system.join())
            recorded.append(system.last_switch_ms() / 1e3)
            system.leave()
    broadcast = broadcasts(folder, size, turns=max(3, rounds))
    return recorded, seen, broadcast


def broadcasts(folder: Path, size: int, *, turns: int) -> list[float]:
    port, out = free_port(), folder / "broadcast"
    processes = [
        launch(
            [PYTHON, "-m", "benchmarks.scripts.broadcast", out, *map(str, (rank, 2, port, size, turns))],
            log=folder / f"broadcast-{rank}.log",
        )
        for rank in range(2)
    ]
    try:
        wait_for(lambda: all(process.poll() is not None for process in processes), what="a broadcast", limit_s=300)
    finally:
        finish(processes)
    return [float(line) for line in out.read_text().split()]


def compare(event: str, name: str, pauses: dict[str, Pauses], bars: dict[str, float]) -> list[Row]:
    """One row for each peer that the event is measured against."""
    middle = {system: statistics.median(found[event]) for system, found in pauses.items() if found[event]}
    peers = {f"{system} ms": value * 1e3 for system, value in middle.items()}
    if "stretto" not in middle:
        return [Row(name, None, "measured", False, peers)]
    rows = [
        at_most(f"{name}: stretto / {peer}", middle["stretto"] / middle[peer], bar, bar=f"≤ 1/{1 / bar:g}", peers=peers)
        for peer, bar in bars.items()
        if peer in middle
    ]
    return rows or [inform(f"{name}: stretto, ms", middle["stretto"] * 1e3, peers=peers)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3, help="lives of a job under each system")
    options.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    options.add_argument("--no-large", action="store_true", help="leave out the job with 100 million parameters")
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stretto-rescale-"))
    pauses: dict[str, Pauses] = {system: {event: [] for event in EVENTS} for system in args.systems}
    for number in range(args.rounds):
        for system in args.systems:
            print(f"round {number + 1}: {system} …", file=sys.stderr, flush=True)
            found = live(SYSTEMS[system](folder / f"{system}-{number}", "small"))
            for event, times in found.items():
                pauses[system][event] += times
    rows = compare("join", "join", pauses, {"torchrun": 1 / 50, "torchft": 1.0})
    rows += compare("kill", "SIGKILL", pauses, {"torchrun": 1 / 20, "torchft": 1 / 4})
    rows += compare("freeze", "SIGSTOP", pauses, {"torchft": 1 / 4})
    rows += compare("leave", "leave", pauses, {})
    if not args.no_large:
        print("100 million parameters with Adam …", file=sys.stderr, flush=True)
        recorded, seen, broadcast = hand_over(folder, rounds=args.rounds)
        floor = statistics.median(broadcast)
        rows.append(
            at_most(
                "join with 100M parameters and Adam, s",
                statistics.median(recorded),
                1.5 * floor + 0.05,
                bar="≤ 1.5 × broadcast + 50 ms",
                peers={
                    "broadcast of the same bytes, s": floor,
                    "longest gap between steps beyond the usual, s": statistics.median(seen),
                },
            )
        )
    shutil.rmtree(folder)
    publish(
        "rescale",
        rows,
        notes=[
            "two workers stay, a third comes and goes; a 1M-parameter MLP; medians over all joins, leaves, kills and freezes",
            "torchrun: last_call_timeout=1, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (without it scaling up hangs); it has nothing "
            "against a frozen worker but the timeout of the collective",
            "torchft 0.2.0: join_timeout_ms=1000, a timeout of 5 s for collectives, heartbeat timeout 5 s (its default)",
            "100M parameters: one worker, then a second; time of the hand-over at the boundary (`switch_ms` in the journal)",
        ],
    )


if __name__ == "__main__":
    main()
