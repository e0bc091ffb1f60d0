"""Jobs of the published workloads, set up as the published simulation did for each kind of policy."""

from __future__ import annotations

from stretto.batching.goodput import BatchRange
from stretto.scheduling.words import Job
from stretto.simulation.cluster.application import Application
from stretto.simulation.cluster.job import SimJob
from stretto.simulation.cluster.profiles import FIXED_BATCH, MOST_WORKERS

MOST_SLOTS = 64


def published_job(
    application: Application, *, name: str, time_s: float, workers: int, batch: int, batching: str, declares: bool = False,
    oracle: bool = False, pause_s: float = 30.0,
) -> SimJob:
    """`batching`: fixed (the tuned size and batch of the trace) or adaptive (chosen by goodput)."""
    fixed = batch if batching == "fixed" else FIXED_BATCH.get(application.name)
    bounds = BatchRange(application.initial_batch, application.most_batch, application.local_low, application.local_high, fixed=fixed)
    template = Job(name, time_s, most=MOST_WORKERS.get(application.name, MOST_SLOTS), wanted=workers, pause_s=pause_s)
    return SimJob(
        name, application, time_s, bounds, template, fixed_growth=batching == "fixed", declares=declares,
        needs_model=batching != "fixed", oracle=oracle, whole_seconds=True,
    )
