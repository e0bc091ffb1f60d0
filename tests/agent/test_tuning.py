"""What the agent makes of commits: the autoscaler and the straggling watch, with a clock and an agent of their own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from stretto.agent.sizing import MOST_REPLACED, SKIPPED, Autoscaler, StragglerMonitor
from stretto.batching import stragglers
from stretto.batching.autoscale import AutoscaleConfig, Efficiency, Goal, Heuristic
from stretto.core.errors import UsageError
from stretto.core.journal import Commit


class Agent:
    """Does at once what it is asked for."""

    def __init__(self, *, workers: int = 1, refuses: bool = False) -> None:
        self.wanted = workers
        self.free: int | None = None
        self.refuses = refuses
        self.told: list[str] = []
        self.speeds: Mapping[str, float] = {}
        self.replaced: list[str] = []
        self.shares: list[tuple[str, int]] = []

    def scale(self, workers: int) -> None:
        if self.refuses:
            raise UsageError("no room")
        self.wanted = workers

    def explain(self, text: str) -> None:
        self.told.append(text)

    explain_straggler = explain

    def set_speeds(self, speeds: Mapping[str, float]) -> None:
        self.speeds = speeds

    def replace_worker(self, worker: str, reason: str) -> None:
        self.replaced.append(worker)


def commit(**fields: Any) -> Commit:
    usual = {"step": 0, "epoch": 0, "loader": 0, "first": 0, "count": 64, "batch": 64, "roster": 1, "workers": 1}
    return Commit(**{**usual, **fields})


def trained(agent: Agent, scaler: Autoscaler, clock: list[float], *, steps: int, step_s: dict[int, float], first: int = 0) -> None:
    for step in range(first, first + steps):
        clock[0] += step_s[agent.wanted]
        scaler.commit(commit(step=step, workers=agent.wanted, count=64, step_s=step_s[agent.wanted], left=10**7))


def test_a_job_that_scales_is_grown_to_what_is_allowed():
    agent, clock = Agent(), [0.0]
    scaler = Autoscaler(AutoscaleConfig(Efficiency(0.6), 1, 4), agent, clock=lambda: clock[0])
    trained(agent, scaler, clock, steps=200, step_s={1: 0.4, 2: 0.2, 4: 0.1})
    assert agent.wanted == 4
    assert agent.told == [
        "1 to 2 workers: trying 2 workers",
        "2 to 4 workers: trying 4 workers",
        "settled on 4 workers: the most allowed",
    ]


@pytest.mark.parametrize("goal", [Efficiency(0.6), Heuristic(1, 10)])
def test_a_job_on_hosts_without_more_room_stays_as_large_as_they_allow(goal: Goal):
    agent, clock = Agent(workers=2), [0.0]
    agent.free = 0
    scaler = Autoscaler(AutoscaleConfig(goal, 2, 8), agent, clock=lambda: clock[0])
    trained(agent, scaler, clock, steps=100, step_s={2: 0.2})
    assert agent.wanted == 2
    assert "all that can be had" in agent.told[-1]
    agent.free = 2  # a host has come
    trained(agent, scaler, clock, steps=1, step_s={2: 0.2}, first=100)
    assert agent.wanted > 2


@pytest.mark.parametrize(("step_s", "apart_s"), [({1: 0.40, 2: 0.38}, 180.0), ({1: 60.0, 2: 55.0}, 6600.0)])
def test_a_size_that_did_not_pay_is_tried_again_when_its_measurement_has_expired_and_not_before(
    step_s: dict[int, float], apart_s: float
):
    agent, clock = Agent(), [0.0]
    scaler = Autoscaler(AutoscaleConfig(Efficiency(0.6), 1, 2), agent, clock=lambda: clock[0])
    tried: list[float] = []
    for step in range(1500):
        before = agent.wanted
        trained(agent, scaler, clock, steps=1, step_s=step_s, first=step)
        if agent.wanted > before:
            tried.append(clock[0])
    assert len(tried) >= 3
    assert min(later - sooner for sooner, later in pairwise(tried)) > apart_s


def test_a_job_with_slow_steps_whose_speed_changes_looks_again():
    agent, clock = Agent(), [0.0]
    scaler = Autoscaler(AutoscaleConfig(Efficiency(0.6), 1, 2), agent, clock=lambda: clock[0])
    trained(agent, scaler, clock, steps=60, step_s={1: 100.0, 2: 50.0})
    assert agent.wanted == 2
    trained(agent, scaler, clock, steps=60, step_s={1: 100.0, 2: 95.0}, first=60)
    assert "2 to 1 worker: trying 1 worker, to see what the others bring" in agent.told


def test_the_first_steps_of_a_roster_are_not_measured():
    agent, clock = Agent(), [0.0]
    scaler = Autoscaler(AutoscaleConfig(Efficiency(0.6), 1, 4, steps=1, window_s=0.0), agent, clock=lambda: clock[0])
    trained(agent, scaler, clock, steps=SKIPPED, step_s={1: 0.4})
    assert agent.wanted == 1
    trained(agent, scaler, clock, steps=1, step_s={1: 0.4, 2: 0.2}, first=SKIPPED)
    assert agent.wanted == 2


def test_a_refusal_is_explained_and_the_job_goes_on():
    agent, clock = Agent(refuses=True), [0.0]
    scaler = Autoscaler(AutoscaleConfig(Efficiency(0.6), 1, 4), agent, clock=lambda: clock[0])
    trained(agent, scaler, clock, steps=100, step_s={1: 0.4})
    assert agent.wanted == 1
    assert agent.told == ["trying 2 workers; refused: no room"]


def test_measured_starts_and_pauses_decide_whether_a_late_change_pays():
    agent, clock = Agent(), [0.0]
    scaler = Autoscaler(AutoscaleConfig(Efficiency(0.6), 1, 2), agent, clock=lambda: clock[0])
    for step in range(100):  # 64 samples in 0.4 s, and 30 s of them are left
        clock[0] += 0.4
        scaler.commit(commit(step=step, workers=1, count=64, step_s=0.4, left=64 * 75))
        if step == 10:
            scaler._startups.append(25.0)
    assert agent.wanted == 1
    assert "no change in the last 30.0 s" in agent.told[0]


def test_a_slow_worker_is_told_of_once_and_its_speed_is_set():
    agent = Agent()
    agent.shares = [("a", 4), ("b", 4), ("c", 4), ("d", 4)]
    watch = StragglerMonitor(stragglers.StragglerConfig(), agent)
    for step in range(12):
        watch.commit(commit(step=step, roster=1, slice_s={"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0}))
    assert len(agent.told) == 1
    assert round(agent.speeds["d"], 2) == 0.33


def test_nothing_is_judged_while_the_roster_changes():
    agent = Agent()
    watch = StragglerMonitor(stragglers.StragglerConfig(), agent)
    for step in range(100):
        watch.commit(commit(step=step, roster=1, slice_s={"a": 1.0, "b": 9.0}))
    assert agent.told == []


def test_replacing_ends_somewhere():
    agent = Agent()
    watch = StragglerMonitor(stragglers.StragglerConfig(mode="replace"), agent)
    for number in range(20):
        slow = f"slow{number}"
        agent.shares = [("a", 5), ("b", 5), ("c", 5), (slow, 1)]
        for step in range(200):
            watch.commit(commit(step=step, roster=number, slice_s={"a": 1.0, "b": 1.0, "c": 1.0, slow: 30.0}))
    assert len(agent.replaced) == MOST_REPLACED
    assert len(set(agent.replaced)) == MOST_REPLACED
