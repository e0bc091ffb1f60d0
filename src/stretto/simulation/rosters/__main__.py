"""`python -m stretto.simulation.rosters --seeds 1000`: the protocol under seeded faults; `--seed S` replays one of
them."""

from __future__ import annotations

import argparse
import sys
import time

from stretto.simulation.rosters.run import SeedReport, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stretto.simulation.rosters", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and print everything that happens")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run (default 1000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them (default 0)")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least 1")
    return _one(options.seed) if options.seed is not None else _many(options.first, options.seeds)


def _one(seed: int) -> int:
    report = simulate(seed)
    print("\n".join(report.log))
    print(
        f"seed {seed} ({report.mode}): {report.events} events, {report.rosters} rosters, {report.breaks} breaks, "
        f"{report.lives} lives, {report.ticks} ticks, {report.seconds:.1f} virtual s: {report.failure or 'all promises kept'}"
    )
    return 1 if report.failure else 0


def _many(first: int, count: int) -> int:
    begin = time.perf_counter()
    events = broken = 0
    for seed in range(first, first + count):
        report = simulate(seed)
        events += report.events
        if report.failure:
            broken += 1
            _complain(report)
    print(f"{count} seeds, {events} events, {broken} broken, {time.perf_counter() - begin:.1f} s")
    return 1 if broken else 0


def _complain(report: SeedReport) -> None:
    print("\n".join(report.log[-15:]))
    print(
        f"seed {report.seed} ({report.mode}): {report.failure}\n  replay: python -m stretto.simulation.rosters "
        f"--seed {report.seed}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
