"""A worker's side of the protocol, event by event."""

from __future__ import annotations

from stretto.core.roster import Member, Roster
from stretto.core.slices import deal
from stretto.membership.member_state import MemberState


def roster(number: int, *workers: str, **fields: object) -> Roster:
    members = tuple(Member(worker, "a", ("", 0), span) for worker, span in zip(workers, deal(8, len(workers)), strict=True))
    return Roster(number, members, **fields)  # type: ignore[arg-type]


def seated(number: int = 3, tick: int = 5) -> MemberState:
    seat = MemberState("w1")
    seat.enter(roster(number, "w1", "w2"), tick=tick)
    return seat


def test_a_plan_is_entered_when_everybody_has_named_it_in_one_exchange() -> None:
    seat = seated()
    assert seat.receive(roster(4, "w1", "w2", "w3", base=3))
    assert seat.offer() == 0
    assert seat.stood(4)
    offered = seat.offer()
    seat.exchanged(offered, [4, 0])
    assert seat.agreed is None
    seat.exchanged(seat.offer(), [4, 4])
    assert seat.agreed is not None
    assert seat.agreed.number == 4
    assert seat.tick == 7


def test_a_plan_that_was_named_counts_although_a_newer_one_was_heard_meanwhile() -> None:
    seat = seated()
    seat.receive(roster(4, "w1", "w2", "w3", base=3))
    seat.stood(4)
    offered = seat.offer()
    seat.receive(roster(5, "w1", "w2", base=3))
    seat.exchanged(offered, [4, 4])
    assert seat.agreed is not None
    assert seat.agreed.number == 4


def test_a_leaver_has_nothing_to_build_and_can_agree_at_once() -> None:
    seat = seated()
    assert not seat.receive(roster(4, "w2", base=3, left=("w1",)))
    assert seat.offer() == 4


def test_older_and_repeated_rosters_are_refused() -> None:
    seat = seated()
    assert seat.receive(roster(5, "w1", "w2", base=3))
    assert not seat.receive(roster(5, "w1", "w2", base=3))
    assert not seat.receive(roster(4, "w1", "w2", "w3", base=3))
    assert seat.plan is not None
    assert seat.plan.number == 5


def test_a_plan_on_a_base_that_is_not_in_effect_here_is_not_built() -> None:
    assert not seated().receive(roster(5, "w1", "w2", base=4))


def test_after_a_halt_only_a_rescue_at_the_same_tick_goes_on() -> None:
    seat = seated()
    seat.receive(roster(4, "w1", "w2", "w3", base=3))
    assert seat.halt(3)
    assert seat.plan is None
    assert not seat.receive(roster(4, "w1", "w2", "w3", base=3))
    assert seat.halt(4)
    assert not seat.halt(4)
    assert not seat.receive(roster(5, "w1", rescue=True, tick=6))
    assert seat.receive(roster(6, "w1", rescue=True, tick=5))


def test_a_late_halt_does_not_stop_a_newer_roster() -> None:
    seat = seated(number=7)
    assert not seat.halt(4)
    assert seat.roster is not None
    assert seat.halted == 4
    fresh = MemberState("w9")
    fresh.receive(roster(8, "w1", "w9", base=7))
    assert not fresh.halt(4)
    assert fresh.plan is not None
