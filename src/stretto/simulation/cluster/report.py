"""The figures of a simulation: completion times, makespan, utilisation, restarts, slot-hours, cost, fairness, decision time.

Finish-time fairness (Mahajan et al., Themis, NSDI'20) is a job's completion time over the time that it would have taken alone on an
equal share of the cluster: all slots divided by the average number of jobs in the system while it was there. Above 1 it would have
been better off with its share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from stretto.batching.goodput import BatchRange, candidates, gain
from stretto.simulation.cluster.application import Application
from stretto.simulation.cluster.engine import SimulationResult
from stretto.simulation.cluster.job import SimJob

UNFAIR = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one simulation, as the command and its JSON show them."""

    jobs: int
    average_s: float
    median_s: float
    p99_s: float
    maximum_s: float
    makespan_s: float
    """From the first arrival to the last end."""
    utilisation: float
    """Share of slot-time that was held by jobs, while there were any."""
    restarts: int
    """Changes of placement after a job's first start."""
    slot_hours: float
    cost: float
    fairness_worst: float
    fairness_above_2: float
    """Share of jobs that took more than twice what an equal share would have given them."""
    decisions: int
    decision_s: float
    """CPU seconds of an average decision."""
    decision_p99_s: float
    outages: int

    def document(self) -> dict[str, float]:
        return asdict(self)


def figures(outcome: SimulationResult) -> Figures:
    times = completion_times(outcome)
    fair = fairness(outcome)
    decisions = np.array(outcome.decision_s or [0.0])
    return Figures(
        jobs=len(times),
        average_s=float(times.mean()),
        median_s=float(np.median(times)),
        p99_s=float(np.percentile(times, 99)),
        maximum_s=float(times.max()),
        makespan_s=outcome.end_s - min(job.arrival_s for job in outcome.jobs),
        utilisation=outcome.held_slot_s / outcome.up_slot_s if outcome.up_slot_s else 0.0,
        restarts=sum(max(job.changes, 0) for job in outcome.jobs),
        slot_hours=sum(job.attained_s for job in outcome.jobs) / 3600.0,
        cost=outcome.cost,
        fairness_worst=float(fair.max()),
        fairness_above_2=float((fair > UNFAIR).mean()),
        decisions=len(outcome.decision_s),
        decision_s=float(decisions.mean()),
        decision_p99_s=float(np.percentile(decisions, 99)),
        outages=outcome.outages,
    )


def completion_times(outcome: SimulationResult) -> np.ndarray:
    return np.array([(job.end_s if job.end_s is not None else outcome.end_s) - job.arrival_s for job in outcome.jobs])


def fairness(outcome: SimulationResult) -> np.ndarray:
    """Each job's completion time over its time on an equal share."""
    slots = sum(node.slots for node in outcome.nodes)
    widest = max(node.slots for node in outcome.nodes)
    times = np.array([time_s for time_s, _ in outcome.active_s])
    counts = np.array([count for _, count in outcome.active_s], dtype=float)
    area = np.concatenate([[0.0], np.cumsum(np.diff(times, prepend=0.0) * counts)])
    grid = np.concatenate([[0.0], times])
    ratios: list[float] = []
    times_s: list[float] = completion_times(outcome).tolist()
    for job, completion_s in zip(outcome.jobs, times_s, strict=True):
        end_s = job.arrival_s + completion_s
        present = float(np.interp(end_s, grid, area) - np.interp(job.arrival_s, grid, area))
        share = slots / max(present / max(completion_s, 1e-9), 1.0)
        ratios.append(completion_s / alone_on_share(job, share, widest))
    return np.array(ratios)


def alone_on_share(job: SimJob, share: float, slots: int) -> float:
    """Seconds for the whole job alone on its share of the slots, packed; a share below 1 is one slot for part of the time."""
    workers = int(max(min(share, job.template.most, job.batch.most_workers), 1))
    return alone_s(job.application, job.batch, workers, slots) / min(share, 1.0)


@lru_cache(maxsize=4096)
def alone_s(application: Application, batch: BatchRange, workers: int, slots: int) -> float:
    """The whole job on a packed placement of this size, with the best batch of every epoch."""
    shape = (slots,) * (workers // slots) + ((workers % slots,) if workers % slots else ())
    local, accumulation = candidates(batch, np.array([workers]), count=20)
    total = 0.0
    for epoch in range(application.epochs):
        steps = application.progress(epoch + 1) - application.progress(epoch)
        best = 0.0
        for part, more in {(int(a), int(b)) for a, b in zip(local[0], accumulation[0], strict=True) if a > 0}:
            step, sync = application.step_s(shape, part)
            size = workers * part * (more + 1)
            worth = gain(*application.noise(size, epoch), size / application.initial_batch)
            best = max(best, worth / (step + (step - sync) * more))
        total += steps / best if best > 0 else float("inf")
    return total
