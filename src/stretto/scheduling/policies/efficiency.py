"""Throughput scaling efficiency compared between jobs: the open question of the elastic training survey.

The AutoScaling Engine (Or et al., MLSys'20) grows one job while s_{k,d} = (ΔR/Δk)/r_k, the throughput that d more workers add for
each of them over what a worker does now, is above a threshold S. In a full cluster somebody else has to shrink for it. Here
all jobs start from their fewest workers; the next worker goes to the job with the highest s_{k,d} as long as that is above
S. A job that holds workers keeps them against a challenger unless the challenger's efficiency is higher by a margin, so
sizes do not flutter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.scheduling.allocate import Setting, allocate
from stretto.scheduling.candidate_sizes import Floats
from stretto.scheduling.types import Allocation, ClusterNode, PolicyTraits, SchedulableJob

TRAITS = PolicyTraits()
THRESHOLD = 0.5
"""S: below this, a worker is better left idle."""
MARGIN = 0.1
"""How much more efficient a challenger has to be."""


def efficiency(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    now: Allocation,
    time_s: float,
    *,
    threshold: float = THRESHOLD,
) -> Allocation:
    return allocate(jobs, nodes, now, time_s, lambda setting: _value(setting, threshold))


def _value(setting: Setting, threshold: float) -> Floats:
    """Values whose increments for each added worker are the scaling efficiencies, so that marginal allocation compares them."""
    speed, size = setting.table.speed, setting.table.size
    value = np.full(speed.shape, -np.inf)
    for group in range(len(setting.table.groups)):
        columns = np.flatnonzero(setting.table.group == group)
        columns = columns[np.argsort(size[columns], kind="stable")]
        worth = np.zeros(len(speed))
        before_speed = np.zeros(len(speed))
        before_size = np.zeros(len(speed))
        open_ = np.ones(len(speed), dtype=bool)
        for column in columns:
            can = open_ & (speed[:, column] > 0)
            added = size[column] - before_size
            with np.errstate(divide="ignore", invalid="ignore"):
                scaling = np.where(before_size > 0, (speed[:, column] - before_speed) / added / (before_speed / before_size), 1.0)
            scaling = np.where(setting.held >= size[column], scaling + MARGIN, scaling)
            first = can & (before_size == 0)
            grows = first | (can & (scaling > threshold))
            # The first workers count most: nobody is kept out so that somebody else can grow.
            gain = np.where(first, 2.0 * size[column], np.minimum(scaling, 1.0 + MARGIN) * added)
            worth = np.where(grows, worth + gain, worth)
            value[grows, column] = worth[grows]
            open_ &= ~can | grows
            before_speed = np.where(grows, speed[:, column], before_speed)
            before_size = np.where(grows, size[column], before_size)
    priority = np.array([job.priority for job in setting.jobs])
    return value * priority[:, None]
