"""The default policy: near the optimum of its own objective, and doing what it is for."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_builders import job, model, nodes

from stretto.scheduling.knapsack import choose, total
from stretto.scheduling.policies.goodput import GoodputTuning, goodput
from stretto.scheduling.types import Allocation, SchedulableJob


def jobs_of(random: np.random.Generator, count: int) -> list[SchedulableJob]:
    return [
        job(
            f"j{n}",
            arrival_s=float(n),
            attained_s=float(random.exponential(2e4)),
            most=int(random.integers(1, 17)),
            models={"default": model(noise=float(random.exponential(100)), sync=float(random.uniform(0.1, 4)))},
            remaining=float(random.exponential(1e7)) if random.random() < 0.5 else None,
        )
        for n in range(count)
    ]


def brute_force(value: np.ndarray, size: np.ndarray, group: np.ndarray, capacity: np.ndarray) -> float:
    best = 0.0
    for picks in itertools.product(range(-1, value.shape[1]), repeat=len(value)):
        used = np.zeros(len(capacity))
        worth = 0.0
        for row, pick in enumerate(picks):
            if pick >= 0:
                used[group[pick]] += size[pick]
                worth += value[row, pick]
        if np.isfinite(worth) and (used <= capacity).all():
            best = max(best, worth)
    return best


def test_sizes_are_within_five_percent_of_the_best_on_200_small_instances() -> None:
    random = np.random.default_rng(7)
    gaps: list[float] = []
    for _ in range(200):
        groups = int(random.integers(1, 3))
        size = np.tile(np.array([1, 2, 4]), groups)
        group = np.repeat(np.arange(groups), 3)
        rows = int(random.integers(1, 5 if groups == 1 else 4))
        speed = np.sort(random.uniform(0.2, 4.0, (rows, groups, 3)), axis=2).reshape(rows, -1)
        value = np.where(random.random(speed.shape) < 0.1, -np.inf, speed * random.exponential(1.0, (rows, 1)))
        capacity = random.integers(1, 9, groups)
        picks = choose(value, size, group, capacity)
        used = np.bincount(group[picks[picks >= 0]], weights=size[picks[picks >= 0]], minlength=groups)
        assert (used <= capacity).all()
        best = brute_force(value, size, group, capacity)
        gaps.append(1.0 - total(value, picks) / best if best > 0 else 0.0)
    assert min(gaps) > -1e-9
    assert max(gaps) <= 0.05, f"the worst of 200 is {max(gaps):.1%} below the optimum, {np.mean(np.array(gaps) > 0.05):.0%} are"


def test_prices_alone_are_within_one_percent_of_the_best_for_many_jobs() -> None:
    random = np.random.default_rng(11)
    size, group = np.array([1, 2, 4, 8, 16, 32]), np.zeros(6, dtype=np.int64)
    for _ in range(5):
        value = size[None, :] ** random.uniform(0.3, 0.95, (300, 1)) * random.exponential(1.0, (300, 1))
        best = total(value, choose(value, size, group, np.array([512]), exact=True))
        priced = total(value, choose(value, size, group, np.array([512]), exact=False))
        assert 0.99 * best <= priced <= best + 1e-9


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 12))
def test_another_node_never_makes_the_objective_worse(seed: int, count: int, slots: int) -> None:
    random = np.random.default_rng(seed)
    value = random.exponential(1.0, (count, 4))
    size, group = np.array([1, 2, 4, 8]), np.zeros(4, dtype=np.int64)
    smaller = total(value, choose(value, size, group, np.array([slots])))
    larger = total(value, choose(value, size, group, np.array([slots + 4])))
    assert larger >= smaller - 1e-9


def test_of_two_equal_jobs_the_one_with_less_left_gets_more() -> None:
    short, long = job("short", remaining=1e6, most=64), job("long", remaining=1e9, most=64)
    answer = goodput([long, short], nodes(4), Allocation(), 600.0)
    assert answer.workers("short") > answer.workers("long") >= 1


def test_in_a_crowd_presumed_lengths_count_less_and_declared_ones_as_always() -> None:
    def slots_of_the_old(tuning: GoodputTuning, *, declared: bool) -> int:
        jobs = [
            job(
                f"{age}-{n}",
                arrival_s=float(n),
                attained_s=attained_s,
                remaining=left if declared else None,
                models={"default": model(noise=200.0)},
            )
            for age, count, attained_s, left in (("old", 16, 2e5, 1e9), ("young", 8, 1e2, 1e6))
            for n in range(count)
        ]
        answer = goodput(jobs, nodes(16), Allocation(), 100.0, tuning=tuning)
        return sum(answer.workers(f"old-{n}") for n in range(16))

    credulous = GoodputTuning(crowd=float("inf"), last_share=0.0)
    assert slots_of_the_old(GoodputTuning(), declared=False) > slots_of_the_old(credulous, declared=False)
    assert slots_of_the_old(GoodputTuning(), declared=True) == slots_of_the_old(credulous, declared=True)


def test_a_higher_priority_gets_more() -> None:
    plain, urgent = job("plain", most=64), job("urgent", most=64, priority=8.0)
    answer = goodput([plain, urgent], nodes(4), Allocation(), 600.0)
    assert answer.workers("urgent") > answer.workers("plain")


def test_a_deadline_that_is_near_counts() -> None:
    jobs = [job("a", remaining=3e6, most=64), job("b", remaining=3e6, most=64)]
    free = goodput(jobs, nodes(4), Allocation(), 600.0)
    one = model()
    fastest = max(one.choose(nodes=n, workers=4 * n).goodput for n in (1, 2, 3, 4))
    near = [jobs[0], replace(jobs[1], deadline_s=600.0 + 1.1 * 3e6 / fastest)]
    pressed = goodput(near, nodes(4), Allocation(), 600.0)
    assert pressed.workers("b") >= free.workers("b")
    assert pressed.workers("b") > pressed.workers("a")


def test_a_change_that_cannot_pay_for_its_pause_is_not_made_and_a_cheap_one_is() -> None:
    left = 40 * model().choose(nodes=1, workers=1).goodput
    now = Allocation({"a": (("n00", 1),)})
    dear = job("a", remaining=left, pause_s=60.0, changed_s=0.0)
    assert goodput([dear], nodes(1), now, 600.0).workers("a") == 1
    assert goodput([replace(dear, pause_s=0.1)], nodes(1), now, 600.0).workers("a") > 1


def test_a_job_that_has_waited_too_long_runs_next() -> None:
    busy = [job(f"b{n}", arrival_s=9000.0, remaining=1e3, most=1) for n in range(6)]
    longest = job("longest", arrival_s=9000.0, remaining=1e13, most=1)
    old = job("old", arrival_s=0.0, remaining=1e12, most=1)
    assert goodput([*busy, longest, old], nodes(1), Allocation(), 600.0).workers("old") == 0
    assert goodput([*busy, longest, old], nodes(1), Allocation(), 9060.0).workers("old") == 1


def test_everybody_runs_while_the_fewest_workers_of_all_fit() -> None:
    short = [job(f"s{n}", remaining=1e3, most=64) for n in range(14)]
    long = [job("long", remaining=1e12, most=64), job("wide", remaining=1e12, least=4, most=64)]
    roomy = goodput([*short[:12], *long], nodes(5), Allocation(), 600.0)
    assert roomy.workers("long") >= 1 and roomy.workers("wide") >= 4
    crowded = goodput([*short, *long], nodes(4), Allocation(), 600.0)
    assert not crowded.workers("wide"), "a control: where not all fit, it is worth that counts"


def test_nobody_is_moved_to_make_room_for_another_right_after_a_change() -> None:
    """A short job that has just started pays half of its life for a second pause."""
    held = {"a": (("n00", 1),), "b": (("n01", 1),), "wide": (("n02", 4),)}
    wide = job("wide", remaining=1e12, most=8, changed_s=0.0, pause_s=30.0)

    def moved(changed_s: float) -> list[str]:
        small = [job(name, most=1, remaining=1e6, changed_s=changed_s, pause_s=30.0) for name in ("a", "b")]
        answer = goodput([*small, wide], nodes(3), Allocation(held), 6000.0)
        return [name for name in ("a", "b") if answer.of(name) != held[name]]

    assert not moved(changed_s=5900.0)
    assert len(moved(changed_s=0.0)) == 1, "a control: later one of them makes room for a whole node"


def test_a_size_that_a_job_has_been_on_counts_for_as_long_as_the_present_one_has_lasted() -> None:
    here = Allocation({"a": (("n00", 4),), "b": (("n01", 4),)})
    jobs = [job("a", remaining=1e8, most=8, changed_s=0.0), job("b", remaining=2e8, most=8, changed_s=0.0)]
    alone = [jobs[0]]
    lone = Allocation({"a": here.of("a")})
    assert goodput(alone, nodes(2), lone, 36_000.0).workers("a") == 8
    fresh = [replace(jobs[0], changed_s=35_970.0)]
    assert goodput(fresh, nodes(2), lone, 36_000.0).workers("a") == 4, "it has just changed: the next change would not last either"


def test_a_job_stays_where_it_is_while_nothing_changes() -> None:
    jobs = jobs_of(np.random.default_rng(3), 6)
    first = goodput(jobs, nodes(4), Allocation(), 600.0)
    again = goodput(jobs, nodes(4), first, 660.0)
    assert dict(again.places) == dict(first.places)


def test_a_faster_kind_of_node_is_used_by_the_job_that_gains_from_it() -> None:
    from stretto.scheduling.types import ClusterNode

    cluster = [ClusterNode("old", 4, "old"), ClusterNode("new", 4, "new")]
    quick = job("gains", models={"old": model(), "new": model(scale=0.2)}, most=4)
    same_ = job("same", models={"old": model(), "new": model()}, most=4)
    answer = goodput([quick, same_], cluster, Allocation(), 600.0)
    assert answer.of("gains")[0][0] == "new"
    assert answer.of("same")[0][0] == "old"


def test_a_job_whose_last_change_nobody_can_tell_grows_into_free_slots() -> None:
    """The clock was set back: the job arrives tomorrow, and when it changed is not known."""
    known = job("j", arrival_s=86400.0, most=2, profiled=2, models={"default": model(sync=0.1)}, pause_s=5.0)
    (one,) = nodes(1, 2)
    assert goodput([known], [one], Allocation({"j": ((one.name, 1),)}), 0.0).workers("j") == 2
