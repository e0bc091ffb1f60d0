"""Guards and cluster sizing: each rule with a case on both sides of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_builders import job, model, nodes

from stretto.core.errors import UsageError
from stretto.scheduling.cluster_sizing import Aims, Offer, preemption_cost, wanted
from stretto.scheduling.guards import cooling, guard, idle, near_end
from stretto.scheduling.types import Allocation

SMALL, LARGE = (("n00", 1),), (("n00", 4),)
A_SECOND = model().choose(nodes=1, workers=1).goodput


def test_nothing_changes_near_the_end_that_cannot_pay_for_itself() -> None:
    ending = job("a", remaining=20 * A_SECOND, pause_s=30.0)
    assert "20 s are left" in (near_end(ending, SMALL, LARGE, "default") or "")
    assert near_end(replace(ending, remaining=2000 * A_SECOND), SMALL, LARGE, "default") is None
    assert near_end(replace(ending, remaining=None), SMALL, LARGE, "default") is None


def test_after_a_change_comes_a_cool_down() -> None:
    changed = job("a", changed_s=100.0)
    assert "20 s ago" in (cooling(changed, 120.0, cooldown_s=60.0) or "")
    assert cooling(changed, 160.0, cooldown_s=60.0) is None
    assert cooling(job("b"), 0.0) is None


def test_idle_jobs_do_not_grow() -> None:
    assert "10%" in (idle(job("a", utilisation=0.1)) or "")
    assert idle(job("a", utilisation=0.9)) is None


def test_a_guard_takes_growth_back_and_lets_shrinking_pass() -> None:
    cold = job("cold", changed_s=90.0)
    grown = Allocation({"cold": LARGE})
    kept = guard([cold], nodes(1), Allocation({"cold": SMALL}), grown, 100.0)
    assert kept.of("cold") == SMALL
    assert "changed" in kept.reasons["cold"]
    shrunk = guard([cold], nodes(1), Allocation({"cold": LARGE}), Allocation({"cold": SMALL}), 100.0)
    assert shrunk.of("cold") == SMALL
    warm = guard([job("cold")], nodes(1), Allocation({"cold": SMALL}), grown, 100.0)
    assert warm.of("cold") == LARGE


def test_a_guard_never_takes_slots_from_somebody_else() -> None:
    """A job that moved cannot be put back: its old slots may be another's now."""
    moved = Allocation({"a": (("n01", 4),), "b": (("n00", 4),)})
    now = Allocation({"a": SMALL})
    answer = guard([job("a", changed_s=99.0), job("b")], nodes(2), now, moved, 100.0)
    assert answer.of("a") == (("n01", 4),)


ON_DEMAND = Offer("steady", 4, 4.0, most=8)
SPOT = Offer("spot", 4, 1.0, spot=True, reclaims_per_hour=0.1, most=8)


def crowd(count: int) -> list:
    return [job(f"j{n}", most=4, pause_s=30.0) for n in range(count)]


def test_more_jobs_want_more_nodes_and_none_want_none() -> None:
    few = wanted(crowd(2), [ON_DEMAND], {}, Aims(), time_s=0.0)
    many = wanted(crowd(12), [ON_DEMAND], {}, Aims(), time_s=0.0)
    assert 1 <= few.nodes["steady"] < many.nodes["steady"]
    assert wanted([], [ON_DEMAND], {}, Aims(), time_s=0.0).nodes == {"steady": 0}
    assert few.reasons


def test_a_node_is_had_only_while_it_is_worth_its_price() -> None:
    dear = wanted(crowd(8), [ON_DEMAND], {}, Aims(worth=0.5), time_s=0.0)
    cheap = wanted(crowd(8), [ON_DEMAND], {}, Aims(worth=50.0), time_s=0.0)
    assert dear.nodes["steady"] == 0
    assert cheap.nodes["steady"] >= 2
    assert cheap.price == 4.0 * cheap.nodes["steady"]


def test_spot_comes_first_beyond_the_minimum_of_on_demand() -> None:
    answer = wanted(crowd(8), [ON_DEMAND, SPOT], {}, Aims(worth=5.0, least_on_demand=1), time_s=0.0)
    assert answer.nodes["steady"] == 1
    assert answer.nodes["spot"] >= 1
    assert answer.preemptions > 0


def test_spot_that_is_always_taken_away_is_not_worth_it() -> None:
    hopeless = replace(SPOT, reclaims_per_hour=100.0)
    assert preemption_cost(hopeless, crowd(1)) > preemption_cost(SPOT, crowd(1))
    answer = wanted(crowd(8), [ON_DEMAND, hopeless], {}, Aims(worth=5.0), time_s=0.0)
    assert answer.nodes["spot"] < wanted(crowd(8), [ON_DEMAND, SPOT], {}, Aims(worth=5.0), time_s=0.0).nodes["spot"]


def test_small_differences_and_early_shrinking_are_left_alone() -> None:
    jobs = crowd(6)
    free = wanted(jobs, [ON_DEMAND], {}, Aims(), time_s=1000.0).nodes["steady"]
    near = wanted(jobs, [ON_DEMAND], {"steady": free + 1}, Aims(margin=1), time_s=1000.0)
    assert near.nodes["steady"] == free + 1
    soon = wanted(jobs, [ON_DEMAND], {"steady": free + 4}, Aims(), time_s=1000.0, changed_s=900.0)
    assert soon.nodes["steady"] == free + 4
    later = wanted(jobs, [ON_DEMAND], {"steady": free + 4}, Aims(), time_s=2000.0, changed_s=900.0)
    assert later.nodes["steady"] == free


def test_impossible_aims_are_refused_with_the_bound() -> None:
    with pytest.raises(UsageError, match="low < high"):
        wanted(crowd(1), [ON_DEMAND], {}, Aims(low=0.9, high=0.5), time_s=0.0)
