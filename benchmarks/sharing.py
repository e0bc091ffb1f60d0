"""Eight real jobs on this machine: average completion time under `goodput`, against FIFO with the sizes that users asked for.

Under FIFO every job has the fixed size that its user asked for (`wanted`) and waits until that many slots are free. Under
`goodput` the same jobs have limits, and grow and shrink without stopping. Same script (examples/digits.py), same order and
times of arrival, one after the other on the same machine; every job has to end with the same digest in both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import ROOT, Row, at_most, inform, publish

sys.path.insert(0, str(ROOT / "tests" / "server"))

from server_harness import running

from stretto.clusters.base import STRETTO
from stretto.server.client import Client

SCRIPT = ROOT / "examples" / "digits.py"
SLOTS = max(2, min(4, len(os.sched_getaffinity(0))))
LIMIT_S = 3600.0
STEPS = 13
"""Steps of an epoch of the example."""


@dataclass(frozen=True)
class Planned:
    """A job: its epochs, the share of the slots that its user asked for, and its arrival."""

    name: str
    epochs: int
    share: float
    at_s: float

    @property
    def wanted(self) -> int:
        return max(1, round(self.share * SLOTS))


PLAN = (
    Planned("long-a", 120, 1.0, 0.0),
    Planned("short-a", 12, 1.0, 1.0),
    Planned("short-b", 12, 0.5, 2.0),
    Planned("middle-a", 40, 1.0, 3.0),
    Planned("short-c", 12, 1.0, 6.0),
    Planned("middle-b", 40, 0.5, 8.0),
    Planned("short-d", 12, 0.5, 10.0),
    Planned("long-b", 80, 1.0, 12.0),
)


def spec(planned: Planned, *, elastic: bool) -> dict[str, object]:
    limits = {"min": 1, "max": SLOTS} if elastic else {"min": planned.wanted, "max": planned.wanted}
    run = ["python", str(SCRIPT), "--epochs", str(planned.epochs), "--width", "32"]
    return {"name": planned.name, "run": run, "elastic": limits, "steps": STEPS * planned.epochs, "envs": {"OMP_NUM_THREADS": "1"}}


def play(policy: str, *, elastic: bool) -> tuple[dict[str, float], dict[str, str | None], float]:
    """(completion seconds, digest) of each job, and the seconds until all have ended."""
    with tempfile.TemporaryDirectory(prefix="stretto-sharing-", ignore_cleanup_errors=True) as folder:
        with running(Path(folder) / "home", slots=SLOTS, policy=policy, launcher=STRETTO, interval_s=2.0, cooldown_s=3.0) as server:
            with server.client() as client:
                made = submit(client, elastic=elastic)
                ended = {name: client.wait(job, timeout_s=LIMIT_S) for name, job in made.items()}
    times = {name: (job.ended_at or 0.0) - job.submitted_at for name, job in ended.items()}
    whole = max(job.ended_at or 0.0 for job in ended.values()) - min(job.submitted_at for job in ended.values())
    for name, job in ended.items():
        changes = f"{job.resizes} changes, {job.pause_ms:.0f} ms paused"
        print(f"  {policy:8} {name:9} {job.state} after {times[name]:6.1f} s, {changes}", flush=True)
    return times, {name: job.digest for name, job in ended.items()}, whole


def submit(client: Client, *, elastic: bool) -> dict[str, str]:
    begun = time.monotonic()
    made: dict[str, str] = {}
    for planned in PLAN:
        time.sleep(max(0.0, begun + planned.at_s - time.monotonic()))
        made[planned.name] = client.submit(spec(planned, elastic=elastic)).id
    return made


def bench() -> list[Row]:
    fixed, fixed_digests, fixed_whole = play("fifo", elastic=False)
    shared, shared_digests, shared_whole = play("goodput", elastic=True)
    average = statistics.fmean(shared.values()) / statistics.fmean(fixed.values())
    same = sum(fixed_digests[name] != shared_digests[name] or shared_digests[name] is None for name in fixed_digests)
    return [
        at_most(
            "average completion, goodput over fifo",
            average,
            0.7,
            peers={"goodput (s)": statistics.fmean(shared.values()), "fifo (s)": statistics.fmean(fixed.values())},
        ),
        at_most("jobs with another digest", same, 0, bar="0"),
        inform("time until all have ended, goodput over fifo", shared_whole / fixed_whole, peers={"fifo (s)": fixed_whole}),
        inform("worst job, goodput over fifo", max(shared[name] / fixed[name] for name in fixed)),
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    publish("sharing", bench(), notes=[f"{len(PLAN)} jobs of examples/digits.py on {SLOTS} slots"])


if __name__ == "__main__":
    main()
