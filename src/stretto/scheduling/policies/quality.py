"""Loss-driven (Zhang et al., SLAQ, SoCC'17): workers go where the loss falls fastest.

From the losses that applications report, each job's recent fall per second is taken relative to all that it has fallen so
far, so that jobs with different losses compare. With k workers it would fall s(k)/s(now) times as fast. The sizes with the
largest total fall win. A job that has reported fewer than two losses is taken to fall as fast as the fastest: it is let in
and measured. Stateless: an arrival or a departure changes the very next decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from stretto.scheduling.allocate import Setting, allocate
from stretto.scheduling.candidate_sizes import Floats
from stretto.scheduling.types import Allocation, ClusterNode, PolicyTraits, SchedulableJob

TRAITS = PolicyTraits()
RECENT = 8
"""Reports that count as recent; each counts half as much as the one after it."""
LEAST_SHARE = 0.02
"""A job whose loss has stopped falling still counts this share of the fastest, so that it ends at all."""


def quality(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], now: Allocation, time_s: float) -> Allocation:
    answer = allocate(jobs, nodes, now, time_s, _value)
    falls = {job.name: fall(job) for job in jobs}
    reasons = {name: text + _said(falls.get(name)) for name, text in answer.reasons.items()}
    return Allocation(answer.places, reasons)


def fall(job: SchedulableJob) -> float | None:
    """The recent fall of the loss per second, relative to its whole fall so far; None if too little was reported."""
    losses = [(time_s, loss) for time_s, loss in job.losses if np.isfinite(loss) and np.isfinite(time_s)]
    if len(losses) < 2:
        return None
    best = min(loss for _, loss in losses)
    whole = losses[0][1] - best
    if whole <= 0:
        return 0.0
    recent = losses[-RECENT:]
    weight = rate = 0.0
    for place, ((t0, l0), (t1, l1)) in enumerate(pairwise(recent)):
        if t1 > t0:
            share = 0.5 ** (len(recent) - place)
            weight += share
            rate += share * max(l0 - l1, 0.0) / (t1 - t0)
    return rate / weight / whole if weight else 0.0


def _value(setting: Setting) -> Floats:
    falls = [fall(job) for job in setting.jobs]
    fastest = max((rate for rate in falls if rate is not None), default=0.0) or 1.0
    rates = np.array([fastest if rate is None else max(rate, LEAST_SHARE * fastest) for rate in falls])
    rates *= np.array([job.priority for job in setting.jobs])
    speed = setting.table.speed
    held = setting.held[:, None] == setting.table.size[None, :]
    now = np.where(held, speed, 0.0).max(axis=1)
    now = np.where(now > 0, now, 1.0)
    return rates[:, None] * speed / now[:, None]


def _said(rate: float | None) -> str:
    return "; no losses reported yet" if rate is None else f"; its loss falls by {rate:.2%} of its whole fall a second"
