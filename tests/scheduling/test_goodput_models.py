"""The throughput and goodput models, against hand-computed values, finite differences and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_builders import BATCH, MODEL, job, model, nodes

from stretto.batching import throughput as module
from stretto.batching.goodput import BatchRange, GoodputModel, candidates, gain, goodputs
from stretto.batching.throughput import Observation, ThroughputModel, fit, overlap
from stretto.scheduling.candidate_sizes import BATCHES, options


def test_a_step_is_the_overlap_of_gradients_and_exchange() -> None:
    plain = ThroughputModel(0.1, 0.01, 0.5, 0.1, 0.2, 0.05, 1.0)
    assert plain.step_s(nodes=1, workers=1, local_batch=10) == pytest.approx(0.2)
    assert plain.step_s(nodes=1, workers=4, local_batch=10) == pytest.approx(0.2 + 0.2 + 0.05 * 2)
    assert plain.step_s(nodes=2, workers=4, local_batch=10, accumulation=3) == pytest.approx(3 * 0.2 + 0.2 + 0.5 + 0.1 * 2)


def test_full_overlap_hides_the_shorter_part() -> None:
    assert overlap(1.0, 0.5, 10.0) == pytest.approx(1.0, rel=1e-3)
    assert overlap(1.0, 0.5, 1.0) == pytest.approx(1.5)


def test_the_fit_recovers_a_machine_that_it_has_seen_from_all_sides() -> None:
    seen = [
        Observation(n, k, m, MODEL.grad_s(m), MODEL.step_s(nodes=n, workers=k, local_batch=m))
        for n, k in ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16), (8, 32))
        for m in (32, 64, 128)
    ]
    found = fit(seen)
    for one in seen:
        predicted = found.step_s(nodes=one.nodes, workers=one.workers, local_batch=one.local_batch)
        assert predicted == pytest.approx(one.step_s, rel=0.05)


def test_what_was_never_seen_is_taken_to_cost_nothing_so_that_it_is_tried() -> None:
    found = fit([Observation(1, 1, 64, 0.1, 0.1)])
    alone = found.step_s(nodes=1, workers=1, local_batch=64)
    assert found.step_s(nodes=4, workers=16, local_batch=64) == pytest.approx(alone, rel=1e-3)


def test_the_network_is_never_taken_to_be_faster_than_a_node() -> None:
    found = fit([Observation(1, 1, 64, 0.1, 0.1), Observation(1, 2, 64, 0.1, 0.15), Observation(1, 4, 64, 0.1, 0.2)])
    assert found.alpha_across >= found.alpha_within


def test_the_gradient_of_the_fit_agrees_with_finite_differences() -> None:
    table = np.array([(1, 1, 64, 0.1, 0.11), (1, 4, 64, 0.12, 0.2), (2, 8, 90, 0.13, 0.3), (4, 16, 128, 0.2, 0.5)], dtype=float)
    start = np.array([0.05, 0.001, 0.2, 0.01, 0.1, 0.02, 1.7])
    loss = module._Loss(table, start, np.arange(7))
    _, slopes = loss(start)
    for place in range(7):
        step = start.copy()
        step[place] += 1e-6
        back = start.copy()
        back[place] -= 1e-6
        assert slopes[place] == pytest.approx((loss(step)[0] - loss(back)[0]) / 2e-6, rel=1e-3, abs=1e-6)


def test_an_empty_profile_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="at least one observation"):
        fit([])


@pytest.mark.parametrize("broken", [math.nan, -1.0, math.inf, 1e12])
def test_absurd_numbers_are_not_sane(broken: float) -> None:
    assert MODEL.sane
    assert not ThroughputModel(0.1, broken, 0, 0, 0, 0, 1.0).sane
    assert not ThroughputModel(0.1, 0.1, 0, 0, 0, 0, broken).sane


def test_a_batch_of_twice_the_noise_scale_is_worth_half_its_samples() -> None:
    # (φ + B0)/(φ + B) with φ = 1000, B0 = 100, B = 2100
    sqr, var = 1.0, 10.0
    efficiency = gain(sqr, var, 21.0) / 21.0
    assert efficiency == pytest.approx((1000 + 100) / (1000 + 2100))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 32), st.booleans(), st.floats(0.1, 500))
def test_the_chosen_batch_is_the_best_of_all_candidates(workers: int, spread: bool, noise: float) -> None:
    one = model(noise=noise)
    choice = one.choose(nodes=2 if spread and workers > 1 else 1, workers=workers)
    local, accumulation = candidates(BATCH, np.array([workers]), count=50)
    best = 0.0
    for m, s in zip(local[0], accumulation[0], strict=True):
        if m > 0:
            step = one.throughput.step_s(nodes=2 if spread else 1, workers=workers, local_batch=int(m), accumulation=int(s))
            best = max(best, BATCH.initial * one.gain(workers * int(m) * (int(s) + 1)) / step)
    assert choice.goodput == pytest.approx(best, rel=1e-6)


def test_tables_for_many_jobs_equal_one_choice_after_the_other() -> None:
    models = [model(noise=noise) for noise in (1.0, 20.0, 300.0)]
    table = goodputs(models, across=[False, False, True], workers=[1, 4, 8])
    for row, one in enumerate(models):
        assert table[row, 0] == pytest.approx(one.choose(nodes=1, workers=1).goodput)
        assert table[row, 1] == pytest.approx(one.choose(nodes=1, workers=4).goodput)
        assert table[row, 2] == pytest.approx(one.choose(nodes=2, workers=8).goodput)


def test_the_options_of_many_jobs_are_as_fast_as_each_jobs_own_model_says_and_only_where_its_limits_allow_them() -> None:
    limits = ((1, 16), (1, 1), (2, 4), (1, 16), (3, 3), (1, 4))
    jobs = [
        job(f"j{n}", least=least, most=most, models={"default": model(noise=10.0 * (n + 1))} if n != 3 else {})
        for n, (least, most) in enumerate(limits)
    ]
    table = options(jobs, nodes(4), held=[0] * len(jobs))
    for row, one in enumerate(jobs):
        allowed = table.speed[row] > 0
        usual = {n for n in (1, 2, 4, 8, 12, 16) if one.least <= n <= one.most}
        assert set(table.size[allowed].tolist()) == (usual or {one.least})
        own = one.model("default")
        if own is None:
            assert table.speed[row][allowed].tolist() == table.size[allowed].tolist()
            continue
        sizes = table.size[allowed].tolist()
        each = [goodputs([own], across=[n > 4], workers=[n], count=BATCHES)[0, 0] for n in sizes]
        assert table.speed[row][allowed] * table.single[row] == pytest.approx(each)


def test_a_fixed_batch_stays_what_it_is() -> None:
    fixed = GoodputModel(MODEL, 1.0, 50.0, BatchRange(128, 4096, 16, 512, fixed=1024))
    for workers in (1, 2, 4, 8):
        choice = fixed.choose(nodes=1, workers=workers)
        assert choice.local_batch * workers * (choice.accumulation + 1) == 1024


def test_more_workers_than_the_batch_can_feed_are_worth_nothing() -> None:
    tight = GoodputModel(MODEL, 1.0, 50.0, BatchRange(128, 128, 64, 512, fixed=128))
    assert tight.batch.most_workers == 2
    assert tight.choose(nodes=1, workers=2).goodput > 0
    assert tight.choose(nodes=2, workers=8).goodput == 0


def test_a_job_in_slices_has_the_time_of_its_busiest_workers_slices():
    speeds = ThroughputModel(0.010, 0.001, 0.0, 0.0, 0.030, 0.0, 1.0, alone_s=0.020)
    model = GoodputModel(speeds, 1.0, 0.0, BatchRange(64, 64, fixed=64, slices=8))
    found = goodputs([model], across=[False] * 5, workers=[1, 2, 3, 8, 9])[0]
    # 8 slices of 8 samples, 18 ms each: 8, 4, 3 and 1 of them one after the other, and what comes besides.
    assert found.tolist() == pytest.approx([64 / 0.164, 64 / 0.102, 64 / 0.084, 64 / 0.048, 0.0])
    assert model.batch.most_workers == 8
    assert model.choose(nodes=1, workers=3).goodput == pytest.approx(64 / 0.084)
    for workers, rounds in ((1, 8), (3, 3)):
        assert speeds.step_s(nodes=1, workers=workers, local_batch=8, accumulation=rounds - 1) == pytest.approx(
            {1: 0.164, 3: 0.084}[workers]
        )


def test_the_batch_of_a_job_in_slices_is_what_its_gain_is_of():
    speeds = ThroughputModel(0.010, 0.001, 0.0, 0.0, 0.030, 0.0, 1.0)
    model = GoodputModel(speeds, 1.0, 4.0, BatchRange(32, 64, per_worker=32, slices=8))
    # Of three workers 96 samples would be more than 64: 8 a slice, 3 slices one after the other; gain (4 + 1)/(4/2 + 1).
    assert goodputs([model], across=[False], workers=[3])[0, 0] == pytest.approx(32 * 5 / 3 / (3 * 0.018 + 0.030))


def test_a_model_of_slices_is_told_to_simulators_as_one_of_local_batches():
    sliced = ThroughputModel(0.010, 0.001, 0.0, 0.0, 0.030, 0.0, 1.0)
    whole = sliced.whole(batch=64, slices=8)
    for workers, rounds in ((1, 8), (2, 4), (8, 1)):
        assert whole.step_s(nodes=1, workers=workers, local_batch=64 / workers) == pytest.approx(
            sliced.step_s(nodes=1, workers=workers, local_batch=8, accumulation=rounds - 1)
        )
