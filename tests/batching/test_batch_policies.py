"""Batch policies: hand-computed decisions, and mistakes that are named with their fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.batching.batch_policies import (
    SETTLE_STEPS,
    Adaptive,
    Fixed,
    PerWorker,
    Situation,
    candidates,
    check,
    efficiency,
    next_batch,
    parts_for,
    policy_of,
)
from stretto.core.errors import ScriptError


def place(**changes: object) -> Situation:
    values: dict[str, object] = {"workers": 1, "slices": 8, "samples": 100_000, **changes}
    return Situation(**values)  # type: ignore[arg-type]


def linear_speed(batch: int, parts: int) -> float:
    """A device with 10 ms a part and 0.1 ms a sample."""
    return 8 * parts * 0.010 + batch * 0.0001


def test_a_fixed_batch_does_not_follow_the_workers():
    assert {next_batch(Fixed(256), place(workers=k)).batch for k in range(1, 9)} == {256}


def test_a_batch_per_worker_grows_and_shrinks_with_the_workers_up_to_its_bound():
    policy = PerWorker(32, at_most=128)
    assert [next_batch(policy, place(workers=k)).batch for k in (1, 2, 4, 8, 3)] == [32, 64, 128, 128, 96]
    assert "bounded by at_most 128" in next_batch(policy, place(workers=8)).reason


def test_a_batch_per_worker_is_never_larger_than_the_dataset():
    assert next_batch(PerWorker(32), place(workers=8, samples=100)).batch == 96


def test_an_adaptive_job_starts_with_its_start_and_keeps_it_until_something_is_measured():
    policy = Adaptive(start=128, at_most=4096)
    assert next_batch(policy, place()).batch == 128
    assert next_batch(policy, place(batch=128, since=1000)).batch == 128
    assert next_batch(policy, place(batch=128, since=1000, noise_scale=1e4)).batch == 128


def test_an_adaptive_job_grows_when_noise_is_high_and_not_when_it_is_low():
    policy = Adaptive(start=128, at_most=4096)
    noisy = place(batch=128, since=1000, largest=4096, noise_scale=1e5, seconds=linear_speed)
    assert next_batch(policy, noisy).batch == 4096
    quiet = place(batch=128, since=1000, largest=4096, noise_scale=10.0, seconds=linear_speed)
    assert next_batch(policy, quiet).batch == 128


def test_the_adaptive_choice_is_the_hand_computed_maximum_of_goodput():
    # goodput(B) = B/(0.08 + 1e-4 B) * (phi + 128)/(phi + B); its maximum over the reals is at B = sqrt(800 phi).
    policy = Adaptive(start=128, at_most=8192)
    for noise_scale, best in ((800.0, 800), (1600.0, 1131), (3200.0, 1600)):
        chosen = next_batch(policy, place(batch=128, since=1000, largest=8192, noise_scale=noise_scale, seconds=linear_speed)).batch
        assert best / 1.1 < chosen < best * 1.1


def test_a_batch_that_is_nearly_as_good_is_kept():
    policy = Adaptive(start=128, at_most=8192)
    kept = next_batch(policy, place(batch=704, since=1000, largest=8192, noise_scale=800.0, seconds=linear_speed))
    assert kept.batch == 704
    assert "a change needs x1.05" in kept.reason


def test_an_adaptive_batch_is_left_alone_right_after_a_change():
    policy = Adaptive(start=128, at_most=4096)
    hasty = place(batch=128, since=SETTLE_STEPS - 1, largest=4096, noise_scale=1e5, seconds=linear_speed)
    assert next_batch(policy, hasty).batch == 128


def test_an_adaptive_batch_does_not_jump_far_past_what_was_measured():
    policy = Adaptive(start=128, at_most=4096)
    step = place(batch=128, since=1000, largest=128, noise_scale=1e6, seconds=linear_speed)
    assert next_batch(policy, step).batch == 256


def test_a_slice_that_does_not_fit_is_accumulated_from_parts():
    assert parts_for(256, slices=8, room=None) == 1
    assert parts_for(256, slices=8, room=32) == 1
    assert parts_for(256, slices=8, room=31) == 2
    assert parts_for(256, slices=8, room=10) == 4
    decision = next_batch(Fixed(256), place(room=16))
    assert (decision.batch, decision.parts) == (256, 2)
    assert "memory" in decision.reason


def test_memory_counts_in_the_adaptive_choice():
    # Parts cost 80 ms a step each: with room for 16 samples a large batch is no longer faster a sample.
    policy = Adaptive(start=128, at_most=4096)
    free = place(batch=128, since=1000, largest=4096, noise_scale=1e4, seconds=linear_speed)
    tight = place(batch=128, since=1000, largest=4096, noise_scale=1e4, seconds=linear_speed, room=16)
    assert next_batch(policy, free).batch > 1000
    assert next_batch(policy, tight).batch == 128


@given(st.integers(1, 16), st.integers(1, 64), st.integers(1, 64), st.integers(1, 10_000), st.integers(0, 4096))
def test_candidates_are_rising_multiples_of_the_slices_within_the_bounds(
    slices: int, start: int, times: int, samples: int, largest: int
):
    policy = Adaptive(start=start * slices, at_most=start * slices * times)
    samples = max(samples, policy.start)
    found = list(candidates(policy, place(slices=slices, samples=samples, largest=largest)))
    assert found[0] == policy.start
    assert found == sorted(set(found))
    assert all(batch % slices == 0 and batch <= min(policy.at_most, samples) for batch in found)


def test_efficiency_is_one_at_the_reference_and_falls_with_the_batch():
    assert efficiency(1000.0, batch=128, reference=128) == 1.0
    assert efficiency(1000.0, batch=1128, reference=128) == pytest.approx(1128 / 2128)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Fixed(100), "cannot be divided by slices=8: use batch_size=96"),
        (Fixed(0), "must be at least 1"),
        (Fixed(2048), "more than the dataset's 1000 samples"),
        (PerWorker(30), "per_worker=30 cannot be divided by slices=8: use per_worker=32"),
        (PerWorker(32, at_most=16), "at_most=16 is below per_worker=32"),
        (PerWorker(32, at_most=100), "at_most=100 cannot be divided"),
        (Adaptive(start=128, at_most=64), "at_most=64 is below start=128: raise at_most= or lower start="),
        (Adaptive(start=128, at_most=1001), "use at_most=1000"),
        (Adaptive(start=128.0, at_most=1000), "start=128.0 is a float: a number of samples is a whole number"),  # type: ignore[arg-type]
        (Adaptive(start=128, at_most="1k"), "at_most='1k' is a str"),  # type: ignore[arg-type]
        (PerWorker(True), "per_worker=True is a bool"),
        (PerWorker(0), "per_worker=0 must be at least 1"),
        (Adaptive(start=1024, at_most=2048), "start=1024 is more than the dataset's 1000 samples"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_with_the_fix(policy: Fixed | PerWorker | Adaptive, words: str):
    with pytest.raises(ScriptError, match=words.replace("(", r"\(")):
        check(policy, slices=8, samples=1000)


def test_policies_that_can_work_are_accepted():
    for policy in (Fixed(256), PerWorker(32), PerWorker(32, at_most=2048), Adaptive(start=128, at_most=4096)):
        check(policy, slices=8, samples=1000)


@pytest.mark.parametrize("wrong", [True, 2.5, "64", None])
def test_a_batch_size_of_the_wrong_type_is_refused(wrong: object):
    with pytest.raises(ScriptError, match="give a whole number"):
        policy_of(wrong)  # type: ignore[arg-type]
    assert policy_of(64) == Fixed(64)
