"""Every size and every wait has its sentence. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from record_builder import SPEC, record

from stretto.clusters.base import NodeInfo
from stretto.server.decisions.explain import explain
from stretto.server.decisions.snapshot import job_view
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import JobRecord, fold
from stretto.server.models import Explanation, JobState
from stretto.server.spec import JobSpec

# -- explanations --------------------------------------------------------------------------------------------------------


def say(
    one: JobRecord,
    others: list[JobRecord],
    *,
    slots: int = 4,
    tenant: str | None = None,
    alarm: str | None = None,
    progress: RunProgress | None = None,
    all_progress: dict[str, RunProgress] | None = None,
    **more: Any,
) -> Explanation:
    found = {other.id: RunProgress() for other in [one, *others]} | (all_progress or {})
    own = progress or RunProgress()
    return explain(
        one,
        own,
        others=others,
        all_progress=found,
        slots=slots,
        now=1000.0,
        reason="",
        decision=1,
        alarm=alarm,
        tenant=tenant,
        **more,
    )


def named(name: str, **more: Any) -> JobSpec:
    return JobSpec.model_validate({**SPEC.model_dump(), "name": name, **more})


OTHER = record(id="j-baaaaaaaaaaa", spec=SPEC.model_copy(update={"name": "char"}), wanted=4, workers=4, nodes={"node0": 4})


def test_a_waiting_job_names_what_it_needs_and_who_has_it() -> None:
    found = say(record(state=JobState.QUEUED), [OTHER])
    waits = "'digits' waits: it needs 1 slot, 0 of 4 free; the others belong to 'char' (4)"
    assert found.sentence == f"{waits}; expected to start at the next decision."
    assert (found.constraint, found.expected_start) == ("slots", 1000.0), "char can shrink to its minimum at the next decision"


def test_a_job_that_waits_for_an_end_says_whose_and_when() -> None:
    ends = RunProgress(step=100, steps_per_s=2.0)
    long = replace(OTHER, spec=OTHER.spec.model_copy(update={"steps": 180}))
    found = say(record(state=JobState.QUEUED), [long], all_progress={OTHER.id: ends}, resizes=False)
    assert (found.expected_start, found.expected_finish) == (1040.0, None)
    assert found.sentence.endswith("; expected to start in 40 s, when 'char' should end.")
    own = RunProgress(step=10, steps_per_s=1.0)
    spec = SPEC.model_copy(update={"steps": 110})
    found = say(record(state=JobState.QUEUED, spec=spec), [long], progress=own, all_progress={OTHER.id: ends}, resizes=False)
    assert found.expected_finish == 1140.0, "it has trained before: its speed is known"
    assert found.sentence.endswith("when 'char' should end and to finish in 140 s.") or "and to finish in 2 min." in found.sentence
    runs = say(record(spec=spec, wanted=1, workers=1), [OTHER], progress=own)
    assert runs.sentence == "'digits' has 1 worker of at most 4: the other slots belong to 'char' (4); expected to finish in 2 min."
    assert runs.would_change[0] == "'char' (4) ends or shrinks"


def test_those_who_wait_take_their_turns_and_an_unknown_length_gives_no_expected_start() -> None:
    two = [replace(OTHER, id=f"j-{name * 12}", spec=named(name, steps=steps), wanted=1) for name, steps in (("b", 140), ("c", 180))]
    all_progress = {one.id: RunProgress(step=100, steps_per_s=2.0) for one in two}
    waits = {"state": JobState.QUEUED}
    queue = [record(id=f"j-{name * 12}", spec=named(name), submitted_at=t, **waits) for name, t in (("d", 1.0), ("e", 2.0))]
    last = record(state=JobState.QUEUED, submitted_at=3.0)
    found = [say(one, [*two, *queue, last], slots=2, all_progress=all_progress) for one in (*queue, last)]
    assert [one.expected_start for one in found] == [1020.0, 1040.0, None], "two ends, one each; how long those take is not known"
    assert found[0].sentence.endswith("; expected to start in 20 s, when 'b' should end.")
    assert found[1].sentence.endswith("; expected to start in 40 s, when 'b' and 'c' should end.")
    assert found[0].would_change[-1] == "1 more slot"
    told = say(last, [*two, *queue], slots=2, all_progress=all_progress, lasted=lambda one: 30.0 if one.name == "d" else None)
    assert (told.expected_start, told.expected_finish) == (1050.0, None), "when 'd', which is started at 1020, should end"
    assert "'d'" in told.sentence
    own = say(last, [*two, *queue], slots=2, all_progress=all_progress, lasted=lambda _: 30.0)
    assert own.expected_finish == 1080.0
    urgent = replace(last, spec=last.spec.model_copy(update={"priority": 1}))
    assert say(urgent, [*two, *queue], slots=2, all_progress=all_progress).expected_start == 1020.0, "a higher priority goes first"
    endless = replace(queue[0], spec=named("d", elastic={"min": 9, "max": 9}))
    assert say(queue[1], [*two, endless], slots=2, all_progress=all_progress).expected_start == 1020.0, (
        "one that never fits is in nobody's way"
    )


def test_the_words_of_a_policy_are_not_said_twice() -> None:
    found = explain(
        record(state=JobState.QUEUED),
        RunProgress(),
        others=[OTHER],
        all_progress={OTHER.id: RunProgress()},
        slots=4,
        now=1000.0,
        decision=1,
        reason="waits: other jobs gain more from its slots",
        alarm=None,
        tenant=None,
    )
    assert found.sentence.count("waits") == 1
    assert "(other jobs gain more from its slots)" in found.sentence


def test_a_quota_is_named_as_what_holds_a_job_back() -> None:
    found = say(record(state=JobState.QUEUED), [replace(OTHER, wanted=2)], quota=2)
    assert (found.constraint, "0 are left of the quota" in found.sentence) == ("quota", True)


def test_a_job_that_can_never_start_is_told_so() -> None:
    spec = SPEC.model_copy(update={"elastic": SPEC.elastic.model_validate({"min": 8, "max": 8})})
    found = say(record(spec=spec, state=JobState.QUEUED), [])
    assert found.sentence == "'digits' can never run here: it needs 8 slots, the cluster has 4."
    assert (found.constraint, found.expected_start) == ("minimum", None)
    assert found.would_change == ["a smaller elastic.min", "nodes with at least 8 slots in all"]
    pinned = say(record(state=JobState.QUEUED, wish=5, pinned=True), [])
    assert pinned.sentence == "'digits' can never run here: it is pinned to 5 slots, the cluster has 4."
    quota = say(record(spec=spec, state=JobState.QUEUED), [], slots=16, quota=6)
    assert quota.sentence == "'digits' can never run here: it needs 8 slots, tenant 'default' may hold 6 (--quota)."
    assert quota.constraint == "quota"


def test_a_job_of_one_size_can_only_end_to_make_room() -> None:
    fixed = replace(OTHER, spec=named("d", elastic={"min": 4, "max": 4}))
    assert say(record(state=JobState.QUEUED), [fixed]).would_change[0] == "'d' (4) ends"
    assert say(record(state=JobState.QUEUED), [OTHER], resizes=False).would_change[0] == "'char' (4) ends", "no policy shrinks it"
    fixed = replace(fixed, id="j-dddddddddddd", spec=named("e", elastic={"min": 2, "max": 2}), wanted=2)
    both = [replace(OTHER, wanted=2), fixed]
    assert say(record(state=JobState.QUEUED), both).would_change[0] == "one of 'char' (2) and 'e' (2) ends or shrinks"


def test_nothing_is_foretold_of_a_job_that_has_only_been_started() -> None:
    starting = replace(OTHER, spec=named("d", elastic={"min": 4, "max": 4}), state=JobState.STARTING, started_at=None)
    found = say(record(state=JobState.QUEUED), [starting], lasted=lambda _: 0.2)
    assert (found.expected_start, found.expected_finish) == (None, None)
    assert found.sentence.endswith("; when it can start is not known until 'd' has trained for a while.")
    trains = replace(starting, state=JobState.RUNNING, started_at=900.0)
    all_progress = {trains.id: RunProgress(step=100, steps_per_s=2.0, left=6400, batch=64)}
    assert say(record(state=JobState.QUEUED), [trains], all_progress=all_progress).expected_start == 1050.0, (
        "a control: now its speed is known"
    )
    soon = say(record(state=JobState.QUEUED), [], lasted=lambda _: 0.2)
    assert soon.sentence.endswith("expected to start at the next decision and to finish in less than a second.")


def test_a_paused_job_says_by_whom_and_since_when() -> None:
    grown = record(reason="grown from 1 to 2 workers, at the cost of a pause of 0.5 s", wanted=2, workers=2)
    pausing = fold(grown, "pausing", {"by": "user", "who": "ada"}, 1_800_000_000.0)
    paused = fold(pausing, "paused", {"by": "user"}, 1_800_000_060.0)
    assert (pausing.reason, paused.reason) == ("", ""), "that of its last growth is gone"
    assert paused.pause == "paused by 'ada' at 2027-01-15 08:00 UTC"
    assert say(paused, []).sentence == "'digits' is paused by 'ada' at 2027-01-15 08:00 UTC; it holds its place and no slots."
    assert say(pausing, []).sentence == "'digits' is pausing: paused by 'ada' at 2027-01-15 08:00 UTC."
    queued = fold(record(state=JobState.QUEUED), "paused", {"by": "user"}, 1_800_000_000.0)
    assert queued.pause == "paused by its user at 2027-01-15 08:00 UTC"
    costly = fold(fold(grown, "pausing", {"by": "price"}, 1_800_000_000.0), "paused", {"by": "price"}, 1_800_000_001.0)
    assert (costly.pause, say(costly, []).constraint) == (
        "paused at 2027-01-15 08:00 UTC: it has cost what price_limit allows",
        "price",
    )
    assert fold(paused, "resumed", {}, 1_800_000_100.0).pause == ""


def test_other_tenants_jobs_are_counted_and_not_named() -> None:
    hidden = replace(OTHER, tenant="two")
    found = say(record(state=JobState.QUEUED), [hidden], tenant="default")
    assert "char" not in found.model_dump_json()
    assert "jobs of other tenants (4)" in found.sentence
    assert "char" in say(record(state=JobState.QUEUED), [hidden], tenant=None).sentence, "a control: an administrator sees it"


@pytest.mark.parametrize(
    ("one", "constraint"),
    [
        (record(wanted=4, workers=4), "maximum"),
        (record(wish=2, wanted=2, workers=2), "wish"),
        (record(wish=2, pinned=True, wanted=2, workers=2), "pinned"),
        (record(state=JobState.PAUSED), "paused"),
        (record(state=JobState.FAILED, error="boom"), "ended"),
        (record(state=JobState.STARTING, wanted=1), "starting"),
    ],
)
def test_every_state_has_its_sentence(one: JobRecord, constraint: str) -> None:
    found = say(one, [])
    assert found.constraint == constraint
    assert found.sentence.startswith("'digits' ")
    assert found.sentence.endswith(".")


def test_an_alarm_is_part_of_the_explanation() -> None:
    assert "policy has failed" in say(record(state=JobState.QUEUED), [], alarm="policy has failed").sentence


def test_a_job_that_sizes_itself_says_so() -> None:
    spec = SPEC.model_copy(update={"elastic": SPEC.elastic.model_validate({"min": 1, "max": 4, "autoscale": {"efficiency": 0.6}})})
    slow = RunProgress(speeds={"1": 100.0, "2": 110.0})
    assert say(record(spec=spec, wanted=1, workers=1), [], progress=slow).constraint == "autoscale"


def test_a_job_that_needs_nodes_of_a_type_is_explained_by_those_nodes_alone() -> None:
    mixed = [NodeInfo("node0", 4), NodeInfo("g0", 2, "a100")]
    waits = record(spec=named("digits", resources={"node_type": "a100"}, elastic={"min": 1, "max": 4}), state=JobState.QUEUED)
    told = say(waits, [OTHER], slots=6, nodes=mixed)
    assert told.sentence.startswith("'digits' waits for the next decision: 2 slots free, it needs 1"), "node0 does not count"
    large = replace(waits, spec=named("digits", resources={"node_type": "a100"}, elastic={"min": 4, "max": 4}))
    told = say(large, [], slots=6, nodes=mixed)
    assert told.sentence == "'digits' can never run here: it needs 4 slots on nodes of type 'a100', the cluster has 2."
    assert told.would_change[-1] == "nodes of type 'a100' with at least 4 slots in all"
    other = replace(waits, spec=named("digits", resources={"node_type": "h100"}))
    told = say(other, [], slots=6, nodes=mixed)
    assert "needs 1 slot on nodes of type 'h100', the cluster has none." in told.sentence
    assert told.constraint == "minimum"
    assert job_view(waits, RunProgress(), quota=None, now=1.0).node_kind == "a100", "and policies see it"
