"""The times that hold each other up, and the stopwatches that use them."""

from __future__ import annotations

import pytest

from stretto.core.errors import UsageError
from stretto.membership.timeouts import Fence, MissingAgents, Timeouts


def test_a_lease_that_one_lost_answer_would_cost_is_refused_with_the_bound() -> None:
    with pytest.raises(UsageError, match=r"lease_s=1.0 must be at least .* = 1.8"):
        Timeouts(lease_s=1.0)
    with pytest.raises(UsageError, match="above 0"):
        Timeouts(margin_s=0.0)


@pytest.mark.parametrize("fence_s", [1.0, 1.8, 2.5, 90.0])
@pytest.mark.parametrize("drift", [-0.01, 0.01])
def test_an_agent_has_stopped_its_workers_before_the_leader_relies_on_it(fence_s: float, drift: float) -> None:
    timing = Timeouts(fence_s=fence_s)
    sent_at = 0.0
    stopped_at = (timing.fence_s + timing.margin_s) * (1 + drift)
    vanished_at = sent_at + timing.lease_s * (1 - drift)  # at the earliest: the store's clock may be fast
    relied_on_at = vanished_at + timing.fenced_s * (1 - abs(drift))
    slack = 0.02 * timing.fence_s  # two clocks that both drift, in opposite directions, on either duration
    assert relied_on_at + slack >= stopped_at


def test_a_fence_that_is_shorter_than_the_lease_needs_no_waiting() -> None:
    assert Timeouts(fence_s=1.5).fenced_s == 0.0
    assert Timeouts(fence_s=90.0).fenced_s > 88.0


def test_the_fence_counts_from_when_the_last_good_renewal_was_sent() -> None:
    fence = Fence(Timeouts(fence_s=10.0), confirmed_at=0.0)
    fence.renewed(sent_at=4.0)
    fence.renewed(sent_at=3.0)  # an answer that was overtaken
    assert not fence.due(13.9)
    assert fence.due(14.0)


def test_a_new_leader_awaits_agents_that_it_has_never_seen_but_not_those_that_it_saw_go() -> None:
    absences = MissingAgents(Timeouts(fence_s=10.0), began_at=100.0)
    absences.update(100.0, present=["a"], expected=["a", "b"])
    assert absences.awaited(100.0) == {"b"}
    absences.update(101.0, present=[], expected=["a", "b"])
    assert absences.awaited(101.0) == {"b"}
    assert absences.awaited(102.0) == set()
    assert absences.unfenced(102.0) == {"a", "b"}
    end = absences.next_change(102.0)
    assert end is not None
    assert end < 112.0
    assert absences.unfenced(end) == {"a"}
    absences.update(112.0, present=["a"], expected=["a", "b"])
    assert absences.unfenced(112.0) == set()
