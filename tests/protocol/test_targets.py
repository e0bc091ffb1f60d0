"""How many workers each agent shall run."""

from __future__ import annotations

from dataclasses import replace

from stretto.core.roster import Member, Roster
from stretto.core.slices import Span
from stretto.membership.protocol import LeaderView, Phase, WorkerStatus
from stretto.membership.rank_assignment import shut_out, targets


def view(*statuses: WorkerStatus, wanted: int, least: int = 1, most: int = 8) -> LeaderView:
    return LeaderView(None, 0, {one.worker: one for one in statuses}, wanted, least, most, 0, 1)


def worker(name: str, agent: str, phase: Phase = Phase.MEMBER, **facts: bool) -> WorkerStatus:
    return WorkerStatus(name, agent, phase, int(name[1:]), **facts)


def test_workers_go_beside_others_first() -> None:
    assert targets(view(wanted=4), slots={"a": 3, "b": 3}) == {"a": 3, "b": 1}
    assert targets(view(worker("w1", "b"), wanted=3), slots={"a": 4, "b": 3}) == {"a": 0, "b": 3}


def test_those_that_run_are_kept_and_the_newest_go_first() -> None:
    running = [worker("w1", "a"), worker("w2", "b"), worker("w3", "a")]
    assert targets(view(*running, wanted=2), slots={"a": 4, "b": 4}) == {"a": 1, "b": 1}
    assert targets(view(*running, wanted=3), slots={"a": 4, "b": 4}) == {"a": 2, "b": 1}


def test_members_count_before_those_that_are_only_starting() -> None:
    running = [worker("w1", "a", Phase.STARTING), worker("w2", "b")]
    assert targets(view(*running, wanted=1), slots={"a": 1, "b": 1}) == {"a": 0, "b": 1}


def test_what_an_agent_that_drains_had_is_made_up_elsewhere() -> None:
    running = [worker("w1", "a", leaving=True), worker("w2", "b")]
    assert targets(view(*running, wanted=2), slots={"a": 0, "b": 4}) == {"a": 0, "b": 2}


def test_a_dismissed_worker_is_replaced() -> None:
    assert targets(view(worker("w1", "a"), wanted=1), slots={"a": 1, "b": 2}, dismissed=["w1"]) == {"a": 0, "b": 1}
    assert targets(view(worker("w1", "a"), wanted=1), slots={"a": 1}, dismissed=["w1"]) == {"a": 1}


def test_more_than_there_is_room_for_is_as_many_as_there_is_room_for() -> None:
    assert targets(view(wanted=8), slots={"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_an_agent_that_does_not_reach_those_who_train_is_shut_out_and_those_who_train_never_are() -> None:
    roster = Roster(1, (Member("w1", "a", ("a", 1), Span(0, 4)), Member("w2", "b", ("b", 1), Span(4, 8))))
    cuts = frozenset({frozenset("ab"), frozenset("ac"), frozenset("cd")})
    seen = replace(view(wanted=4), roster=roster, cuts=cuts)
    assert [agent for agent in "abcd" if shut_out(seen, agent)] == ["c"]
    assert not any(shut_out(replace(seen, roster=None), agent) for agent in "abcd"), "before anybody trains all may start"
