"""How much work a job has left: declared, or learned from jobs of its family that have ended, or from all that have.

A family is a script or an application that is run again and again. What its finished jobs took is a sample of what the next
one will take, not a promise: the estimate is the Gittins index of the sample beyond what the job has done already, with one more
job in it that never ends. So a family of which one job is known counts twice as long as that one, and a job that outlives all of
its family is as unknown as one without a family.

Where nobody says what belongs together, a policy can still see how far every job had come when it went away
(`LengthHistory`), in seconds of
one worker, so that jobs of all kinds are in one sample. Lengths come in heaps: a job that has outlived one heap will be in
the next, and one that nears the middle of a heap is likely to end soon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.scheduling.candidate_sizes import Floats
from stretto.scheduling.types import SchedulableJob

LEAST_WORK = 1e-6
"""Work left of a job that declares none, in samples: it has to run once more to end. With 0 every size would be worth nothing."""


def work_left(jobs: Sequence[SchedulableJob]) -> Floats:
    """In the unit of goodput, samples of the initial batch; NaN where nothing is known."""
    return np.array([learned(job) if job.remaining is None else max(job.remaining, LEAST_WORK) for job in jobs], dtype=np.float64)


def learned(job: SchedulableJob) -> float:
    """The least work per end that is to be expected of going on with this job; NaN if its family tells nothing."""
    if job.done is None or not job.finished:
        return float("nan")
    return float(gittins(job.finished, np.array([job.done]))[0])


def gittins(sample: Sequence[float], done: Floats) -> Floats:
    """The least that has to be spent per end on jobs that have come so far, if their length is one of the sample or endless."""
    lengths = np.array(sample, dtype=np.float64)
    rest = np.sort(lengths[np.isfinite(lengths)])[None, :] - done[:, None]
    left = rest > 0
    place = np.cumsum(left, axis=1) - 1
    # Going on until the k-th of the sample ends: the shorter ones have ended by then, everybody else has come as far as the k-th.
    shorter = np.cumsum(np.where(left, rest, 0.0), axis=1) - rest
    spent = shorter + rest * (left.sum(axis=1, keepdims=True) + 1 - place)
    each = np.where(left, spent / np.maximum(place + 1, 1), np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(each), each, np.nan)


MOST_ENDED = 128
"""Ended jobs that are remembered, the latest: enough for kinds of jobs that are one in twenty."""


@dataclass(frozen=True, slots=True)
class LengthHistory:
    """A policy's memory of lengths, all in seconds of one worker."""

    time_s: float = 0.0
    running: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """How far each job had come at that time, and its speed from then on."""
    ended: tuple[float, ...] = ()

    def without(self, gone: Iterable[str], time_s: float) -> tuple[float, ...]:
        """How far those came that have ended; in the middle of the time since they were seen last, for want of the moment."""
        ended = (self.running[name] for name in gone)
        return (*self.ended, *(done + speed * max(time_s - self.time_s, 0.0) / 2 for done, speed in ended))[-MOST_ENDED:]
