"""Faithfulness: the published average completion times, on the published traces, with a 30 s restart."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from policy_builders import workload

from stretto.scheduling.genetic import Effort
from stretto.scheduling.policies.optimus import optimus
from stretto.scheduling.policies.pollux import pollux
from stretto.scheduling.policies.tiresias import tiresias
from stretto.scheduling.types import ClusterNode, Policy
from stretto.simulation.cluster.build import build
from stretto.simulation.cluster.engine import Simulation, SimulationSettings
from stretto.simulation.cluster.job import RestartCost
from stretto.simulation.cluster.report import completion_times
from stretto.simulation.cluster.trace import read_trace

WORKLOADS = (1, 3, 5, 7)
TIRESIAS = {
    "0.5": (1451, 1870, 1425, 3979),
    "1.0": (2474, 3876, 3501, 5480),
    "1.5": (5520, 6562, 6832, 5367),
    "2.0": (10138, 10728, 12098, 8371),
}
OPTIMUS = {
    "0.5": (1310, 1987, 1325, 5314),
    "1.0": (4087, 3944, 5656, 7291),
    "1.5": (7674, 5684, 7900, 6426),
    "2.0": (10807, 8363, 11830, 6998),
}
POLLUX = {"0.5": (1060, 1311, 977, 2881)}
NODES = [ClusterNode(f"node-{n:02d}", 4) for n in range(16)]


def average(policy: Policy, name: str, load: str, number: int, *, restart_s: float = 30.0) -> float:
    jobs = build(read_trace(workload(load, number)), policy=name)
    return float(np.mean(completion_times(Simulation(jobs, NODES, policy, SimulationSettings(costs=RestartCost(restart_s))).run())))


def cases(table: dict[str, tuple[int, ...]], quick: str) -> list:
    return [
        pytest.param(load, number, published, marks=() if load == quick else pytest.mark.long)
        for load, row in table.items()
        for number, published in zip(WORKLOADS, row, strict=True)
    ]


@pytest.mark.parametrize(("load", "number", "published"), cases(TIRESIAS, "0.5"))
def test_tiresias_is_within_three_percent_of_the_published_average(load: str, number: int, published: int) -> None:
    assert average(tiresias, "tiresias", load, number) == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(("load", "number", "published"), cases(OPTIMUS, "0.5"))
def test_optimus_is_within_three_percent_of_the_published_average(load: str, number: int, published: int) -> None:
    assert average(optimus, "optimus", load, number) == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(("load", "number", "published"), cases(POLLUX, "none"))
def test_pollux_is_within_ten_percent_of_the_published_average(load: str, number: int, published: int) -> None:
    policy = partial(pollux, effort=Effort(patience=12))
    assert average(policy, "pollux", load, number) == pytest.approx(published, rel=0.10)


def test_another_restart_cost_does_not_give_the_published_average() -> None:
    """The control: the comparison can fail."""
    assert average(tiresias, "tiresias", "0.5", 3, restart_s=600.0) != pytest.approx(1870, rel=0.03)
