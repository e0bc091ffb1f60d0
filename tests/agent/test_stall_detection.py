"""A job that makes no progress says who waits where, and goes on where nobody else would make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from launching import Launched, script

from stretto.agent.workers.stall_detection import (
    Moves,
    RestartWorker,
    StallDetector,
    Stalled,
    WorkerActivity,
    odd_one,
    place_text,
    usual_step_s,
)
from stretto.core.audit import audit
from stretto.core.heartbeat import Activity, HeartbeatSample

Launch = Callable[..., Launched]
PULSE = HeartbeatSample(
    beaten=0.0,
    activity=Activity.EXCHANGE,
    step=115,
    pass_=0,
    slice=3,
    since=0.0,
    typical_s=0.1,
    longest_s=0.2,
    slices=50,
    train=True,
    loader=0,
)
EVALUATES = replace(PULSE, train=False, loader=1, step=4)
SCRIPT = replace(PULSE, activity=Activity.STEPPING, step=114)


def seen(*pulses: HeartbeatSample) -> list[WorkerActivity]:
    return [WorkerActivity(f"w{number}", pulse, order=number) for number, pulse in enumerate(pulses)]


def look(
    stalls: StallDetector,
    members: list[WorkerActivity],
    now: float,
    *,
    usual_s: float = 1.0,
    whole: bool = True,
    settled: bool = True,
) -> object:
    return stalls.check(members, now=now, usual_s=usual_s, whole=whole, settled=settled)


def test_a_stall_is_told_once_with_everybodys_place_and_so_is_its_end() -> None:
    stalls, members = StallDetector(), seen(PULSE, EVALUATES, SCRIPT)
    assert look(stalls, members, 100.0) is None
    assert look(stalls, members, 129.0) is None and not stalls.text
    told = look(stalls, members, 131.0)
    assert isinstance(told, Stalled)
    assert told.text == (
        "no progress for 31 s (steps take 1.00 s): w0 in the exchange of training step 115, w1 in the exchange of "
        "evaluation step 4 of loader 1, w2 in the script's own code after training step 114"
    )
    assert stalls.text == told.text
    assert all(look(stalls, members, 132.0 + later) is None for later in range(100)), "one stands in the script's own code"
    assert look(stalls, seen(PULSE, EVALUATES, replace(SCRIPT, step=115)), 250.0) == Moves("the job goes on after 150 s")
    assert not stalls.text


def test_slow_steps_have_more_time_and_a_slice_under_way_is_progress() -> None:
    stalls, members = StallDetector(), seen(PULSE, EVALUATES)
    assert look(stalls, members, 0.0) is None
    assert look(stalls, members, 99.0, usual_s=5.0) is None
    assert isinstance(look(stalls, members, 101.0, usual_s=5.0), Stalled)
    computing = seen(PULSE, replace(PULSE, activity=Activity.SLICE))
    stalls = StallDetector()
    assert all(look(stalls, computing, float(now)) is None for now in range(0, 500, 10)), "`watch` has the limits of slices"


def test_the_odd_one_is_restarted_where_everybody_waits() -> None:
    stalls, members = StallDetector(), seen(PULSE, EVALUATES, PULSE)
    look(stalls, members, 0.0)
    assert isinstance(look(stalls, members, 31.0), Stalled)
    restart = look(stalls, members, 31.1)
    assert isinstance(restart, RestartWorker) and restart.worker == "w1"
    assert look(stalls, members, 31.2) is None, "once"


def test_before_the_first_steps_there_is_more_time() -> None:
    stalls, members = StallDetector(), seen(PULSE, EVALUATES)
    look(stalls, members, 0.0, usual_s=0.0)
    assert look(stalls, members, 299.0, usual_s=0.0) is None
    told = look(stalls, members, 301.0, usual_s=0.0)
    assert isinstance(told, Stalled) and "no step was committed yet" in told.text


def test_a_pause_in_the_scripts_own_code_that_comes_again_is_told_once() -> None:
    """The chief evaluates by itself after every epoch."""
    stalls, told = StallDetector(), list[object]()
    for epoch in range(3):
        members = seen(replace(SCRIPT, step=epoch), replace(PULSE, step=epoch + 1))
        told += [found for found in (look(stalls, members, 100.0 * epoch + second) for second in range(60)) if found]
        told += [found for found in [look(stalls, seen(replace(PULSE, step=epoch)), 100.0 * epoch + 60)] if found]
    assert [type(one) for one in told] == [Stalled, Moves]
    members = seen(replace(SCRIPT, step=9), PULSE)
    look(stalls, members, 1000.0)
    assert look(stalls, members, 1080.0) is None
    assert isinstance(look(stalls, members, 1100.0), Stalled), "longer than it ever took"


def test_an_agent_that_was_away_begins_to_count_anew() -> None:
    stalls, members = StallDetector(), seen(PULSE, EVALUATES)
    look(stalls, members, 0.0)
    stalls.awake(1000.0)
    assert look(stalls, members, 1001.0) is None
    assert isinstance(look(stalls, members, 1031.0), Stalled)


def test_the_end_of_a_script_is_no_stall() -> None:
    stalls, members = StallDetector(), seen(replace(PULSE, activity=Activity.ENDED))
    assert all(look(stalls, members, float(now)) is None for now in range(0, 5000, 10))


@pytest.mark.parametrize(("whole", "settled"), [(False, True), (True, False)])
def test_nobody_is_restarted_where_others_are_not_seen_or_the_roster_changes(whole: bool, settled: bool) -> None:
    stalls, members = StallDetector(), seen(PULSE, EVALUATES)
    look(stalls, members, 0.0)
    assert isinstance(look(stalls, members, 31.0), Stalled)
    assert look(stalls, members, 40.0, whole=whole, settled=settled) is None


def test_in_a_tie_the_one_that_joined_last_is_odd() -> None:
    assert odd_one(seen(PULSE, EVALUATES)) == "w1"
    assert odd_one(seen(EVALUATES, EVALUATES, PULSE, PULSE)) == "w3"
    assert odd_one(seen(PULSE, PULSE)) == "w1"
    assert odd_one(seen(EVALUATES, PULSE, PULSE)) == "w0"


def test_every_activity_has_words() -> None:
    texts = [place_text(replace(PULSE, activity=activity)) for activity in Activity]
    assert len(set(texts)) == len(texts) - 1, "the two kinds of time in the script's own code are one"
    assert place_text(replace(SCRIPT, loader=-1)) == "in the script's own code before its first step"


def test_the_usual_step_time_is_the_median_of_the_last_ones() -> None:
    assert usual_step_s([]) == 0.0
    assert usual_step_s([0.0, 1.0, 2.0, 12.0]) == 1.0


def test_a_worker_that_sleeps_in_its_own_code_is_told_and_left_alone(launch: Launch) -> None:
    run = launch(
        script("""
        def sleeps(*args):
            if job.step == 5 and WORKER == "w1": time.sleep(4)
        optimizer.register_step_post_hook(sleeps)
    """),
        "--workers",
        "2",
        "--stall-timeout",
        "1",
    )
    stalled = run.until_event("stalled")
    assert "w0 in the exchange of training step 6" in stalled.text
    assert "w1 in the script's own code after training step 5" in stalled.text
    status = run.ask("status")
    assert status["stalled"] == stalled.text or run.events("unstalled")
    assert run.end() == 0, run.output()
    assert len(run.events("stalled")) == len(run.events("unstalled")) == 1
    assert not run.events("stuck", "died")
    assert audit(run.records()).holds


def test_the_odd_one_of_workers_that_all_wait_is_restarted_and_the_job_goes_on(launch: Launch) -> None:
    """An exchange of one worker is held up where nobody would ever end it."""
    run = launch(
        script(
            """
        import stretto.train.reduce.tree_allreduce as exchange
        if WORKER == "w1":
            tell = exchange.TreeAllreduce.all_gather
            def stuck(self, *args, **kwargs):
                if job.step == 5: time.sleep(1000)
                return tell(self, *args, **kwargs)
            exchange.TreeAllreduce.all_gather = stuck
    """,
            epochs=4,
        ),
        "--workers",
        "2",
        "--stall-timeout",
        "1",
    )
    stuck = run.until_event("stuck")
    assert stuck.worker == "w1"
    assert "everybody waits for somebody else: w0 in the exchange of training step 5, w1 in the exchange of" in stuck.text
    assert run.end() == 0, run.output()
    assert run.result["restarts"] == 1
    assert audit(run.records()).holds
