"""Worths of a look ahead against known optima, and lengths that are learned from a family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from policy_builders import job, nodes

from stretto.batching.throughput import ThroughputModel
from stretto.scheduling.candidate_sizes import options
from stretto.scheduling.length_estimates import LengthHistory, gittins, learned, work_left
from stretto.scheduling.lookahead import _forward, pieces, worths  # pyright: ignore[reportPrivateUsage]
from stretto.scheduling.policies.goodput import goodput
from stretto.scheduling.types import Allocation, ClusterNode, SchedulableJob
from stretto.simulation.cluster.application import Synthetic
from stretto.simulation.cluster.build import build
from stretto.simulation.cluster.engine import Simulation, SimulationSettings
from stretto.simulation.cluster.trace import TraceJob

ALL = 10**6


def test_on_one_slot_the_kth_from_the_longest_is_worth_k() -> None:
    left = np.array([50.0, 10.0, 40.0, 20.0, 30.0])
    cut = pieces(np.ones((5, 1)), np.array([1]))
    found = worths(np.array([0.2, 1.0, 0.4, 0.8, 0.6]), left, cut, 1.0, rounds=12)
    assert found * 5 == pytest.approx([1, 5, 2, 4, 3], rel=0.01)


@pytest.mark.parametrize("power", [0.5, 0.7, 0.9])
def test_for_equal_speedups_a_look_ahead_finds_the_optimum_of_hesrpt(power: float) -> None:
    """Berg et al. 2020: the least sum of completion times is Σ x_k·(k^q − (k−1)^q)^(1−p)/N^p, q = 1/(1−p), longest first."""
    size = np.arange(1, 257)
    left = np.array([900.0, 500.0, 300.0, 120.0, 60.0])
    ranks = np.arange(1, 6)
    cut = pieces(np.tile(size**power, (5, 1)), size)
    best = float((left * (ranks ** (1 / (1 - power)) - (ranks - 1) ** (1 / (1 - power))) ** (1 - power)).sum() / 256**power)
    found = _forward(worths(np.ones(5), left, cut, 256.0, rounds=12), left, cut, 256.0, ALL)[1]
    alike = _forward(np.ones(5), left, cut, 256.0, ALL)[1]
    assert best * 0.999 <= found <= best * 1.01
    assert alike > best * 1.02, "a control: treating all alike must be worse, or this test says nothing"


def test_the_end_of_the_last_counts_as_further_jobs_and_comes_sooner() -> None:
    size = np.arange(1, 65)
    cut = pieces(np.tile(size**0.7, (4, 1)), size)
    left = np.array([4000.0, 300.0, 200.0, 100.0])

    def last_end(weight: float) -> float:
        """The end of all, as what one more job's worth of it adds to the sum."""
        found = worths(np.ones(4), left, cut, 64.0, rounds=12, last=weight)
        return _forward(found, left, cut, 64.0, ALL, 1.0)[1] - _forward(found, left, cut, 64.0, ALL)[1]

    assert last_end(4.0) < last_end(1.0) < last_end(0.0) * 0.995


def test_a_look_ahead_never_does_worse_than_what_it_began_with() -> None:
    random = np.random.default_rng(5)
    size = np.array([1, 2, 4, 8, 16, 32])
    for _ in range(20):
        count = int(random.integers(2, 20))
        speed = size[None, :] ** random.uniform(0.2, 1.0, (count, 1)) * (size[None, :] <= random.choice(size, (count, 1)))
        left, start = random.exponential(1e4, count) + 1, random.uniform(0.1, 1.0, count)
        cut = pieces(speed, size)
        before = _forward(start, left, cut, 16.0, ALL)[1]
        assert _forward(worths(start, left, cut, 16.0), left, cut, 16.0, ALL)[1] <= before * (1 + 1e-9)


def test_the_envelope_skips_sizes_that_are_slower_than_what_lies_between_their_neighbours() -> None:
    cut = pieces(np.array([[1.0, 1.1, 4.0, 3.0]]), np.array([1, 2, 4, 8]))
    assert (cut.slots.tolist(), cut.slope.tolist()) == ([4.0], [1.0])
    assert len(pieces(np.zeros((2, 2)), np.array([1, 2])).row) == 0


@pytest.mark.parametrize(
    ("finished", "done", "left"),
    [
        ((100.0,), 40.0, 120.0),  # one of its family: twice what that one would have left
        ((100.0,) * 9, 40.0, 60.0 * 10 / 9),
        ((10.0, 10.0, 10.0, 1000.0), 0.0, 10.0 * 5 / 3),  # likely to end soon: the long one does not count yet
        ((10.0, 10.0, 10.0, 1000.0), 20.0, 980.0 * 2),
    ],
)
def test_a_family_tells_how_much_is_left(finished: tuple[float, ...], done: float, left: float) -> None:
    assert learned(job("a", finished=finished, done=done)) == pytest.approx(left)


def test_a_job_without_a_family_or_older_than_all_of_it_is_unknown_and_a_declared_length_is_believed() -> None:
    jobs = [job("a", done=5.0), job("b", finished=(10.0, 20.0), done=20.0), job("c", finished=(10.0,), done=1.0, remaining=7.0)]
    assert np.isnan(work_left(jobs)[:2]).all()
    assert work_left(jobs)[2] == 7.0
    assert np.isnan(learned(job("d", finished=(10.0,))))


def test_of_jobs_that_nobody_says_belong_together_the_next_heap_of_lengths_is_presumed() -> None:
    heaps = [50.0] * 20 + [4000.0] * 20 + [30_000.0]
    young, beyond, near, oldest = gittins(heaps, np.array([0.0, 60.0, 3900.0, 40_000.0]))
    assert young < 2.2 * 50.0
    assert 3940.0 < beyond < 1.2 * 4000.0
    assert near < 1.2 * 100.0, "one that nears the middle of a heap is likely to end soon"
    assert np.isnan(oldest)


def test_the_policy_remembers_how_far_jobs_had_come_when_they_went_and_serves_by_that() -> None:
    quick, slow, other = (job(name, done=1e6, attained_s=1e4, most=64) for name in ("quick", "slow", "other"))
    first = goodput([quick, slow, other], nodes(4), Allocation(), 600.0)
    assert isinstance(first.memory, LengthHistory) and not first.memory.ended
    second = goodput([slow, other], nodes(4), first, 660.0)
    assert isinstance(second.memory, LengthHistory)
    done_s, speed = first.memory.running["quick"]
    assert second.memory.ended == (pytest.approx(done_s + speed * 30.0),), "in the middle of the time since it was seen"
    ended = Allocation(memory=LengthHistory(600.0, {}, second.memory.ended * 8))
    single = float(options([slow], nodes(4), held=[0]).single[0])
    near_end, beyond = (share * second.memory.ended[0] * single for share in (0.95, 1.05))
    for one, two in (("slow", "other"), ("other", "slow")):
        told = goodput([replace(slow, name=one, done=near_end), replace(other, name=two, done=beyond)], nodes(4), ended, 660.0)
        swapped = goodput([replace(slow, name=one, done=beyond), replace(other, name=two, done=near_end)], nodes(4), ended, 660.0)
        assert told.workers(one) > told.workers(two) >= 1
        assert swapped.workers(two) > swapped.workers(one) >= 1
    families = [slow, replace(other, finished=(1e9,)), replace(quick, done=near_end)]
    assert goodput(families, nodes(4), ended, 660.0).places == goodput(families, nodes(4), Allocation(), 660.0).places


def test_a_job_of_a_short_family_is_served_before_one_of_a_long_family() -> None:
    short, long = job("short", finished=(1e6,), done=0.0, most=64), job("long", finished=(1e9,), done=0.0, most=64)
    answer = goodput([long, short], nodes(4), Allocation(), 600.0)
    assert answer.workers("short") > answer.workers("long")
    swapped = [replace(long, finished=(1e6,)), replace(short, finished=(1e9,))]
    answer = goodput(swapped, nodes(4), Allocation(), 600.0)
    assert answer.workers("long") > answer.workers("short")


@pytest.mark.parametrize("attained_s", [0.0, 5e3, 1e5])
def test_beside_a_known_length_a_presumed_one_counts_like_a_known_one_that_is_as_long(attained_s: float) -> None:
    """Otherwise whoever's length is not known is squeezed, or squeezes the others, for want of a common measure."""
    known = [job(f"known{n}", remaining=1e6 * 4.0**n, most=64, pause_s=0.0) for n in range(3)]
    unknown = job("u", attained_s=attained_s, most=64, pause_s=0.0)
    presumed_s = 900.0 * 4.0 ** {0.0: 0, 5e3: 2, 1e5: 4}[attained_s]
    single = float(options([unknown], nodes(8), held=[0]).single[0])
    beside = goodput([*known, unknown], nodes(8), Allocation(), 600.0)
    declared = goodput([*known, replace(unknown, remaining=presumed_s * single)], nodes(8), Allocation(), 600.0)
    assert beside.places == declared.places


@pytest.mark.parametrize("pause_s", [0.0, 0.3, 30.0, 600.0, 1e5])
def test_a_job_starts_however_long_a_change_takes(pause_s: float) -> None:
    for remaining in (None, 1.0, 1e9):
        assert goodput([job("a", remaining=remaining, pause_s=pause_s)], nodes(1), Allocation(), 60.0).workers("a") >= 1


def test_the_simulator_tells_of_finished_jobs_of_the_same_application_only() -> None:
    speeds = ThroughputModel(0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0)
    short, long = Synthetic("short", speeds, 100, 100, 300.0), Synthetic("long", speeds, 100, 100, 3000.0)
    trace = [TraceJob("s0", 0.0, short, 1, 100), TraceJob("l0", 0.0, long, 1, 100), TraceJob("s1", 900.0, short, 1, 100)]
    seen: list[SchedulableJob] = []

    def watch(jobs: list[SchedulableJob], machines: list[ClusterNode], now: Allocation, time_s: float) -> Allocation:
        seen.extend(jobs)
        return goodput(jobs, machines, now, time_s)

    for told, expected in ((True, {(), (30000.0,)}), (False, {()})):
        seen.clear()
        Simulation(build(trace, policy="goodput"), nodes(2), watch, SimulationSettings(history=told)).run()  # type: ignore[arg-type]
        assert {one.finished for one in seen} == expected
        assert not [one for one in seen if one.name in ("s0", "l0") and one.finished], "only of what has ended, and of its own"
        assert max(one.done or 0.0 for one in seen if one.name == "l0") > 0
