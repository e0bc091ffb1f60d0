"""Autoscaling: hand-computed decisions, whole searches over known speed curves, and texts that are not understood."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.batching.autoscale import (
    AutoscaleConfig,
    AutoscaleDecision,
    AutoscaleState,
    Efficiency,
    Goal,
    Heuristic,
    Measurement,
    Utility,
    decide,
    net_utility,
    parse_autoscale,
    scaling_efficiency,
)
from stretto.batching.utility import UtilityCurve, parse_worth
from stretto.core.errors import UsageError

HOUR = 3600.0


def seen(rate: float, *, at_s: float = 0.0, arrived: float | None = None, steps: int = 12, seconds: float = 10.0) -> Measurement:
    return Measurement(rate, at_s, steps=steps, seconds=seconds, arrived=arrived)


def state(workers: int, rates: dict[int, float], **changes: object) -> AutoscaleState:
    values: dict[str, object] = {
        "now_s": 0.0,
        "workers": workers,
        "wanted": workers,
        "step": 100,
        "measured": {k: seen(rate) for k, rate in rates.items()},
        **changes,
    }
    return AutoscaleState(**values)  # type: ignore[arg-type]


def search(goal: Goal, speed: Callable[[int], float], *, start: int = 1, most: int = 8, rounds: int = 30) -> list[int]:
    """Follows the decisions on a job with this speed curve until they settle: the sizes that were taken up."""
    config = AutoscaleConfig(goal, 1, most)
    measured: dict[int, Measurement] = {}
    sizes = [start]
    for turn in range(rounds):
        now = 5.0 * turn
        measured[sizes[-1]] = seen(speed(sizes[-1]), at_s=now)
        wish = decide(config, AutoscaleState(now, sizes[-1], sizes[-1], 100 * turn, dict(measured), remaining_s=10 * HOUR))
        if wish.workers != sizes[-1]:
            sizes.append(wish.workers)
    return sizes


def test_scaling_efficiency_by_hand():
    # 2 workers 100/s, 4 workers 150/s: each added one brings 25, a worker alone brought 50.
    assert scaling_efficiency((2, 100.0), (4, 150.0)) == 0.5
    assert scaling_efficiency((1, 100.0), (2, 200.0)) == 1.0
    assert scaling_efficiency((1, 100.0), (2, 90.0)) == pytest.approx(-0.1)


def test_a_job_that_scales_well_takes_all_it_may():
    assert search(Efficiency(0.6), lambda k: 100.0 * k) == [1, 2, 4, 8]


def test_a_job_that_scales_badly_goes_back_to_one_worker_and_stays():
    assert search(Efficiency(0.6), lambda k: 100.0) == [1, 2, 1]


def test_a_job_settles_where_the_efficiency_falls_below_the_threshold():
    # Amdahl with 10% serial: 100, 181.8, 250, 307.7, ..., 400 (6), 470.6 (8); s of 1 to 2: 0.82, 2 to 4: 0.69,
    # 4 to 8: 0.53, 4 to 6: 0.60, 2 to 3: 0.75.
    def speed(k: int) -> float:
        return 100.0 / (0.1 + 0.9 / k)

    assert search(Efficiency(0.5), speed) == [1, 2, 4, 8]
    assert search(Efficiency(0.65), speed)[-1] == 4
    assert search(Efficiency(0.8), speed)[-1] == 2
    assert search(Efficiency(0.9), speed)[-1] == 1


def test_a_doubling_that_jumped_over_the_best_size_tries_the_middle_once():
    def speed(k: int) -> float:
        return 100.0 * min(k, 3)

    assert search(Efficiency(0.6), speed) == [1, 2, 4, 2, 3]


def test_a_job_that_starts_large_looks_below_before_it_decides():
    assert search(Efficiency(0.6), lambda k: 100.0, start=8)[-1] == 1
    assert search(Efficiency(0.6), lambda k: 100.0 * k, start=8)[-1] == 8


def test_nothing_is_decided_before_enough_is_measured():
    config = AutoscaleConfig(Efficiency(0.6), 1, 8)
    young = Measurement(100.0, 0.0, steps=3, seconds=10.0)
    wish = decide(config, state(1, {}, measured={1: young}))
    assert wish == AutoscaleDecision(1, "measuring 1 worker")


def test_nothing_is_decided_while_a_change_is_under_way():
    wish = decide(AutoscaleConfig(Efficiency(0.6), 1, 8), state(1, {1: 100.0}, wanted=2))
    assert (wish.workers, wish.reason) == (2, "waiting: 1 worker in training, 2 wanted")


def test_measurements_of_larger_sizes_expire_and_are_taken_again():
    config = AutoscaleConfig(Efficiency(0.6), 1, 8)
    rates = {1: seen(100.0, at_s=1000.0), 2: seen(110.0, at_s=900.0)}
    assert decide(config, state(1, {}, now_s=1000.0, measured=rates)).workers == 1
    assert decide(config, state(1, {}, now_s=1000.0 + config.expiry_s, measured=rates)).workers == 2


def test_measurements_of_slow_steps_last_for_ten_measurements():
    config = AutoscaleConfig(Efficiency(0.6), 1, 8)
    slow = {1: seen(1.0, at_s=5000.0, steps=12, seconds=720.0), 2: seen(1.1, at_s=1000.0, steps=12, seconds=660.0)}
    assert decide(config, state(1, {}, now_s=5000.0, measured=slow)).workers == 1
    assert decide(config, state(1, {}, now_s=1000.0 + 6601.0, measured=slow)).workers == 2


def test_a_size_that_was_found_to_pay_is_not_left_for_a_hair():
    config = AutoscaleConfig(Efficiency(0.6), 1, 2)
    low = seen(100.0)
    assert decide(config, state(2, {}, measured={1: low, 2: seen(159.0)})).workers == 1
    assert decide(config, state(2, {}, measured={1: low, 2: seen(159.0, steps=50)})).workers == 2
    assert decide(config, state(2, {}, measured={1: low, 2: seen(145.0, steps=50)})).workers == 1


def test_a_settled_job_does_not_let_workers_go_just_to_look():
    config = AutoscaleConfig(Efficiency(0.6), 1, 2)
    rates = {1: seen(100.0, at_s=0.0), 2: seen(195.0, at_s=5000.0, arrived=200.0)}
    assert decide(config, state(2, {}, now_s=5000.0, measured=rates)).workers == 2


def test_a_job_whose_speed_has_changed_looks_again():
    config = AutoscaleConfig(Efficiency(0.6), 1, 2)
    rates = {1: seen(100.0, at_s=0.0), 2: seen(120.0, at_s=5000.0, arrived=200.0)}
    assert decide(config, state(2, {}, now_s=5000.0, measured=rates)).workers == 1


def test_utility_by_hand():
    # 1 worker at 100/s needs 2 h more, 2 at 200/s need 1 h; both cost 2 worker-hours. decay(100, 2h): 50 against 70.7.
    goal = Utility(price=1.2, worth=UtilityCurve("decay", 100.0, 2 * HOUR))
    where = state(1, {1: 100.0, 2: 200.0}, remaining_s=2 * HOUR)
    assert net_utility(goal, workers=1, rate=100.0, state=where) == pytest.approx(50 - 2.4)
    assert net_utility(goal, workers=2, rate=200.0, state=where) == pytest.approx(100 * 0.5**0.5 - 2.4)
    assert decide(AutoscaleConfig(goal, 1, 4), where).workers == 2


def test_utility_grows_for_a_low_price_and_not_for_a_high_one():
    worth = UtilityCurve("decay", 100.0, 2 * HOUR)

    def speed(k: int) -> float:
        return 100.0 * k**0.7

    assert search(Utility(0.1, worth), speed)[-1] == 8
    assert search(Utility(1000.0, worth), speed)[-1] == 1


def test_utility_waits_until_the_end_of_the_job_is_known():
    goal = Utility(1.2, UtilityCurve("decay", 100.0, HOUR))
    wish = decide(AutoscaleConfig(goal, 1, 4), state(1, {1: 100.0}))
    assert wish.workers == 1
    assert "end of the job is not known" in wish.reason


def test_the_heuristic_adds_and_takes_away_every_so_many_steps():
    grow = AutoscaleConfig(Heuristic(2, 50), 1, 8)
    assert decide(grow, state(3, {}, step=149, changed_step=100)).workers == 3
    assert decide(grow, state(3, {}, step=150, changed_step=100)).workers == 5
    assert decide(grow, state(7, {}, step=150, changed_step=100)).workers == 8
    shrink = AutoscaleConfig(Heuristic(-1, 50), 2, 8)
    assert decide(shrink, state(3, {}, step=150, changed_step=100)).workers == 2
    assert decide(shrink, state(2, {}, step=150, changed_step=100)).workers == 2


def test_the_climbing_heuristic_goes_back_from_a_size_that_is_not_faster():
    climb = AutoscaleConfig(Heuristic(1, 50, climb=True), 1, 8)
    assert decide(climb, state(3, {2: 100.0, 3: 120.0}, step=150)).workers == 4
    assert decide(climb, state(3, {2: 100.0, 3: 90.0}, step=150)).workers == 2
    assert decide(climb, state(2, {2: 100.0, 3: 90.0}, step=150)).workers == 2


def test_a_change_that_cannot_pay_for_itself_before_the_end_is_not_made():
    config = AutoscaleConfig(Efficiency(0.6), 1, 8)
    late = state(1, {1: 100.0}, remaining_s=6.0, startup_s=3.0, pause_s=0.1)
    assert decide(config, late).workers == 1
    assert "no change in the last 6.0 s" in decide(config, late).reason
    early = state(1, {1: 100.0}, remaining_s=60.0, startup_s=3.0, pause_s=0.1)
    assert decide(config, early).workers == 2


def test_a_slow_start_makes_the_last_part_longer():
    config = AutoscaleConfig(Efficiency(0.6), 1, 8)
    assert decide(config, state(1, {1: 100.0}, remaining_s=60.0, startup_s=25.0)).workers == 1


def test_sizes_stay_within_the_bounds_and_what_can_be_had():
    config = AutoscaleConfig(Efficiency(0.6), 2, 6)
    assert decide(config, state(1, {1: 100.0})).workers == 2
    assert decide(config, state(4, {2: 200.0, 4: 400.0})).workers == 6
    assert decide(config, state(4, {2: 200.0, 4: 400.0}, free=1)).workers == 5
    assert decide(config, state(4, {2: 200.0, 4: 400.0}, free=0)).workers == 4


def test_sizes_that_cannot_be_faster_are_not_tried():
    # 8 slices: 5, 6 and 7 workers leave somebody 2 slices, as 4 do.
    config = AutoscaleConfig(Efficiency(0.6), 1, 6, slices=8)
    assert decide(config, state(4, {2: 200.0, 4: 400.0})).workers == 4
    assert decide(AutoscaleConfig(Efficiency(0.6), 1, 8, slices=8), state(4, {2: 200.0, 4: 400.0, 8: 410.0})).workers == 4
    assert decide(AutoscaleConfig(Efficiency(0.6), 1, 8), state(4, {2: 200.0, 4: 400.0, 8: 410.0})).workers == 6


def test_the_texts_of_the_flag():
    assert parse_autoscale("efficiency=0.6", least=1, most=8).goal == Efficiency(0.6)
    assert parse_autoscale("+2 every 50 steps", least=1, most=8).goal == Heuristic(2, 50)
    assert parse_autoscale("-1 every 10 steps", least=1, most=8).goal == Heuristic(-1, 10)
    assert parse_autoscale("±1 every 10 steps", least=1, most=8).goal == Heuristic(1, 10, climb=True)
    assert parse_autoscale("utility", least=1, most=8, price=1.2, worth="decay(100, 2h)").goal == Utility(
        1.2, UtilityCurve("decay", 100.0, 7200.0)
    )


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("fast", {}, "not understood: write efficiency=0.6"),
        ("", {}, "not understood"),
        ("efficiency", {}, "not understood"),
        ("efficiency=high", {}, "'high' is not a number"),
        ("efficiency=0", {}, "above 0 and at most 1"),
        ("efficiency=1.5", {}, "above 0 and at most 1"),
        ("efficiency=nan", {}, "above 0 and at most 1"),
        ("+0 every 50 steps", {}, "at least 1"),
        ("+1 every 0 steps", {}, "at least 1"),
        ("utility", {}, "needs --price and --worth"),
        ("utility", {"price": 1.0}, "needs --worth"),
        ("utility", {"price": -1.0, "worth": "decay(1, 2h)"}, "at least 0"),
        ("utility", {"price": 1.0, "worth": "100 until 2h"}, "decay\\(VALUE, TIME\\)"),
        ("utility", {"price": 1.0, "worth": "decay(lots, 2h)"}, "'lots' is not a number"),
        ("utility", {"price": 1.0, "worth": "decay(100, 2)"}, "'2' is not a time"),
        ("utility", {"price": 1.0, "worth": "decay(100, 0s)"}, "longer than nothing"),
        ("utility", {"price": 1.0, "worth": "decay(-5, 2h)"}, "above 0"),
        ("efficiency=0.6", {"price": 1.0}, "go with --autoscale utility"),
    ],
)
def test_a_text_that_is_not_understood_is_refused_with_what_to_write(text: str, given: dict[str, object], words: str):
    with pytest.raises(UsageError, match=words):
        parse_autoscale(text, least=1, most=8, **given)  # type: ignore[arg-type]


def test_a_job_of_one_size_cannot_size_itself():
    with pytest.raises(UsageError, match="allows one size only"):
        parse_autoscale("efficiency=0.6", least=4, most=4)


def test_what_a_finish_is_worth_by_hand():
    assert parse_worth("decay(100, 2h)").at(4 * HOUR) == pytest.approx(25.0)
    assert parse_worth("linear(100, 2h)").at(1.5 * HOUR) == pytest.approx(25.0)
    assert parse_worth("linear(100, 2h)").at(3 * HOUR) == 0.0
    assert parse_worth("deadline(100, 30m)").at(1800) == 100.0
    assert parse_worth("deadline(100, 30m)").at(1801) == 0.0
