"""Who counts as dead: judgements of a beat, without a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.agent.workers.liveness import FROZEN_S, LOST_S, ROUND_S, SLICE_FACTOR, SLICE_S, Liveness, LivenessLimits, judge
from stretto.core.heartbeat import BEAT_S, Activity, HeartbeatSample

NOW = 1000.0
ALIVE = HeartbeatSample(
    beaten=NOW, activity=Activity.OUTSIDE, step=7, pass_=0, slice=2, since=NOW, typical_s=0.1, longest_s=0.2, slices=50
)


def verdict(
    pulse: HeartbeatSample, *, state: str = "S", since: float = 0.0, typical_s: float = 0.0, limits: LivenessLimits | None = None
) -> Liveness | None:
    return judge(pulse, now=NOW, since=since, state=state, typical_s=typical_s, limits=limits or LivenessLimits())


def what(found: Liveness | None) -> str | None:
    return found.what if found is not None else None


def test_a_stopped_worker_is_frozen_within_a_second() -> None:
    assert FROZEN_S + ROUND_S + BEAT_S < 1.0
    late = replace(ALIVE, beaten=NOW - FROZEN_S - 0.01)
    assert what(verdict(late, state="T")) == "frozen"


@pytest.mark.parametrize("state", ["R", "S", "D", "t", ""])
def test_a_late_heartbeat_alone_is_no_death(state: str) -> None:
    """A busy machine, or a debugger that looks (`t`)."""
    assert verdict(replace(ALIVE, beaten=NOW - 5.0), state=state) is None


def test_a_stopped_worker_that_has_just_beaten_is_left_a_moment() -> None:
    assert verdict(replace(ALIVE, beaten=NOW - 0.3), state="T") is None


def test_a_silent_worker_is_dead_after_a_while_whatever_the_kernel_says() -> None:
    assert what(verdict(replace(ALIVE, beaten=NOW - LOST_S - 1))) == "silent"


def test_a_worker_that_has_not_joined_yet_may_take_its_time_to_import() -> None:
    starting = replace(ALIVE, beaten=0.0, activity=Activity.STARTING)
    assert verdict(starting, since=NOW - 300) is None
    assert what(verdict(starting, since=NOW - 300, state="T")) == "frozen"


def test_an_agent_that_was_asleep_itself_does_not_blame_its_workers() -> None:
    old = replace(ALIVE, beaten=NOW - 60, since=NOW - 60, activity=Activity.SLICE)
    assert verdict(old, since=NOW - 0.1, state="T") is None
    assert verdict(old, since=NOW - 60, state="T") is not None


def test_a_slice_has_ten_seconds_or_twenty_times_its_usual_time() -> None:
    inside = replace(ALIVE, activity=Activity.SLICE, since=NOW - SLICE_S - 0.5)
    found = verdict(inside)
    assert what(found) == "hung"
    assert found is not None
    assert "slice 2 of step 7" in found.text
    slow = replace(inside, typical_s=1.0)
    assert verdict(slow) is None
    assert what(verdict(replace(slow, since=NOW - SLICE_FACTOR * 1.0 - 1))) == "hung"


def test_a_newcomer_is_measured_by_the_others_slices() -> None:
    inside = replace(ALIVE, activity=Activity.SLICE, since=NOW - 15, typical_s=0.0)
    assert what(verdict(inside)) == "hung"
    assert verdict(inside, typical_s=1.0) is None


def test_the_first_slice_of_a_process_may_compile() -> None:
    first = replace(ALIVE, activity=Activity.SLICE, since=NOW - 60, typical_s=0.0, slices=0)
    assert verdict(first) is None
    assert what(verdict(replace(first, since=NOW - 121))) == "hung"


def test_the_users_own_time_between_steps_is_no_hang_unless_the_flag_says_so() -> None:
    evaluating = replace(ALIVE, since=NOW - 3600)
    assert verdict(evaluating) is None
    found = verdict(evaluating, limits=LivenessLimits(outside_s=60.0))
    assert found is not None
    assert "--hang-timeout is 60 s" in found.text


@pytest.mark.parametrize("activity", [Activity.EXCHANGE, Activity.WAITING, Activity.SWITCH, Activity.ENDED])
def test_waiting_for_others_is_never_a_workers_own_fault(activity: Activity) -> None:
    assert verdict(replace(ALIVE, activity=activity, since=NOW - 3600), limits=LivenessLimits(outside_s=1.0)) is None
