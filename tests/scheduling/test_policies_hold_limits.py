"""What must hold for every policy, whatever the jobs and the cluster: checked on random ones."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_builders import BATCH, job, model, nodes

from stretto.batching.goodput import GoodputModel
from stretto.batching.throughput import ThroughputModel
from stretto.core.errors import PolicyError
from stretto.scheduling import registry
from stretto.scheduling.genetic import Effort
from stretto.scheduling.pipeline import check
from stretto.scheduling.policies.pollux import pollux
from stretto.scheduling.slots import free_slots
from stretto.scheduling.types import Allocation, ClusterNode, Policy, SchedulableJob, same, size

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = registry.names()


def policy(name: str) -> Policy:
    return partial(pollux, effort=Effort(population=12, generations=8)) if name == "pollux" else registry.load(name)


@st.composite
def clusters(draw: Any) -> list[ClusterNode]:
    kinds = draw(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2, unique=True))
    return [
        ClusterNode(f"{kind}{number}", draw(st.sampled_from([1, 2, 4, 8])), kind)
        for kind in kinds
        for number in range(draw(st.integers(1, 4)))
    ]


@st.composite
def job_lists(draw: Any) -> list[SchedulableJob]:
    quotas = {"ann": draw(st.none() | st.integers(0, 12)), "bob": None}
    result: list[SchedulableJob] = []
    for number in range(draw(st.integers(1, 9))):
        least = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
        owner = draw(st.sampled_from(["ann", "bob"]))
        models = draw(st.sampled_from([{}, {"a": model()}, {"a": model(noise=1.0), "b": model(scale=0.3)}, {"a": BROKEN}]))
        losses = tuple((60.0 * at, 2.0 / (at + 1)) for at in range(draw(st.integers(0, 4))))
        result.append(
            job(
                f"j{number}",
                arrival_s=float(number),
                least=least,
                most=draw(st.integers(least, 24)),
                wanted=draw(st.integers(1, 12)),
                priority=draw(st.sampled_from([1.0, 1.0, 4.0])),
                owner=owner,
                quota=quotas[owner],
                models=models,
                losses=losses,
                attained_s=draw(st.floats(0, 1e6)),
                restarts=draw(st.integers(0, 5)),
                profiled=draw(st.integers(0, 16)),
                remaining=draw(st.none() | st.floats(0, 1e8)),
                preemptible=draw(st.sampled_from([True, True, False])),
                pinned=draw(st.sampled_from([False, False, False, True])),
                node_kind=draw(st.sampled_from([None, None, None, "a", "b"])),
                pause_s=draw(st.sampled_from([0.1, 30.0])),
            )
        )
    return result


BROKEN = GoodputModel(ThroughputModel(math.nan, -1.0, 0, 0, 0, 0, 1.0), math.nan, -5.0, BATCH)


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(jobs=job_lists(), cluster=clusters(), time_s=st.floats(0, 1e5))
def test_no_limit_is_broken_now_or_in_the_decisions_that_follow(
    name: str, jobs: list[SchedulableJob], cluster: list[ClusterNode], time_s: float
) -> None:
    """Capacity, fewest and most, quotas, pinned and non-preemptible jobs, one kind a job: `check` raises on each."""
    now = Allocation()
    for turn in range(3):
        answer = policy(name)(jobs, cluster, now, time_s + 60 * turn)
        check(jobs, cluster, now, answer)
        assert not set(answer.places) - {one.name for one in jobs}
        jobs, now = (
            jobs[turn:],
            Allocation({one.name: answer.of(one.name) for one in jobs[turn:] if answer.of(one.name)}, {}, answer.memory),
        )
        if not jobs:
            return


@pytest.mark.parametrize("name", NAMES)
@QUICK
@given(jobs=job_lists(), cluster=clusters())
def test_the_same_input_gives_the_same_output(name: str, jobs: list[SchedulableJob], cluster: list[ClusterNode]) -> None:
    one = policy(name)(jobs, cluster, Allocation(), 100.0)
    other = policy(name)(list(jobs), list(cluster), Allocation(), 100.0)
    assert dict(one.places) == dict(other.places)
    assert dict(one.reasons) == dict(other.reasons)


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_job_gets_workers_and_a_reason(name: str) -> None:
    answer = policy(name)([job("only", wanted=2)], nodes(2), Allocation(), 60.0)
    assert answer.workers("only") >= 1
    assert answer.reasons["only"]


@pytest.mark.parametrize("remaining", [0.0, 5e-324, -1.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_job_with_no_work_left_runs_so_that_it_can_end(name: str, remaining: float) -> None:
    """A job that was paused after its last step. Under `goodput` it waited for ever: no size of it was worth anything."""
    answer = policy(name)([job("last", most=1, remaining=remaining)], nodes(1), Allocation(), 60.0)
    assert answer.workers("last") == 1


@pytest.mark.parametrize("name", NAMES)
def test_nodes_that_are_gone_are_not_used(name: str) -> None:
    jobs = [job("a", wanted=4), job("b", wanted=4)]
    now = Allocation({"a": (("n00", 4),), "b": (("n01", 4),)})
    answer = policy(name)(jobs, nodes(1), now, 60.0)
    check(jobs, nodes(1), now, answer)


def test_a_starving_job_does_not_break_the_quota_of_one_that_may_not_be_taken_off() -> None:
    """Together they would have nine of ann's eight slots. Without the first one the second runs: it is not refused for itself."""
    held = job("held", owner="ann", quota=8, preemptible=False, most=1)
    starving = job("starving", owner="ann", quota=8, least=8, most=8)
    cluster, now = nodes(4), Allocation({"held": (("n00", 1),)})
    answer = policy("goodput")([held, starving], cluster, now, 7200.0)
    check([held, starving], cluster, now, answer)
    assert answer.workers("held") == 1 and answer.workers("starving") == 0
    assert policy("goodput")([starving], cluster, Allocation(), 7200.0).workers("starving") == 8


@pytest.mark.parametrize("name", ["quality", "efficiency", "pollux", "goodput"])
@pytest.mark.parametrize("numbers", [(math.nan,) * 7, (-1.0,) * 7, (1e30,) * 7, (0.0,) * 7])
def test_a_broken_model_costs_nobody_his_place(name: str, numbers: tuple[float, ...]) -> None:
    broken = GoodputModel(ThroughputModel(*numbers), math.nan, -1.0, BATCH)
    jobs = [job("broken", models={"default": broken}, most=4), job("bare", models={}, most=4), job("fine", most=4)]
    answer = policy(name)(jobs, nodes(4), Allocation(), 60.0)
    check(jobs, nodes(4), Allocation(), answer)
    assert all(answer.workers(one.name) >= 1 for one in jobs)


@pytest.mark.parametrize("name", ["quality", "efficiency", "goodput"])
@QUICK
@given(jobs=job_lists(), cluster=clusters())
def test_a_slot_is_idle_only_if_no_waiting_job_fits_in_it(
    name: str, jobs: list[SchedulableJob], cluster: list[ClusterNode]
) -> None:
    jobs = [one for one in jobs if one.quota is None]
    answer = policy(name)(jobs, cluster, Allocation(), 60.0)
    free = free_slots(cluster, answer.places)
    for one in jobs:
        widest = max((free[node.name] for node in cluster if one.runs_on(node.kind)), default=0)
        assert answer.workers(one.name) or one.least > widest


@QUICK
@given(st.lists(st.tuples(st.floats(0.5, 400), st.floats(0.2, 4)), min_size=1, max_size=10), st.integers(1, 6))
def test_two_spread_jobs_never_share_a_node(shapes: list[tuple[float, float]], count: int) -> None:
    jobs = [job(f"j{n}", models={"default": model(noise=noise, sync=sync)}, most=32) for n, (noise, sync) in enumerate(shapes)]
    answer = policy("goodput")(jobs, nodes(count), Allocation(), 60.0)
    spread = [node for placement in answer.places.values() if len(placement) > 1 for node, _ in placement]
    assert len(spread) == len(set(spread))


class TestTheCheckItself:
    """The control: what `check` must refuse."""

    def refused(self, jobs: list[SchedulableJob], answer: Allocation, now: Allocation | None = None) -> str:
        with pytest.raises(PolicyError) as caught:
            check(jobs, nodes(2), now or Allocation(), answer)
        return str(caught.value)

    def test_too_many_on_a_node(self) -> None:
        assert "has 4 slots, 6 were" in self.refused([job("a"), job("b")], Allocation({"a": (("n00", 3),), "b": (("n00", 3),)}))

    def test_outside_the_limits(self) -> None:
        assert "limits are 2 to 3" in self.refused([job("a", least=2, most=3)], Allocation({"a": (("n00", 1),)}))

    def test_a_finished_job(self) -> None:
        assert "not a waiting or running job" in self.refused([job("a")], Allocation({"gone": (("n00", 1),)}))

    def test_a_quota(self) -> None:
        jobs = [job("a", owner="ann", quota=3), job("b", owner="ann", quota=3)]
        assert "quota of 3" in self.refused(jobs, Allocation({"a": (("n00", 2),), "b": (("n01", 2),)}))

    def test_a_pinned_job_that_moves(self) -> None:
        now = Allocation({"a": (("n00", 2),)})
        assert "pinned" in self.refused([job("a", pinned=True)], Allocation({"a": (("n01", 2),)}), now)

    def test_a_job_that_may_not_be_preempted(self) -> None:
        assert "not preemptible" in self.refused([job("a", preemptible=False)], Allocation(), Allocation({"a": (("n00", 2),)}))

    def test_the_order_of_a_placement_does_not_matter(self) -> None:
        assert same((("a", 1), ("b", 2)), (("b", 2), ("a", 1)))
        assert size((("a", 1), ("b", 2))) == 3
