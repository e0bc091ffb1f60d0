"""The leader's decisions, one by one: a view in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.core.roster import Member, Roster
from stretto.core.slices import deal
from stretto.membership.protocol import (
    Break,
    Dismiss,
    Fail,
    LeaderView,
    Lost,
    Phase,
    Publish,
    WorkerStatus,
    decide,
    over,
)


def status(worker: str, phase: Phase = Phase.MEMBER, *, agent: str = "a", **facts: object) -> WorkerStatus:
    number = int(worker[1:])
    base = WorkerStatus(worker, agent, phase, number, address=(agent, number), slices=8, shape="s")
    return replace(base, **facts)  # type: ignore[arg-type]


def roster(number: int, *workers: str, agents: dict[str, str] | None = None, **fields: object) -> Roster:
    spans = deal(8, len(workers))
    members = tuple(
        Member(worker, (agents or {}).get(worker, "a"), ("a", int(worker[1:])), span)
        for worker, span in zip(workers, spans, strict=True)
    )
    return Roster(number, members, **fields)  # type: ignore[arg-type]


def view(
    last: Roster | None, *statuses: WorkerStatus, broken: int = 0, wanted: int = 2, least: int = 1, most: int = 8, **fields: object
) -> LeaderView:
    return LeaderView(last, broken, {one.worker: one for one in statuses}, wanted, least, most, 8, 1, **fields)  # type: ignore[arg-type]


def members(*names: str, number: int, tick: int = 5, **facts: object) -> list[WorkerStatus]:
    return [status(name, roster=number, tick=tick, **facts) for name in names]


def published(actions: tuple[object, ...]) -> Roster:
    (publish,) = [action for action in actions if isinstance(action, Publish)]
    return publish.roster


def test_the_first_roster_waits_for_the_fewest_and_takes_up_to_the_wanted() -> None:
    ready = [status(f"w{k}", Phase.READY) for k in (1, 2, 3)]
    assert decide(view(None, *ready[:1], least=2)) == ()
    first = published(decide(view(None, *ready, least=2, wanted=2)))
    assert (first.number, first.base, first.workers, first.joined) == (1, 0, ("w1", "w2"), ("w1", "w2"))


def test_a_starting_worker_is_not_in_a_roster() -> None:
    assert decide(view(None, status("w1", Phase.STARTING))) == ()


def test_fewer_slices_than_the_fewest_workers_fail_the_job_with_the_fix() -> None:
    (action,) = decide(replace(view(None, status("w1", Phase.READY), least=9, wanted=9, most=9)))
    assert isinstance(action, Fail)
    assert "slices=8 allows at most 8 workers, 9 were asked for" in action.reason
    assert "job.loader" in action.reason


def test_a_newcomer_is_planned_when_the_last_roster_is_in_effect_and_not_before() -> None:
    newcomer = status("w2", Phase.READY)
    assert decide(view(roster(3, "w1"), *members("w1", number=2), newcomer)) == ()
    plan = published(decide(view(roster(3, "w1"), *members("w1", number=3), newcomer)))
    assert (plan.number, plan.base, plan.workers, plan.joined, plan.cause) == (4, 3, ("w1", "w2"), ("w2",), "join")


def test_nothing_is_decided_while_everybody_trains_as_wanted() -> None:
    assert decide(view(roster(3, "w1", "w2"), *members("w1", "w2", number=3))) == ()


def test_a_change_that_arrives_during_a_change_waits_for_it() -> None:
    plan = roster(4, "w1", "w2", base=3, joined=("w2",))
    statuses = [*members("w1", number=3), status("w2", Phase.READY), status("w3", Phase.READY)]
    assert decide(view(plan, *statuses, wanted=3)) == ()


def test_the_newest_leave_first_and_joins_come_with_leaves_in_one_plan() -> None:
    last = roster(3, "w1", "w2", "w3")
    plan = published(decide(view(last, *members("w1", "w2", "w3", number=3), wanted=1)))
    assert (plan.workers, plan.left, plan.cause) == (("w1",), ("w2", "w3"), "leave")
    drained = [status("w1", roster=3, tick=5, leaving=True), *members("w2", "w3", number=3), status("w4", Phase.READY)]
    plan = published(decide(view(last, *drained, wanted=3)))
    assert (plan.workers, plan.left, plan.joined) == (("w2", "w3", "w4"), ("w1",), ("w4",))


def test_somebody_who_has_the_state_stays_until_a_newcomer_has_it() -> None:
    drained = status("w1", roster=3, tick=5, leaving=True)
    assert decide(view(roster(3, "w1"), drained, wanted=1)) == ()
    plan = published(decide(view(roster(3, "w1"), drained, status("w2", Phase.READY), wanted=2)))
    assert (plan.workers, plan.left) == (("w1", "w2"), ())


@pytest.mark.parametrize(("wanted", "most", "count"), [(20, 20, 8), (20, 3, 3), (0, 3, 1), (2, 8, 2)])
def test_never_more_than_slices_or_most_and_never_nobody(wanted: int, most: int, count: int) -> None:
    ready = [status(f"w{k}", Phase.READY) for k in range(1, 13)]
    assert len(published(decide(view(None, *ready, wanted=wanted, most=most))).members) == count


def test_a_newcomer_that_died_is_left_out_of_a_plan_on_the_same_base() -> None:
    plan = roster(4, "w1", "w2", "w3", base=3, joined=("w2", "w3"))
    statuses = [*members("w1", number=3), status("w2", Phase.GONE), status("w3", Phase.READY)]
    again = published(decide(view(plan, *statuses, wanted=3)))
    assert (again.number, again.base, again.workers, again.joined) == (5, 3, ("w1", "w3"), ("w3",))


def test_a_newcomer_that_cannot_reach_the_others_is_dismissed_and_left_out() -> None:
    plan = roster(4, "w1", "w2", base=3, joined=("w2",))
    actions = decide(view(plan, *members("w1", number=3), status("w2", Phase.READY, halted=4)))
    assert any(isinstance(action, Dismiss) and action.worker == "w2" for action in actions)
    assert published(actions).workers == ("w1",)


def test_a_newcomer_that_died_after_somebody_had_switched_breaks_the_plan() -> None:
    plan = roster(4, "w1", "w2", base=3, joined=("w2",))
    (action,) = decide(view(plan, *members("w1", number=4), status("w2", Phase.GONE)))
    assert isinstance(action, Break)
    assert action.number == 4


def test_a_first_roster_that_was_replaced_although_somebody_had_entered_it_is_broken() -> None:
    """The record was late: w1 was in roster 1 when w2's death had it replaced."""
    late = status("w1", Phase.MEMBER, roster=1, tick=0, halted=1)
    (action,) = decide(view(roster(2, "w1", joined=("w1",)), late, status("w3", Phase.READY)))
    assert isinstance(action, Break)
    assert action.number == 2
    entered_since = status("w1", Phase.MEMBER, roster=2, tick=0, halted=1)
    assert not any(isinstance(one, Break) for one in decide(view(roster(2, "w1", joined=("w1",)), entered_since)))


@pytest.mark.parametrize(
    "trouble",
    [
        {"phase": Phase.GONE},
        {"halted": 3},
    ],
    ids=["died", "its exchange failed"],
)
def test_a_member_in_trouble_breaks_everything_up_to_the_last_number(trouble: dict[str, object]) -> None:
    plan = roster(4, "w1", "w2", "w3", base=3, joined=("w3",))
    statuses = [*members("w1", number=3), status("w2", roster=3, tick=5), status("w3", Phase.READY)]
    statuses[1] = replace(statuses[1], **trouble)  # type: ignore[arg-type]
    (action,) = decide(view(plan, *statuses, wanted=3))
    assert isinstance(action, Break)
    assert action.number == 4


def test_a_member_without_a_record_has_vanished_unless_its_agent_may_only_be_late() -> None:
    last = roster(3, "w1", "w2", agents={"w2": "b"})
    (action,) = decide(view(last, *members("w1", number=3)))
    assert isinstance(action, Break)
    assert "w2" in action.reason
    assert "b" in action.reason
    assert decide(view(last, *members("w1", number=3), awaited=frozenset({"b"}), unfenced=frozenset({"b"}))) == ()


def test_a_worker_that_left_in_order_breaks_nothing() -> None:
    plan = roster(4, "w1", base=3, left=("w2",))
    assert decide(view(plan, *members("w1", number=3), status("w2", Phase.GONE, roster=4), wanted=1)) == ()
    (action,) = decide(view(plan, *members("w1", number=3), status("w2", Phase.GONE, roster=3), wanted=1))
    assert isinstance(action, Break)


def test_a_rescue_waits_for_everybody_and_takes_those_who_are_furthest() -> None:
    last = roster(3, "w1", "w2", "w3")
    gone, slow = status("w1", Phase.GONE, roster=3, tick=6), status("w3", roster=3, tick=5, halted=2)
    ahead = status("w2", roster=3, tick=6, halted=3)
    assert decide(view(last, gone, ahead, slow, broken=3)) == ()
    actions = decide(view(last, gone, ahead, replace(slow, halted=3), broken=3))
    rescue = published(actions)
    assert (rescue.number, rescue.workers, rescue.rescue, rescue.tick, rescue.base) == (4, ("w2",), True, 6, 0)
    assert [action.worker for action in actions if isinstance(action, Dismiss)] == ["w3"]


def test_a_newcomer_without_state_is_not_in_a_rescue_but_in_the_plan_after_it() -> None:
    plan = roster(4, "w1", "w2", "w3", base=3, joined=("w3",))
    halted = [*members("w1", number=3, halted=4), status("w2", Phase.GONE), status("w3", Phase.READY, halted=4)]
    rescue = published(decide(view(plan, *halted, broken=4)))
    assert rescue.workers == ("w1",)
    after = published(decide(view(rescue, *members("w1", number=5, halted=4), halted[2], broken=4)))
    assert (after.base, after.workers, after.joined) == (5, ("w1", "w3"), ("w3",))


def test_a_newcomer_that_already_has_the_state_is_rescued() -> None:
    plan = roster(4, "w1", "w2", base=3, joined=("w2",))
    halted = [status("w1", Phase.GONE), status("w2", roster=4, tick=5, halted=4)]
    rescue = published(decide(view(plan, *halted, broken=4)))
    assert (rescue.workers, rescue.tick) == (("w2",), 5)


def test_those_who_were_to_leave_are_rescued_with_the_rest() -> None:
    plan = roster(4, "w1", base=3, left=("w2",))
    halted = [status("w1", Phase.GONE, roster=3, tick=5), status("w2", roster=3, tick=5, halted=4)]
    assert published(decide(view(plan, *halted, broken=4, wanted=1))).workers == ("w2",)


def test_when_nobody_with_the_state_is_left_the_job_is_lost_but_only_when_nobody_can_be_training_elsewhere() -> None:
    last = roster(3, "w1", agents={"w1": "b"})
    assert decide(view(last, status("w2", Phase.READY), broken=3, unfenced=frozenset({"b"}))) == ()
    assert decide(view(last, status("w2", Phase.READY), broken=3)) == (Lost(),)


def test_a_plan_whose_members_have_all_vanished_is_not_replaced_before_they_are_fenced() -> None:
    """They may have agreed to go on alone with what those who leave have said."""
    plan = roster(4, "w1", base=3, left=("w2",), agents={"w1": "b"})
    leaver = status("w2", roster=3, tick=5, halted=4)
    assert decide(view(plan, leaver, broken=4, unfenced=frozenset({"b"}))) == ()
    assert published(decide(view(plan, leaver, broken=4))).workers == ("w2",)


def test_a_first_roster_that_nobody_could_begin_is_made_again() -> None:
    first = roster(1, "w1", "w2", joined=("w1", "w2"))
    again = published(decide(view(first, status("w2", Phase.READY, halted=1), status("w3", Phase.READY), broken=1)))
    assert (again.number, again.base, again.rescue, again.workers) == (2, 0, False, ("w2", "w3"))


def test_a_rescue_that_fails_at_its_first_tick_with_everybody_alive_goes_on_with_fewer() -> None:
    last = roster(4, "w1", "w2", "w3", rescue=True, tick=5)
    halted = members("w1", "w2", "w3", number=4, halted=4)
    assert published(decide(view(last, *halted, broken=4))).workers == ("w1", "w2")
    progress = [replace(one, tick=6) for one in halted]
    assert len(published(decide(view(last, *progress, broken=4))).members) == 3


def cut(*pairs: str) -> frozenset[frozenset[str]]:
    return frozenset(map(frozenset, pairs))


def test_where_hosts_do_not_reach_each_other_one_of_them_goes_with_all_its_workers() -> None:
    agents = {"w1": "a", "w2": "b", "w3": "b", "w4": "c", "w5": "d"}
    last = roster(4, *agents, agents=agents, rescue=True, tick=5)
    halted = [status(name, agent=agent, roster=4, tick=5, halted=4) for name, agent in agents.items()]

    def rescued(*pairs: str) -> tuple[str, ...]:
        return published(decide(view(last, *halted, broken=4, cuts=cut(*pairs)))).workers

    assert rescued("bc") == ("w1", "w2", "w3", "w5"), "the smaller host"
    assert rescued("ad") == ("w1", "w2", "w3", "w4"), "the newer of two that are as large"
    assert rescued("ab", "bc", "bd") == ("w1", "w4", "w5"), "the one that has most cuts, however large it is"
    assert rescued("ae", "ef") == ("w1", "w2", "w3", "w4"), "a cut that concerns nobody of them: as if nobody knew"
    first = roster(4, *agents, agents=agents)
    assert len(published(decide(view(first, *halted, broken=4, cuts=cut("bc")))).members) == 5, "it may be mended: tried once"


def test_a_rescue_that_cannot_stand_is_given_up_as_soon_as_the_cut_is_known_and_nothing_else_is() -> None:
    agents = {"w1": "a", "w2": "b"}
    rescue = roster(4, *agents, agents=agents, rescue=True, tick=5)
    waiting = [status(name, agent=agent, roster=3, tick=5, halted=3) for name, agent in agents.items()]
    assert decide(view(rescue, *waiting, broken=3, cuts=cut("ab"))) == (Break(4, "agents a and b do not reach each other"),)
    assert decide(view(rescue, *waiting, broken=3, cuts=cut("ac"))) == ()
    entered = [replace(waiting[0], roster=4), waiting[1]]
    assert decide(view(rescue, *entered, broken=3, cuts=cut("ab"))) == (), "somebody has entered it, so it does stand"
    plan = roster(4, *agents, agents=agents, base=3, joined=("w2",))
    training = [status("w1", agent="a", roster=3, tick=5), status("w2", Phase.READY, agent="b")]
    assert decide(view(plan, *training, cuts=cut("ab"))) == (), "a plan stops nobody: its newcomer gives up"


def test_whoever_does_not_reach_those_who_train_is_not_planned_until_it_does() -> None:
    training, last = status("w1", agent="a", roster=3, tick=5), roster(3, "w1", agents={"w1": "a"})
    newcomers = [status("w2", Phase.READY, agent="b"), status("w3", Phase.READY, agent="c")]
    shut_out = view(last, training, *newcomers, wanted=3, cuts=cut("ab"))
    assert published(decide(shut_out)).workers == ("w1", "w3")
    assert published(decide(replace(shut_out, cuts=frozenset()))).workers == ("w1", "w2", "w3")
    assert published(decide(replace(shut_out, cuts=cut("bc")))).workers == ("w1", "w2"), "nor two that do not reach each other"


def test_a_first_roster_is_made_of_those_who_reach_each_other() -> None:
    ready = [status("w1", Phase.READY, agent="a"), status("w2", Phase.READY, agent="b"), status("w3", Phase.READY, agent="c")]
    assert published(decide(view(None, *ready, wanted=3, cuts=cut("bc")))).workers == ("w1", "w2")
    assert decide(view(None, *ready, wanted=3, least=3, cuts=cut("bc"))) == ()


def test_a_worker_that_was_left_behind_is_dismissed() -> None:
    (action,) = decide(view(roster(4, "w1"), *members("w1", number=4), status("w2", roster=3, tick=4, halted=3), wanted=1))
    assert isinstance(action, Dismiss)
    assert action.worker == "w2"


@pytest.mark.parametrize(("odd", "words"), [({"shape": "other"}, "shape other"), ({"slices": 4}, "slices=4")])
def test_a_newcomer_that_differs_is_refused_with_the_difference_and_the_job_goes_on(odd: dict[str, object], words: str) -> None:
    newcomer = replace(status("w2", Phase.READY), **odd)  # type: ignore[arg-type]
    (action,) = decide(view(roster(3, "w1"), *members("w1", number=3), newcomer))
    assert isinstance(action, Dismiss)
    assert action.worker == "w2"
    assert words in action.reason


def test_nothing_is_published_when_all_have_finished_and_the_job_is_over() -> None:
    done = [status(name, Phase.FINISHED, roster=3, tick=9) for name in ("w1", "w2")]
    known = view(roster(3, "w1", "w2"), *done, status("w3", Phase.READY), wanted=3)
    assert decide(known) == ()
    assert over(known)
    running = view(roster(3, "w1", "w2"), done[0], status("w2", roster=3, tick=9), status("w3", Phase.READY), wanted=3)
    assert decide(running) == ()
    assert not over(running)


def test_the_job_is_over_when_the_rest_stopped_just_short_of_the_end() -> None:
    known = view(
        roster(3, "w1", "w2"), status("w1", Phase.FINISHED, roster=3, tick=9), status("w2", roster=3, tick=8, halted=3), broken=3
    )
    assert over(known)


def test_those_who_stand_where_another_has_finished_are_rescued_to_finish_too() -> None:
    known = view(
        roster(3, "w1", "w2", "w3"),
        status("w1", Phase.FINISHED, roster=3, tick=9),
        status("w2", Phase.GONE),
        status("w3", roster=3, tick=9, halted=3),
        broken=3,
    )
    assert published(decide(known)).workers == ("w3",)


def test_a_script_that_ends_early_on_one_worker_fails_the_job() -> None:
    early = status("w1", Phase.FINISHED, roster=3, tick=5)
    (action,) = decide(view(roster(4, "w2", rescue=True, tick=5), early, status("w2", roster=4, tick=7), wanted=1))
    assert isinstance(action, Fail)
    assert "script ended on worker w1 at tick 5 while others went on (w2 at tick 7)" in action.reason


def test_the_workers_of_a_host_are_neighbours_and_whoever_stays_keeps_its_place() -> None:
    agents = {"w1": "a", "w2": "b"}
    last = roster(3, "w1", "w2", agents=agents)
    statuses = [
        status("w1", agent="a", roster=3, tick=5),
        status("w2", agent="b", roster=3, tick=5),
        status("w3", Phase.READY, agent="a"),
        status("w4", Phase.READY, agent="b"),
    ]
    plan = published(decide(view(last, *statuses, wanted=4)))
    assert plan.workers == ("w1", "w3", "w2", "w4")
    assert [len(member.share) for member in plan.members] == [2, 2, 2, 2]


def test_slices_move_away_from_a_straggler_if_that_pays() -> None:
    last = roster(3, "w1", "w2")
    slow = [status("w1", roster=3, tick=5), status("w2", roster=3, tick=5, speed=0.5)]
    plan = published(decide(view(last, *slow)))
    assert [len(member.share) for member in plan.members] == [6, 2]
    assert (plan.cause, plan.joined, plan.left) == ("balance", (), ())
    assert decide(view(last, slow[0], replace(slow[1], speed=0.95))) == ()


def test_a_new_life_begins_with_a_higher_number_and_dismisses_the_relics_of_the_old_one() -> None:
    actions = decide(view(None, status("w1", roster=3, tick=5), status("w2", Phase.READY), broken=3, wanted=1))
    assert published(actions).number == 4
    assert published(actions).workers == ("w2",)
    assert any(isinstance(action, Dismiss) and action.worker == "w1" for action in actions)


def test_a_decision_is_repeated_until_it_is_carried_out_and_names_the_leaders_term() -> None:
    known = view(roster(3, "w1"), *members("w1", number=3), status("w2", Phase.READY))
    assert decide(known) == decide(known)
    assert published(decide(replace(known, term=7))).term == 7
