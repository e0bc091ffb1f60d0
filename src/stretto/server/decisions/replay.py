"""A recorded workload under another policy, on virtual time. Runs in a process of its own: JSON in, JSON out.

Each job is its own measured speeds at a fixed batch; changes cost what stretto's changes cost. Jobs of which nothing
was measured and jobs whose fewest workers do not fit are left out. Decisions are made when jobs come and go, and beside that at
most `TICKS` times over the whole span: how long a replay takes does not depend on how long the jobs took.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.batching.goodput import BatchRange
from stretto.scheduling.guards import GuardLimits
from stretto.scheduling.pipeline import PipelineSettings
from stretto.scheduling.registry import load
from stretto.scheduling.types import DEFAULT_KIND, ClusterNode, SchedulableJob
from stretto.server.decisions.snapshot import from_speeds
from stretto.simulation.cluster.application import Synthetic
from stretto.simulation.cluster.engine import Simulation, SimulationSettings
from stretto.simulation.cluster.job import SimJob, StopFree

START_S = 3.0
PAUSE_S = 0.1
TICKS = 400
MOST_JOBS = 400
"""The latest; a replay of more would take minutes."""
PATIENCE = 10.0
"""If a replay exceeds the jobs' sequential time by this factor, some job never ends."""


def replay(
    rows: list[dict[str, Any]],
    nodes: dict[str, int],
    policy: str,
    *,
    period_s: float,
    kinds: Mapping[str, str] | None = None,
    pipeline: PipelineSettings | None = None,
    quota: int | None = None,
) -> dict[str, Any]:
    """Completion times of the jobs that can be replayed. `kinds` are the nodes' types, `quota` bounds each tenant."""
    cluster = [ClusterNode(name, slots, (kinds or {}).get(name, DEFAULT_KIND)) for name, slots in nodes.items()]
    fitting = [(place, row) for place, row in enumerate(rows) if _fits(row, cluster, quota)][-MOST_JOBS:]
    jobs = [job for place, row in fitting if (job := simulated(place, row, quota=quota)) is not None]
    if not jobs:
        return {"policy": policy, "jobs": {}}
    span = span_s([row for _, row in fitting])
    settings = SimulationSettings(
        period_s=max(period_s, span / TICKS),
        on_events=True,
        costs=StopFree(pause_s=PAUSE_S, start_s=START_S),
        most_s=PATIENCE * span + 3600.0,
        pipeline=pipeline or PipelineSettings(),
    )
    outcome = Simulation(jobs, cluster, load(policy), settings).run()
    times = {job.name: (job.end_s or outcome.end_s) - job.arrival_s for job in outcome.jobs}
    used = outcome.held_slot_s / outcome.up_slot_s if outcome.up_slot_s else 0.0
    count = len(outcome.decision_s)
    return {"policy": policy, "jobs": times, "makespan_s": outcome.end_s, "utilisation": used, "decisions": count}


def _fits(row: dict[str, Any], nodes: Sequence[ClusterNode], quota: int | None) -> bool:
    kind = row.get("node_type")
    slots = sum(node.slots for node in nodes if kind is None or node.kind == kind)
    return row["min_workers"] <= (slots if quota is None else min(slots, quota))


def span_s(rows: list[dict[str, Any]]) -> float:
    """The longest that these jobs can take: one after the other, at the slowest measured speed."""
    works = [
        row["steps"] * row["batch"] / min(speeds) + START_S
        for row in rows
        if row["batch"] and row["steps"] and (speeds := [float(speed) for speed in row["throughput"].values() if speed > 0])
    ]
    return max((row["time"] for row in rows), default=0.0) + sum(works)


def simulated(place: int, row: dict[str, Any], *, quota: int | None = None) -> SimJob | None:
    batch, steps = row["batch"], row["steps"]
    speeds = [(int(workers), float(speed)) for workers, speed in row["throughput"].items()]
    model = from_speeds(batch, speeds) if batch and steps and speeds else None
    if model is None:
        return None
    application = Synthetic(row["name"], model.throughput, batch, batch, float(steps))
    name = f"{row['name']}-{place}"
    template = SchedulableJob(
        name,
        row["time"],
        least=row["min_workers"],
        most=row["max_workers"],
        wanted=row["max_workers"],
        priority=2.0 ** (row["priority"] / 10.0),
        preemptible=row.get("preemptible", True),
        owner=row["tenant"],
        quota=quota,
        node_kind=row.get("node_type"),
        pause_s=PAUSE_S,
    )
    shape = BatchRange(batch, batch, fixed=batch)
    return SimJob(name, application, row["time"], shape, template, fixed_growth=True, declares=True)


def outcome_of(answer: dict[str, Any]) -> dict[str, Any]:
    times = sorted(answer["jobs"].values())
    if not times:
        return {
            "policy": answer["policy"],
            "average_s": 0,
            "median_s": 0,
            "p99_s": 0,
            "makespan_s": 0,
            "utilisation": 0,
            "jobs": {},
        }
    return {
        "policy": answer["policy"],
        "average_s": statistics.fmean(times),
        "median_s": statistics.median(times),
        "p99_s": times[min(len(times) - 1, int(0.99 * len(times)))],
        "makespan_s": answer["makespan_s"],
        "utilisation": answer["utilisation"],
        "jobs": answer["jobs"],
    }


def main() -> None:
    request = json.load(sys.stdin)
    try:
        settings = {key: request[key] for key in ("period_s", "kinds", "quota")}
        pipeline = PipelineSettings(turn_s=request["turn_s"], guards=GuardLimits(cooldown_s=request["cooldown_s"]))
        answers = [
            outcome_of(replay(request["rows"], request["nodes"], policy, pipeline=pipeline, **settings))
            for policy in request["policies"]
        ]
        text = json.dumps({"answers": answers})
    except Exception as error:
        text = json.dumps({"error": f"{type(error).__name__}: {error}"})
    print(text)


if __name__ == "__main__":
    main()
