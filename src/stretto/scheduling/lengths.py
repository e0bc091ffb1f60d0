"""How much work a job has left: declared, or learned from jobs of its family that have ended.

A family is a script or an application that is run again and again. What its finished jobs took is a sample of what the next
one will take, not a promise: the estimate is the Gittins index of the sample beyond what the job has done already, with one more
job in it that never ends. So a family of which one job is known counts twice as long as that one, and a job that outlives all of
its family is as unknown as one without a family.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.scheduling.options import Floats
from stretto.scheduling.words import Job


def work_left(jobs: Sequence[Job]) -> Floats:
    """In the unit of goodput, samples of the initial batch; NaN where nothing is known."""
    return np.array([learned(job) if job.remaining is None else max(job.remaining, 0.0) for job in jobs], dtype=np.float64)


def learned(job: Job) -> float:
    """The least work per end that is to be expected of going on with this job; NaN if its family tells nothing."""
    if job.done is None or not job.finished:
        return float("nan")
    rest = np.sort(np.array(job.finished, dtype=np.float64)) - job.done
    rest = rest[np.isfinite(rest) & (rest > 0)]
    count = len(rest)
    if not count:
        return float("nan")
    place = np.arange(count)
    # Going on until the k-th of the sample ends: the shorter ones have ended by then, everybody else has come as far as the k-th.
    spent = np.concatenate([[0.0], np.cumsum(rest)[:-1]]) + rest * (count + 1 - place)
    return float((spent / (place + 1)).min())
