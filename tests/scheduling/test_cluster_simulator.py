"""The simulator: virtual time, costs of changes, weather, figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_builders import nodes

from stretto.batching.throughput import ThroughputModel
from stretto.core.errors import PolicyError, UsageError
from stretto.scheduling.policies.fifo import fifo
from stretto.scheduling.policies.goodput import goodput
from stretto.scheduling.types import Allocation, ClusterNode
from stretto.simulation.cluster.application import Synthetic
from stretto.simulation.cluster.build import build
from stretto.simulation.cluster.engine import Simulation, SimulationResult, SimulationSettings
from stretto.simulation.cluster.faults import FaultModel
from stretto.simulation.cluster.job import RestartCost, StopFree
from stretto.simulation.cluster.report import figures
from stretto.simulation.cluster.trace import TraceJob

SECOND = ThroughputModel(0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0)
"""A step of 100 samples takes a second on one worker, half on two."""


def trace(count: int = 1, *, steps: float = 600.0, every_s: float = 60.0, workers: int = 1) -> list[TraceJob]:
    application = Synthetic("plain", SECOND, 100, 1600, steps, noise_scale=1e9)
    return [TraceJob(f"job-{n}", n * every_s, application, workers, 100, most=16) for n in range(count)]


def run(
    jobs: list[TraceJob],
    policy: str = "fifo",
    *,
    cluster: list[ClusterNode] | None = None,
    settings: SimulationSettings | None = None,
) -> SimulationResult:
    chosen = settings or SimulationSettings()
    function = {"fifo": fifo, "goodput": goodput}[policy]
    return Simulation(build(jobs, policy=policy, costs=chosen.costs), cluster or nodes(2), function, chosen).run()


def test_a_lone_job_takes_its_wait_its_start_and_its_work() -> None:
    outcome = run(trace(), settings=SimulationSettings(costs=RestartCost(30.0)))
    # Arrives at 0, seen by the first decision at 60, starts for 30 s, works for 600 steps of one second.
    assert outcome.jobs[0].end_s == pytest.approx(60 + 30 + 600, abs=5)


@pytest.mark.parametrize("arrival_s", [0.0, 5.0])
def test_deciding_on_events_does_not_wait_for_the_period(arrival_s: float) -> None:
    """Not even for a job that is there from the beginning: it waited for the first period, and hid arrivals before its end."""
    late = run(trace(), settings=SimulationSettings(costs=RestartCost(0.0), period_s=3600))
    soon = run(
        [replace(one, time_s=arrival_s) for one in trace()],
        settings=SimulationSettings(costs=RestartCost(0.0), period_s=3600, on_events=True),
    )
    assert late.jobs[0].end_s == pytest.approx(4200, abs=5)
    assert soon.jobs[0].end_s == pytest.approx(arrival_s + 600, abs=5)


def test_the_same_seed_gives_the_same_day_and_another_seed_another() -> None:
    def ends(seed: int) -> list[float | None]:
        weather = FaultModel(seed=seed, noise=0.05, failures_per_day=20.0)
        return [job.end_s for job in run(trace(6), "goodput", settings=SimulationSettings(weather=weather)).jobs]

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


def test_stop_free_changes_cost_less_than_restarts() -> None:
    restarting = figures(run(trace(6, steps=3000), "goodput", settings=SimulationSettings(costs=RestartCost(60.0))))
    stop_free = figures(run(trace(6, steps=3000), "goodput", settings=SimulationSettings(costs=StopFree(0.3, 10.0))))
    assert stop_free.average_s < restarting.average_s


def test_a_failed_node_costs_a_restarting_job_more_than_a_stop_free_one() -> None:
    weather = FaultModel(seed=3, failures_per_day=100.0, repair_s=60.0)
    jobs = trace(2, steps=20000)
    restarting = run(jobs, "goodput", settings=SimulationSettings(costs=RestartCost(30.0), weather=weather))
    stop_free = run(jobs, "goodput", settings=SimulationSettings(costs=StopFree(), weather=weather))
    assert restarting.outages > 0
    assert figures(stop_free).average_s < figures(restarting).average_s


def test_only_spot_nodes_are_reclaimed() -> None:
    weather = FaultModel(seed=1, reclaims_per_hour=30.0, absent_s=60.0)
    assert run(trace(2), cluster=nodes(2), settings=SimulationSettings(weather=weather)).outages == 0
    assert run(trace(2), cluster=nodes(2, spot=True), settings=SimulationSettings(weather=weather)).outages > 0


def test_faster_nodes_finish_sooner_and_cost_what_they_cost() -> None:
    slow = run(trace(), cluster=[ClusterNode("a", 1, "slow", price=1.0)])
    fast = run(trace(), cluster=[ClusterNode("a", 1, "fast", price=1.0)], settings=SimulationSettings(speeds=(("fast", 4.0),)))
    assert fast.end_s < slow.end_s
    assert fast.cost == pytest.approx(fast.end_s / 3600, rel=0.1)


def test_adaptive_batches_end_sooner_where_noise_allows_them_and_not_where_it_does_not() -> None:
    chatty = replace(SECOND, alpha_across=1.0, alpha_within=1.0)

    def ends(noise_scale: float) -> float:
        application = Synthetic("chatty", chatty, 100, 1600, 20000.0, noise_scale=noise_scale)
        return run([replace(trace()[0], application=application)], "goodput", cluster=nodes(4)).end_s

    assert ends(1e9) < 0.5 * ends(0.0)


def test_waiting_jobs_are_less_fairly_treated_than_a_lone_one() -> None:
    alone = figures(run(trace(1, steps=6000), cluster=nodes(1, 1)))
    queued = figures(run(trace(4, steps=6000, every_s=0.0), cluster=nodes(1, 1)))
    assert alone.fairness_worst < 1.2
    assert queued.utilisation > 0.9
    assert queued.maximum_s > 3 * alone.maximum_s


def test_a_policy_that_breaks_a_limit_is_stopped() -> None:
    def greedy(jobs, nodes_, now, time_s):  # type: ignore[no-untyped-def]
        return Allocation({job.name: ((nodes_[0].name, nodes_[0].slots),) for job in jobs})

    with pytest.raises(PolicyError, match="has 4 slots, 8 were allocated"):
        Simulation(build(trace(2, every_s=0.0), policy="goodput", batching="fixed"), nodes(2), greedy, SimulationSettings()).run()


def test_jobs_that_can_never_run_are_named_and_the_simulation_ends() -> None:
    wide = [replace(one, least=32, most=32) for one in trace()]
    with pytest.raises(UsageError, match="job-0"):
        run(wide, "goodput", settings=SimulationSettings(most_s=7200.0))
