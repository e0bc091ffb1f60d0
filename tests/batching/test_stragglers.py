"""Stragglers: hand-computed paces and verdicts."""

from __future__ import annotations

import pytest

from stretto.batching.stragglers import (
    Keep,
    Pace,
    Rebalance,
    Replace,
    StragglerConfig,
    StragglerState,
    judge,
    observe,
    parse_mode,
    step_time,
)
from stretto.core.errors import UsageError
from stretto.core.slices import weigh

FOUR = ("a", "b", "c", "d")


def watched(
    slice_s: dict[str, float],
    *,
    steps: int = 40,
    config: StragglerConfig = StragglerConfig(),
    state: StragglerState = StragglerState(),
) -> StragglerState:
    for _ in range(steps):
        state = observe(config, state, slice_s)
    return state


def even(counts: int = 4) -> list[tuple[str, int]]:
    return [(worker, counts) for worker in FOUR]


def test_the_pace_is_a_moving_average_of_time_over_the_median():
    pace = Pace()
    for _ in range(10):
        pace = pace.after(3.0, weight=0.1)
    assert pace.value == pytest.approx(3.0)
    assert pace.after(1.0, weight=0.1).value == pytest.approx(2.8)


def test_one_slow_step_does_not_make_a_straggler():
    state = watched(dict.fromkeys(FOUR, 1.0))
    state = observe(StragglerConfig(), state, {"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.0})
    assert isinstance(judge(StragglerConfig(), state, even()), Keep)


def test_a_persistent_straggler_gets_fewer_slices():
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0})
    verdict = judge(StragglerConfig(), state, even())
    assert isinstance(verdict, Rebalance)
    counts = [len(span) for span in weigh(16, [verdict.speeds[worker] for worker in FOUR])]
    assert counts == [5, 5, 5, 1]
    # 4 slices at a third of the speed took 12, now 5 at full speed take 5.
    assert "2.40 times shorter" in verdict.reason


def test_a_roster_that_is_dealt_by_its_speeds_is_left_alone():
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0})
    assert isinstance(judge(StragglerConfig(), state, [("a", 5), ("b", 5), ("c", 5), ("d", 1)]), Keep)


def test_a_straggler_that_recovers_gets_its_slices_back():
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0})
    state = watched(dict.fromkeys(FOUR, 1.0), state=state)
    verdict = judge(StragglerConfig(), state, [("a", 5), ("b", 5), ("c", 5), ("d", 1)])
    assert isinstance(verdict, Rebalance)
    assert [len(span) for span in weigh(16, [verdict.speeds[worker] for worker in FOUR])] == [4, 4, 4, 4]


def test_speeds_that_differ_a_little_move_nothing():
    state = watched({"a": 1.0, "b": 1.05, "c": 0.95, "d": 1.2})
    assert isinstance(judge(StragglerConfig(), state, even()), Keep)


def test_nothing_is_moved_right_after_a_change():
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0})
    fresh = StragglerState(state.paces, changed=3, slow_for=state.slow_for)
    assert isinstance(judge(StragglerConfig(), fresh, even()), Keep)


def test_every_move_doubles_the_wait_for_the_next():
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0})
    waits = [StragglerState(state.paces, changed=39, moves=moves, slow_for=state.slow_for) for moves in (1, 2)]
    assert isinstance(judge(StragglerConfig(), waits[0], even()), Rebalance)
    assert isinstance(judge(StragglerConfig(), waits[1], even()), Keep)


def test_a_newcomer_is_measured_before_anything_is_moved():
    state = watched({"a": 1.0, "b": 1.0, "c": 3.0})
    state = observe(StragglerConfig(), state, {"a": 1.0, "b": 1.0, "c": 3.0, "d": 1.0})
    assert isinstance(judge(StragglerConfig(), state, even()), Keep)


def test_those_who_left_are_forgotten():
    state = watched({"a": 1.0, "b": 1.0, "c": 3.0})
    assert set(observe(StragglerConfig(), state, {"a": 1.0, "b": 1.0}).paces) == {"a", "b"}


def test_a_straggler_that_still_holds_up_the_others_with_one_slice_is_replaced():
    config = StragglerConfig(mode="replace")
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 20.0}, steps=100, config=config)
    verdict = judge(config, state, [("a", 5), ("b", 5), ("c", 5), ("d", 1)])
    assert isinstance(verdict, Replace)
    assert verdict.worker == "d"


def test_a_straggler_is_not_replaced_before_its_time_nor_without_the_mode():
    shares = [("a", 5), ("b", 5), ("c", 5), ("d", 1)]
    slow = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 20.0}
    assert isinstance(judge(StragglerConfig(mode="replace"), watched(slow, steps=30), shares), Keep)
    assert isinstance(judge(StragglerConfig(mode="rebalance"), watched(slow, steps=500), shares), Keep)


def test_a_straggler_that_no_longer_holds_anyone_up_is_kept():
    config = StragglerConfig(mode="replace")
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0}, steps=500, config=config)
    assert isinstance(judge(config, state, [("a", 5), ("b", 5), ("c", 5), ("d", 1)]), Keep)


def test_ignored_stragglers_and_lone_workers_are_kept():
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 9.0})
    assert isinstance(judge(StragglerConfig(mode="ignore"), state, even()), Keep)
    assert isinstance(judge(StragglerConfig(), watched({"a": 1.0}), [("a", 8)]), Keep)


def test_times_that_make_no_sense_are_not_counted():
    state = watched({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    after = observe(StragglerConfig(), state, {"a": float("nan"), "b": 0.0, "c": float("inf"), "d": 1.0})
    assert after.paces["a"] == state.paces["a"]
    assert after.paces["d"].steps == state.paces["d"].steps + 1


def test_the_step_takes_as_long_as_its_slowest_worker():
    assert step_time([4, 4, 4, 4], [1, 1, 1, 1 / 3]) == pytest.approx(12)
    assert step_time([5, 5, 5, 1], [1, 1, 1, 1 / 3]) == pytest.approx(5)


def test_slices_of_a_millisecond_are_not_judged():
    state = watched({"a": 0.001, "b": 0.001, "c": 0.001, "d": 0.003})
    assert isinstance(judge(StragglerConfig(), state, even()), Keep)


def test_a_slow_worker_among_slices_of_a_millisecond_is_judged():
    state = watched({"a": 0.001, "b": 0.001, "c": 0.001, "d": 0.1})
    assert isinstance(judge(StragglerConfig(), state, even()), Rebalance)


def test_an_unknown_mode_is_refused_with_the_known_ones():
    assert parse_mode("replace") == "replace"
    with pytest.raises(UsageError, match="'evict' is not one of rebalance, replace, ignore"):
        parse_mode("evict")
