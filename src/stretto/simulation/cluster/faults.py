"""Noise, broken nodes and reclaimed spot nodes: everything random about a simulation, from one seed.

Every node has its own stream of random numbers, and so has every job: what happens to one does not depend on what a policy does to
another, so policies are compared under the same weather.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.scheduling.types import ClusterNode


@dataclass(frozen=True, slots=True)
class FaultModel:
    """What goes wrong."""

    seed: int = 0
    noise: float = 0.0
    """Relative standard deviation of what a job measures of its own speed."""
    failures_per_day: float = 0.0
    """Of each node."""
    repair_s: float = 1800.0
    reclaims_per_hour: float = 0.0
    """Of each spot node."""
    absent_s: float = 1800.0
    """Until a reclaimed spot node can be had again."""


@dataclass(frozen=True, slots=True, order=True)
class Outage:
    """A node is gone from `start_s` to `end_s`; `reclaimed` if its provider took it back, otherwise it broke. Ordered by start."""

    start_s: float
    node: str = field(compare=True)
    end_s: float = 0.0
    reclaimed: bool = False


def stream(seed: int, *names: str) -> np.random.Generator:
    return np.random.default_rng([seed, *(zlib.crc32(name.encode()) for name in names)])


def outages(node: ClusterNode, weather: FaultModel) -> Iterator[Outage]:
    """The node's outages in order of time, without end."""
    rate = weather.failures_per_day / 86400.0
    spot_rate = weather.reclaims_per_hour / 3600.0 if node.spot else 0.0
    if rate + spot_rate <= 0:
        return
    random = stream(weather.seed, "node", node.name)
    time_s = 0.0
    while True:
        time_s += float(random.exponential(1.0 / (rate + spot_rate)))
        reclaimed = bool(random.random() < spot_rate / (rate + spot_rate))
        absent = weather.absent_s if reclaimed else weather.repair_s
        yield Outage(time_s, node.name, time_s + absent, reclaimed)
        time_s += absent


class Noise:
    """Multiplies what jobs measure by log-normal noise, each job with its own stream."""

    def __init__(self, weather: FaultModel, jobs: Sequence[str]):
        self._width = weather.noise
        self._streams = {name: stream(weather.seed, "job", name) for name in jobs} if weather.noise > 0 else {}

    def __call__(self, job: str, value: float) -> float:
        if self._width <= 0:
            return value
        return value * float(np.exp(self._streams[job].normal(0.0, self._width)))
