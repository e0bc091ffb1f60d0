"""From a trace to simulated jobs, set up for the policy that will run them.

A policy's traits say how jobs choose their batch under it. Policies that do not choose batches run every job at the batch of the
trace (`fixed`); `linear` keeps each worker's part of it;
`adaptive` lets the job choose its batch by goodput, as far as its application was validated. As in the published
simulation, a job of an adaptive policy may ask for at most twice the workers that it has run on so far, since its model
knows no more.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.batching.goodput import BatchRange
from stretto.scheduling.registry import load
from stretto.scheduling.types import SchedulableJob
from stretto.simulation.cluster.job import Costs, RestartCost, SimJob
from stretto.simulation.cluster.profiles import FIXED_BATCH
from stretto.simulation.cluster.trace import TraceJob


def build(
    trace: Sequence[TraceJob],
    *,
    policy: str,
    batching: str | None = None,
    declared: bool = False,
    costs: Costs | None = None,
) -> list[SimJob]:
    traits = load(policy).traits
    chosen = batching or traits.batch
    paying = costs or RestartCost()
    pause = paying.seconds if isinstance(paying, RestartCost) else paying.pause_s
    return [
        SimJob(
            job.name,
            job.application,
            job.time_s,
            batch_range(job, chosen),
            SchedulableJob(
                job.name,
                job.time_s,
                least=job.least,
                most=job.most,
                wanted=job.workers,
                priority=job.priority,
                deadline_s=job.deadline_s,
                preemptible=job.preemptible,
                owner=job.owner,
                quota=job.quota,
                node_kind=job.node_kind,
                pause_s=pause,
            ),
            fixed_growth=chosen == "fixed",
            declares=declared,
            needs_model=chosen != "fixed" or traits.batch == "adaptive",
            whole_seconds=True,
            oracle=traits.needs_lengths and chosen == "fixed",
        )
        for job in trace
    ]


def batch_range(job: TraceJob, batching: str) -> BatchRange:
    application = job.application
    fixed = job.batch if batching == "fixed" else FIXED_BATCH.get(application.name)
    part = max(job.batch // job.workers, 1) if batching == "linear" and fixed is None else None
    return BatchRange(
        application.initial_batch,
        application.most_batch,
        application.local_low,
        application.local_high,
        fixed=fixed,
        per_worker=part,
    )
