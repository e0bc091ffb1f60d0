"""What a decision is made from, and what becomes of it: admission, answers, guards, limits, room, replays. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_builder import SPEC, record

from stretto.clusters.base import NodeInfo
from stretto.clusters.local_nodes import bind_slots, cores
from stretto.core.errors import PolicyError
from stretto.core.journal import Commit, JournalEvent
from stretto.scheduling import registry
from stretto.scheduling.guards import GuardLimits
from stretto.scheduling.pipeline import PipelineSettings, with_turns
from stretto.scheduling.policies.quality import fall
from stretto.scheduling.room import fit, make_room
from stretto.scheduling.types import Allocation, ClusterNode, SchedulableJob
from stretto.server.decisions import policy_process
from stretto.server.decisions.efficiency_cap import paying
from stretto.server.decisions.policy_process import decide
from stretto.server.decisions.policy_runner import PolicyInput, check
from stretto.server.decisions.replay import replay
from stretto.server.decisions.slot_handover import Claim, admit
from stretto.server.decisions.snapshot import fitted, job_view, limits
from stretto.server.jobs import journal_events
from stretto.server.jobs.command import loader_environment
from stretto.server.jobs.run_progress import MOST_MEANS, RunProgress
from stretto.server.jobs.state import JobRecord
from stretto.server.models import JobState

claims = st.lists(
    st.builds(
        Claim,
        job=st.uuids().map(str),
        have=st.integers(0, 4),
        want=st.integers(0, 6),
        least=st.integers(1, 3),
        begun=st.booleans(),
        since=st.floats(0, 100),
    ),
    max_size=8,
).map(lambda found: [one if one.begun else Claim(one.job, 0, one.want, one.least, False, one.since) for one in found])


@given(claims, st.integers(0, 16))
def test_admission_never_lets_more_workers_run_than_there_are_slots(found: list[Claim], slots: int) -> None:
    grants = admit(found, slots=slots)
    before = sum(one.have for one in found)
    running = sum(max(one.have, grants[one.job]) for one in found)
    assert running <= max(slots, before), "who has slots too many keeps them until they leave; nobody is added"
    for one in found:
        assert grants[one.job] <= one.want
        assert one.begun or grants[one.job] == 0 or grants[one.job] >= min(one.least, one.want)


def test_who_gets_slots_waits_until_they_are_free() -> None:
    shrinking, growing = Claim("a", 4, 1, 1, True), Claim("b", 0, 3, 1, False)
    assert admit([shrinking, growing], slots=4) == {"a": 1, "b": 0}
    assert admit([replace(shrinking, have=1), growing], slots=4) == {"a": 1, "b": 3}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_no_slot_is_two_jobs(sizes: list[int], data: st.DataObject) -> None:
    nodes = [NodeInfo(f"n{place}", size) for place, size in enumerate(sizes)]
    held: dict[str, dict[str, tuple[int, ...]]] = {}
    for _ in range(3):
        wanted = data.draw(
            st.dictionaries(st.sampled_from("abcde"), st.dictionaries(st.sampled_from([n.name for n in nodes]), st.integers(0, 4)))
        )
        before, held = held, bind_slots(nodes, wanted, held)
        for node in nodes:
            used = [slot for places in held.values() for slot in places.get(node.name, ())]
            assert len(used) == len(set(used))
            assert all(0 <= slot < node.slots for slot in used)
        for job, places in held.items():
            for name, slots in places.items():
                old = before.get(job, {}).get(name, ())
                assert set(old[: len(slots)]) <= set(slots), "who stays keeps its cores"


def test_slots_are_cores_only_where_there_are_enough() -> None:
    nodes = [NodeInfo("n0", 2), NodeInfo("n1", 2)]
    assert cores(nodes, {"n1": (0, 1)}, available=[0, 1, 2, 3]) == {2, 3}
    assert cores(nodes, {"n1": (0, 1)}, available=[0, 1]) == {0, 1}, "shared: everybody on all"


# -- policies' answers ---------------------------------------------------------------------------------------------------


def snapshot(**more: object) -> PolicyInput:
    jobs = [SchedulableJob("a", 0.0, least=1, most=2, models={}), SchedulableJob("b", 1.0, least=2, most=4, models={})]
    return PolicyInput("test", jobs, [ClusterNode("n0", 4)], {}, 100.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"a": [["n0", 3]]}, "a was allocated 3 workers, its limits are 1 to 2"),
        ({"b": [["n0", 1]]}, "b was allocated 1 workers, its limits are 2 to 4"),
        ({"x": [["n0", 1]]}, "not a waiting or running job"),
        ({"a": [["n9", 1]]}, "not a node of the cluster"),
        ({"a": [["n0", 2]], "b": [["n0", 3]]}, "n0 has 4 slots, 5 were allocated"),
        ({"a": 5}, "cannot be read"),
        ({"a": [["n0", -1]]}, "its limits are 1 to 2"),
    ],
)
def test_an_impossible_answer_of_a_policy_is_refused(places: object, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        check(snapshot(), json.dumps({"places": places, "reasons": {}}).encode())


def test_a_possible_answer_is_taken() -> None:
    answer = check(snapshot(), json.dumps({"places": {"a": [["n0", 2]], "b": [["n0", 2]]}, "reasons": {"a": "because"}}).encode())
    assert answer.places == {"a": (("n0", 2),), "b": (("n0", 2),)}


# -- guards --------------------------------------------------------------------------------------------------------------


def grown(changed_s: float | None, *, cooldown_s: float) -> int:
    job = SchedulableJob("a", 0.0, least=1, most=4, changed_s=changed_s, models={})
    settings = PipelineSettings(guards=GuardLimits(cooldown_s=cooldown_s))
    found = PolicyInput("optimus", [job], [ClusterNode("n0", 4)], {"a": (("n0", 1),)}, 100.0, settings=settings)
    policy_process.load = lambda name: lambda jobs, nodes, now, time_s: Allocation({"a": (("n0", 3),)}, {})  # type: ignore[assignment]
    try:
        return decide(found, [job], None).answer.workers("a")
    finally:
        policy_process.load = registry.load


def test_a_job_that_was_changed_a_moment_ago_is_not_grown_again() -> None:
    assert grown(95.0, cooldown_s=10.0) == 1
    assert grown(95.0, cooldown_s=4.0) == 3, "a control: the cool-down is over"
    assert grown(None, cooldown_s=10.0) == 3


def test_a_clock_that_was_set_back_holds_nobody_for_ever() -> None:
    assert job_view(record(changed_at=1e9), RunProgress(), quota=None, now=100.0).changed_s is None, "no cool-down until then"
    assert job_view(record(changed_at=99.0), RunProgress(), quota=None, now=100.0).changed_s == 99.0
    runs, waits = record(turn_at=1e9), record(id="j-bbbbbbbbbbbb", state=JobState.QUEUED)
    assert free(runs, waits, slots=1, now=100.0) == {runs.id}, "no turn until then either"


def test_a_pin_that_is_taken_away_leaves_no_trace_in_what_is_known_of_a_job() -> None:
    models, paces = policy_process.Models(), {"a": (16, ((1, 60.0), (2, 120.0)))}

    def decided(most: int) -> int:
        job = SchedulableJob("a", 0.0, least=1, most=most, profiled=2, pause_s=0.01)
        found = PolicyInput("goodput", [job], [ClusterNode("n0", 2)], {"a": (("n0", 1),)}, 100.0, paces)
        return decide(found, models.add(found), None).answer.workers("a")

    assert decided(1) == 1, "pinned to one worker while its speeds are fitted"
    assert decided(2) == 2, "the policy has it again, and two workers are twice as fast"


# -- limits --------------------------------------------------------------------------------------------------------------


def committed(step: int, **fields: Any) -> Commit:
    usual = {"epoch": 0, "loader": 0, "first": 8 * step, "count": 8, "batch": 8, "roster": 1, "workers": 1, "step_s": 0.1, "t": 1.0}
    return Commit(step=step, **{**usual, **fields})


def test_a_job_whose_newcomers_are_refused_gets_no_slots_for_them_until_somebody_wishes_so() -> None:
    known = RunProgress()
    commit = committed(0, workers=2)
    refused = JournalEvent("unreplaced", "is not replaced any more", worker="w4", t=2.0)
    journal_events.read(record(), known, [commit, refused])
    assert limits(record(), known) == (1, 2, "refused")
    assert limits(record(wish=3), known) == (1, 3, "wish"), "somebody asks for it: the agent tries again"
    journal_events.read(record(), known, [committed(1, workers=3)])
    assert limits(record(), known) == (1, 4, ""), "they are not refused any more"
    journal_events.read(record(), known, [refused])
    known.renew(life=2, run="other")
    assert limits(record(), known) == (1, 4, "")


def test_a_wish_bounds_a_pin_fixes_and_a_plan_goes_before_both() -> None:
    assert limits(record(), RunProgress()) == (1, 4, "")
    assert limits(record(wish=3), RunProgress()) == (1, 3, "wish")
    assert limits(record(wish=3, pinned=True), RunProgress()) == (3, 3, "pinned")
    spec = SPEC.model_copy(
        update={"elastic": SPEC.elastic.model_validate({"min": 1, "max": 4, "plan": [{"step": 10, "workers": 2}]})}
    )
    planned = record(spec=spec, wish=4, pinned=True)
    assert limits(planned, RunProgress(step=9)) == (4, 4, "pinned")
    assert limits(planned, RunProgress(step=10)) == (2, 2, "plan")


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"model": 5},
        {"model": {"throughput": {}}},
        {"model": {"throughput": {"alpha_grad": "x"}}},
        {"model": {"throughput": None, "batch": None}},
        {"model": {"grad_sqr": float("nan")}},
    ],
)
def test_a_model_that_makes_no_sense_is_no_model(report: dict[str, object]) -> None:
    assert fitted(report) is None


def trained(losses: list[float]) -> RunProgress:
    known = RunProgress()
    for step, loss in enumerate(losses):
        known.commit(committed(step, step_s=1.0, metrics={"loss": loss}, t=1000.0 + step))
    return known


@pytest.mark.parametrize("steps", [40, 1000, 30_000])
def test_a_job_that_has_learned_what_it_can_does_not_look_like_one_that_learns(steps: int) -> None:
    """Its last losses only go up and down: how far is nothing to compare with what another one learns."""
    falls = trained([2.5 * 0.1 ** (step / steps) for step in range(steps)])
    stands = trained([0.5 + 2.0 * 0.1 ** (20 * step / steps) + 0.01 * (-1) ** step for step in range(steps)])
    seen = [fall(job_view(record(), known, quota=None, now=9.0)) or 0.0 for known in (falls, stands)]
    assert seen[0] > 10 * seen[1]


def test_a_loss_curve_in_a_few_numbers_is_the_whole_curve() -> None:
    for steps in (1, 31, 32, 33, 1000, 4097):
        known = trained([float(step) for step in range(steps)])
        line = known.spark.line()
        assert len(line) <= MOST_MEANS
        assert line == sorted(line)
        assert line[0] < max(1.0, steps / 8)
        assert line[-1] > steps - 1 - max(1.0, steps / 8)
        assert known.spark.steps_ago()[-1:] < [max(2, steps // 8)]
        again = RunProgress.read(json.loads(json.dumps(known.document())))
        assert (again.spark, again.document()) == (known.spark, known.document())
    assert RunProgress.read({"spark": [3.0, 2.0]}).spark.line() == [3.0, 2.0], "as earlier versions kept it"


def test_a_policy_sees_what_is_known_of_a_job() -> None:
    known = RunProgress(batch=64, step=100, steps_per_s=2.0, worker_seconds=50.0, speeds={"1": 100.0, "2": 190.0})
    spec = SPEC.model_copy(update={"steps": 200, "priority": 10})
    seen = job_view(record(spec=spec, resizes=2, pause_ms=40.0), known, quota=3, now=1000.0)
    assert (seen.remaining, seen.steps_left, seen.priority, seen.quota, seen.profiled) == (6400.0, 100.0, 2.0, 3, 2)
    assert seen.pause_s == pytest.approx(0.02)


# -- changed limits ------------------------------------------------------------------------------------------------------


def test_a_job_over_its_new_limit_is_cut_and_one_under_it_grows_into_free_slots() -> None:
    jobs = [
        SchedulableJob("a", 0.0, least=1, most=1),
        SchedulableJob("b", 0.0, least=3, most=3),
        SchedulableJob("c", 0.0, least=9, most=9),
    ]
    nodes = [ClusterNode("n0", 4), ClusterNode("n1", 2)]
    places = {"a": (("n0", 3),), "b": (("n0", 1),), "c": (("n1", 1),)}
    after = fit(jobs, nodes, places)
    assert after == {"a": (("n0", 1),), "b": (("n0", 3),), "c": (("n1", 1),)}, "c cannot be had: it stays as it is"


jobs_and_places = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 4), st.sampled_from(["n0", "n1"])), max_size=5
)


@given(jobs_and_places)
def test_fitting_never_takes_more_slots_than_there_are(found: list[tuple[int, int, int, str]]) -> None:
    nodes = [ClusterNode("n0", 6), ClusterNode("n1", 6)]
    jobs = [SchedulableJob(str(place), 0.0, least=least, most=least + more) for place, (least, more, _, _) in enumerate(found)]
    places = {str(place): ((node, count),) for place, (_, _, count, node) in enumerate(found) if count}
    before = {node.name: sum(count for placed in places.values() for name, count in placed if name == node.name) for node in nodes}
    after = fit(jobs, nodes, places)
    for node in nodes:
        used = sum(count for placed in after.values() for name, count in placed if name == node.name)
        assert used <= max(node.slots, before[node.name])
    assert set(after) == set(places)


def test_whoever_waits_gets_its_fewest_workers_from_those_who_have_more() -> None:
    a, b, c = SchedulableJob("a", 0.0, most=4), SchedulableJob("b", 1.0, least=2, most=4), SchedulableJob("c", 2.0, most=4)
    nodes = [ClusterNode("n0", 4)]
    assert make_room([a, b, c], nodes, {"a": (("n0", 4),)}) == {"a": (("n0", 1),), "b": (("n0", 2),), "c": (("n0", 1),)}
    large = replace(c, least=2)
    assert make_room([a, b, large], nodes, {"a": (("n0", 4),)}) == {"a": (("n0", 4),)}, "not all fit: the policy chooses"
    fixed = replace(a, pinned=True)
    assert make_room([fixed, c], nodes, {"a": (("n0", 4),)}) == {"a": (("n0", 4),)}, "a pinned job gives nothing"
    assert make_room([a, c], [*nodes, ClusterNode("n1", 2)], {"a": (("n0", 4),)})["c"] == (("n1", 1),), "free slots first"
    never = SchedulableJob("d", 0.5, least=9, most=9)
    assert "c" in make_room([a, never, c], nodes, {"a": (("n0", 4),)}), "who can never run keeps nobody waiting"


@given(jobs_and_places)
def test_making_room_takes_nobody_below_its_fewest_and_no_slot_twice(found: list[tuple[int, int, int, str]]) -> None:
    nodes = [ClusterNode("n0", 16), ClusterNode("n1", 6)]
    jobs = [SchedulableJob(str(place), place, least=least, most=least + more) for place, (least, more, _, _) in enumerate(found)]
    places = {str(place): ((node, least + count),) for place, (least, _, count, node) in enumerate(found) if node == "n0"}
    if sum(count for placed in places.values() for _, count in placed) > 16:
        return
    after = make_room(jobs, nodes, places)
    for node in nodes:
        assert sum(count for placed in after.values() for name, count in placed if name == node.name) <= node.slots
    assert all(sum(count for _, count in placed) >= jobs[int(name)].least for name, placed in after.items())
    assert set(after) >= set(places)


def test_a_job_that_sizes_itself_grows_only_as_far_as_it_pays() -> None:
    def most(speeds: dict[int, float], have: int = 1) -> int:
        return paying(speeds, efficiency=0.6, least=1, most=8, have=have)

    assert most({}) == 1, "nothing is measured: the fewest"
    assert most({1: 100.0}) == 2, "then twice as many are tried"
    assert most({1: 100.0, 2: 180.0}) == 4
    assert most({1: 100.0, 2: 180.0, 4: 230.0}) == 2, "two more bring 25 each, less than 0.6 of 90"
    assert most({1: 100.0, 2: 155.0}, have=2) == 2 * 2, "who has it keeps it for a little less: measurements flicker"
    assert most({1: 100.0, 2: 155.0}, have=1) == 1, "a control: nobody grows for that"
    spec = SPEC.model_copy(update={"elastic": SPEC.elastic.model_validate({"min": 1, "max": 4, "autoscale": {"efficiency": 0.6}})})
    slow = RunProgress(speeds={"1": 100.0, "2": 110.0})
    assert limits(record(spec=spec), slow) == (1, 1, "autoscale")
    assert limits(record(spec=spec, wish=3), slow) == (1, 3, "wish"), "a wish goes before"


def test_what_a_job_file_asks_of_the_loader_is_in_the_jobs_environment() -> None:
    elastic = SPEC.elastic.model_validate({"min": 1, "max": 4, "slices": 4, "batch": "linear"})
    assert loader_environment(elastic) == {"STRETTO_SLICES": "4", "STRETTO_BATCH": "linear"}
    assert loader_environment(SPEC.elastic) == {}, "nothing is said: the script counts"


def free(runs: JobRecord, waits: JobRecord, *, slots: int, now: float) -> set[str]:
    """The jobs that a decision may set back to the queue."""
    jobs = [job_view(each, RunProgress(), quota=None, now=now) for each in (runs, waits)]
    current = Allocation({runs.id: (("n0", 1),)})
    return {job.name for job in with_turns(jobs, [ClusterNode("n0", slots)], current, now, turn_s=60.0) if job.preemptible}


def test_nobody_is_set_back_while_all_fit_or_before_its_turn_is_over() -> None:
    runs = record(turn_at=100.0)
    waits = record(id="j-baaaaaaaaaaa", state=JobState.QUEUED)
    assert free(runs, waits, slots=2, now=1000.0) == set(), "both fit: it is shrunk instead"
    assert free(runs, waits, slots=1, now=120.0) == set(), "not yet"
    assert free(runs, waits, slots=1, now=160.0) == {runs.id}
    urgent = replace(waits, spec=SPEC.model_copy(update={"priority": 5}))
    assert free(runs, urgent, slots=1, now=120.0) == {runs.id}, "for somebody more important at once"
    fixed = replace(runs, spec=SPEC.model_copy(update={"preemptible": False}))
    assert free(fixed, urgent, slots=1, now=1000.0) == set()
    starting = replace(runs, state=JobState.STARTING)
    assert free(starting, urgent, slots=1, now=1000.0) == set(), "it has no checkpoint of this attempt"
    pinned = replace(runs, wish=2, pinned=True)
    assert free(pinned, waits, slots=2, now=1000.0) == set(), "a pin above the declared minimum sets nobody back"


# -- replays -------------------------------------------------------------------------------------------------------------


def row(name: str, **more: object) -> dict[str, Any]:
    return {
        "name": name,
        "time": 0.0,
        "tenant": "default",
        "min_workers": 1,
        "max_workers": 2,
        "priority": 0,
        "batch": 64,
        "steps": 100,
        "throughput": {"1": 640.0, "2": 1200.0},
        **more,
    }


@pytest.mark.parametrize("policy", ["fifo", "goodput"])
def test_a_replay_makes_a_bounded_number_of_decisions_however_long_the_jobs_are(policy: str) -> None:
    rows = [row("short"), row("endless", steps=10**9), row("later", time=6 * 3600.0)]
    found = replay(rows, {"node0": 2}, policy, period_s=1.0)
    assert set(found["jobs"]) == {"short-0", "endless-1", "later-2"}
    assert found["decisions"] < 1000, "a control: at one a second it would be a hundred million"


def test_a_replay_leaves_out_what_does_not_fit_or_was_not_measured() -> None:
    large = row("large", min_workers=9, max_workers=9)
    found = replay([large, row("new", throughput={}), row("fits")], {"node0": 2}, "fifo", period_s=1.0)
    assert set(found["jobs"]) == {"fits-2"}
    assert replay([large], {"node0": 2}, "fifo", period_s=1.0)["jobs"] == {}
