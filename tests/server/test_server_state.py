"""A job's state from its events, and what is known of it from its journal. Pure."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from record_builder import SPEC, record

from stretto.clusters.base import ClusterEvent, EventKind
from stretto.core.journal import Commit, End, JournalEvent, JournalReport, Resume, parse
from stretto.core.journal import Record as JournalRecord
from stretto.server.decisions.snapshot import limits
from stretto.server.jobs import journal_events
from stretto.server.jobs.command import NEVER_JOINED, note, refusal, work_of
from stretto.server.jobs.exit_classification import ending
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import FOLDS, Conflict, JobRecord, fold
from stretto.server.models import JobState, Progress

# -- state ---------------------------------------------------------------------------------------------------------------

DATA = {
    "id": "j-aaaaaaaaaaaa",
    "tenant": "default",
    "spec": SPEC.model_dump(mode="json"),
    "nodes": {"n0": 2},
    "workers": 2,
    "pin": False,
    "by": "policy",
    "run": "r",
    "error": "e",
}


@given(st.lists(st.sampled_from(sorted(FOLDS)), max_size=30))
def test_no_order_of_events_brings_a_job_into_a_contradiction(kinds: list[str]) -> None:
    found = fold(None, "submitted", DATA, 0.0)
    for t, kind in enumerate(kinds):
        before = found
        try:
            found = fold(found, kind, DATA, float(t))
        except Conflict:
            continue
        assert found.version == before.version + 1
        assert found.life - before.life in (0, 1)
        if before.state.ended:
            assert found.state is before.state, "what has ended stays ended"
        if found.state.ended or found.state in (JobState.PAUSED, JobState.QUEUED):
            assert (found.wanted, found.nodes) == (0, {}), "who does not run holds nothing"
        assert sum(found.nodes.values()) == found.wanted
        assert JobRecord.read(json.loads(json.dumps(found.document()))) == found


@pytest.mark.parametrize(
    ("state", "end", "code", "kind"),
    [
        (JobState.RUNNING, {"state": "finished", "steps": 5}, 0, "finished"),
        (JobState.RUNNING, {"state": "failed", "error": "x"}, 1, "failed"),
        (JobState.RUNNING, {"state": "stopped"}, 0, "cancelled"),
        (JobState.RUNNING, None, None, "restarting"),
        (JobState.RUNNING, None, -9, "restarting"),
        (JobState.STARTING, None, 2, "failed"),
        (JobState.STARTING, None, 0, "failed"),
        (JobState.PAUSING, {"state": "stopped"}, 0, "paused"),
        (JobState.PAUSING, {"state": "finished", "steps": 5}, 0, "finished"),
        (JobState.CANCELLING, {"state": "stopped"}, 0, "cancelled"),
        (JobState.CANCELLING, None, -9, "cancelled"),
        (JobState.CANCELLING, {"state": "finished", "steps": 5}, 0, "finished"),
    ],
)
def test_an_end_is_classified_by_what_the_run_said_then_by_its_exit(
    state: JobState, end: object, code: int | None, kind: str
) -> None:
    known = RunProgress(end=end)  # type: ignore[arg-type]
    assert ending(record(state=state), known, ClusterEvent(EventKind.GONE, code=code), resumable=False).kind == kind


def test_a_job_is_not_started_again_for_ever() -> None:
    spent = record(restarts=3)
    draft = ending(spent, RunProgress(), ClusterEvent(EventKind.GONE, code=-9), resumable=False)
    assert draft.kind == "failed"
    assert "restarts=3" in draft.text


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (["python", "train.py", "--lr", "1"], "script"),
        (["python3.11", "-u", "train.py"], "script"),
        (["train.py"], "script"),
        (["stretto", "run", "train.py"], "script"),
        (["python", "-m", "thing"], "command"),
        (["./go.sh"], "command"),
        ("echo $HOME", "shell"),
        ("python train.py --lr 1", "script"),
        ("python3 -u train.py", "script"),
        ("train.py", "script"),
        ("stretto run train.py", "script"),
        ("python 'my train.py'", "script"),
        ("python train.py | tee log", "shell"),
        ("cd code\npython train.py", "shell"),
        ("A=1 python train.py", "shell"),
        ("python 'train.py", "shell"),
        (["bash", "go.sh"], "command"),
        (["python", "-c", "1"], "command"),
        ("python -m thing", "shell"),
    ],
)
def test_what_a_run_line_means(run: object, kind: str) -> None:
    work = work_of(SPEC.model_copy(update={"run": run}))
    assert [name for name in ("script", "command", "shell") if getattr(work, name)] == [kind]
    plain = work_of(SPEC.model_copy(update={"run": run, "plain": True}))
    assert not plain.elastic, "`plain: true` runs everything as it is"


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (["python", "-m", "pkg.job"], "stretto runs script files, not modules: write [python, pkg/job.py]"),
        ("python3 -u -m job --lr 1", "stretto runs script files, not modules: write [python, job.py]"),
        (["torchrun", "--nproc-per-node", "2", "job.py"], "[stretto, run, --restart-mode, torchrun, train.py]"),
        ("accelerate launch job.py", "stretto takes the place of accelerate"),
    ],
)
def test_training_that_would_silently_run_on_one_worker_is_refused(run: object, words: str) -> None:
    spec = SPEC.model_copy(update={"run": run})
    assert words in str(refusal(spec))
    assert "`plain: true`" in str(refusal(spec))
    assert refusal(spec.model_copy(update={"plain": True})) is None


@pytest.mark.parametrize("run", [["python", "train.py"], "train.py", ["bash", "go.sh"], "torchrun x.py | tee log", "make data"])
def test_everything_else_is_taken(run: object) -> None:
    assert refusal(SPEC.model_copy(update={"run": run})) is None


def test_a_plain_process_has_one_size_and_says_so() -> None:
    scripts = [["python", "train.py"], "cd x && stretto run train.py"]
    for run in scripts:
        spec = SPEC.model_copy(update={"run": run})
        assert limits(record(spec=spec), RunProgress()) == (1, 4, "")
        assert note(spec, state=JobState.RUNNING, steps=0) == ""
    spec = SPEC.model_copy(update={"run": ["bash", "go.sh"]})
    assert limits(record(spec=spec), RunProgress()) == (1, 1, "plain")
    told = note(spec, state=JobState.RUNNING, steps=0)
    assert told.startswith("`bash go.sh` is not a stretto script: one plain process, never scaled")
    assert note(spec, state=JobState.FAILED, steps=0) == "", "its error says more"
    text = spec.model_copy(update={"run": "cd code && python -u train.py > log"})
    told = note(text, state=JobState.QUEUED, steps=0)
    assert "; write `stretto run train.py` in it for `python -u train.py`, or `plain: true`" in told
    assert note(spec, state=JobState.FINISHED, steps=0) == NEVER_JOINED
    assert ending(record(spec=spec), RunProgress(), ClusterEvent(EventKind.GONE, code=0), resumable=False).text == (
        f"finished; {NEVER_JOINED}"
    )
    inside = SPEC.model_copy(update={"run": "cd x && stretto run train.py"})
    assert note(inside, state=JobState.FINISHED, steps=0), "it was about to, and never did"
    assert note(inside, state=JobState.FINISHED, steps=7) == ""
    meant = spec.model_copy(update={"plain": True})
    assert note(meant, state=JobState.FINISHED, steps=0) == note(meant, state=JobState.RUNNING, steps=0) == ""


# -- journals ------------------------------------------------------------------------------------------------------------

NASTY = [
    None,
    True,
    float("nan"),
    float("inf"),
    -1,
    10**400,
    2**63,
    -0.0,
    1.5,
    3,
    "",
    "x" * 10,
    [],
    [1, 2],
    {},
    {"loss": 1.0},
    {"loss": float("nan"), "a": None, "model": 5},
    {"model": {"throughput": []}},
    {"goodput": float("nan"), "model": {"throughput": {"a": float("inf")}}},
    "job",
]
NAMES = [
    "t",
    "step",
    "workers",
    "metrics",
    "step_s",
    "batch",
    "first",
    "count",
    "epoch",
    "what",
    "text",
    "state",
    "pause_ms",
    "worker",
    "of",
]
SOUND: list[dict[str, Any]] = [
    {"kind": "switch", "number": 1, "step": 0, "workers": 2, "joined": [], "left": [], "cause": "join", "pause_ms": 1.0},
    {"kind": "commit", "step": 0, "epoch": 0, "loader": 0, "first": 0, "count": 4, "batch": 4, "roster": 1, "workers": 1},
    {"kind": "report", "step": 0, "metrics": {}},
    {"kind": "resume", "step": 0},
    {"kind": "end", "state": "failed"},
    {"kind": "event", "what": "died"},
    {"kind": "other"},
]
lines = st.builds(
    lambda sound, nasty: {**sound, **nasty},
    st.sampled_from(SOUND),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NASTY), max_size=3),
)


def read(documents: list[dict[str, Any]]) -> list[JournalRecord]:
    """As a journal has them."""
    return parse("".join(json.dumps(document) + "\n" for document in documents).encode())


@given(st.lists(lines, max_size=10))
@example([{**SOUND[2], "of": "job", "metrics": {"goodput": float("nan"), "model": [float("inf"), [[[[[1]]]]]]}}])
@example([{**SOUND[1], "step": 10**400, "workers": -1, "step_s": float("nan"), "metrics": {"loss": float("inf")}}])
def test_whatever_a_job_writes_into_its_journal_harms_nobody(found: list[dict[str, Any]]) -> None:
    known = RunProgress()
    reading = journal_events.read(record(state=JobState.STARTING), known, read(found))
    json.dumps(known.document(), allow_nan=False)
    assert RunProgress.read(json.loads(json.dumps(known.document()))) == known, "the server reads it again as it was"
    for point in reading.points:
        assert json.loads(json.dumps(point.values, allow_nan=False)) == point.values
    Progress.model_validate(known.summary(steps=None)).model_dump_json()


def commit(step: int, *, first: int, t: float = 1.0, epoch: int = 0, loader: int = 0, left: int | None = None) -> Commit:
    return Commit(
        step=step,
        epoch=epoch,
        loader=loader,
        first=first,
        count=10,
        batch=10,
        roster=1,
        workers=1,
        metrics={"loss": 1.0},
        step_s=0.5,
        left=left,
        t=t,
    )


def test_samples_that_no_step_had_are_counted() -> None:
    known = RunProgress()
    journal_events.read(record(), known, [commit(0, first=0), commit(1, first=10), commit(2, first=0, epoch=1)])
    assert known.lost == 0
    journal_events.read(record(), known, [commit(3, first=20, epoch=1)])
    assert known.lost == 10


def test_a_resume_is_no_loss() -> None:
    known = RunProgress()
    journal_events.read(record(), known, [commit(0, first=0), Resume.after(5, life=2, path=""), commit(5, first=50)])
    assert known.lost == 0


def test_of_many_steps_in_one_look_the_first_and_the_last_are_points() -> None:
    reading = journal_events.read(record(), RunProgress(), [commit(step, first=10 * step) for step in range(1000)])
    assert len(reading.points) <= 8
    assert (reading.points[0].step, reading.points[-1].step) == (0, 999)


def test_the_look_after_a_long_absence_brings_the_curve_of_that_time() -> None:
    away = [commit(step, first=10 * step, t=0.1 * step) for step in range(400)]
    steps = [point.step for point in journal_events.read(record(), RunProgress(), away).points]
    assert len(steps) == 400, "forty seconds at ten steps a second: all of them"
    busy = [commit(step, first=10 * step, t=0.001 * step) for step in range(5000)]
    steps = [point.step for point in journal_events.read(record(), RunProgress(), busy).points]
    assert 100 < len(steps) <= 512, "five seconds at a thousand steps a second: enough for a curve, and bounded"
    assert max(b - a for a, b in pairwise(steps)) <= 50, "without a gap"
    jump = [commit(step, first=10 * step, t=1e9 * step) for step in range(5000)]
    assert len(journal_events.read(record(), RunProgress(), jump).points) <= 512, "a clock that jumps changes no bound"


def test_a_report_after_a_commit_hides_nothing_of_the_commit() -> None:
    known = RunProgress()
    assert journal_events.read(record(), known, [commit(7, first=70)]).points[0].values["loss"] == 1.0
    own = JournalReport(step=7, metrics={"goodput": 5.0}, of="job", t=2.0)
    (point,) = journal_events.read(record(), known, [own]).points
    assert (point.step, point.values["loss"], point.values["goodput"]) == (7, 1.0, 5.0), "of a later look, the same step"
    (point,) = journal_events.read(record(), known, [commit(8, first=80)]).points
    assert "goodput" not in point.values, "a control: the next step begins anew"
    journal_events.read(record(), known, [Resume.after(3, life=2, path="")])
    (point,) = journal_events.read(record(), known, [own]).points
    assert point.values == {"goodput": 5.0}, "nothing of a step that was taken back"


def test_two_loaders_in_turn_lose_nothing() -> None:
    known = RunProgress()
    turns_ = [commit(step, first=10 * (step // 2), loader=step % 2) for step in range(10)]
    journal_events.read(record(), known, turns_)
    assert known.lost == 0
    journal_events.read(record(), known, [commit(10, first=70, loader=0)])
    assert known.lost == 20, "a control"


def test_what_a_job_counts_as_left_gives_its_progress() -> None:
    known = RunProgress()
    journal_events.read(record(), known, [commit(9, first=90, left=300)])
    found = Progress.model_validate(known.summary(steps=None))
    assert (found.step, found.steps, found.fraction, found.remaining_s) == (10, 40, 0.25, 15.0)


def test_a_jobs_own_document_and_its_scripts_numbers_are_kept_apart() -> None:
    known = RunProgress()
    own = JournalReport(step=0, metrics={"goodput": 5.0, "schema": 1, "model": {"throughput": {"a": 1.0}}}, of="job", t=1.0)
    script = JournalReport(step=0, metrics={"goodput": 99.0, "accuracy": 0.5}, t=1.0)
    reading = journal_events.read(record(), known, [own, script])
    assert known.summary(steps=None)["goodput"] == 5.0
    assert reading.model
    assert reading.points[0].values == {"goodput": 99.0, "accuracy": 0.5}
    assert not journal_events.read(record(), known, [own]).model, "the same model once more is no news"


def test_a_job_that_was_stalled_when_it_ended_is_not_stalled_any_more() -> None:
    known = RunProgress()
    journal_events.read(record(), known, [JournalEvent("stalled", "no progress for 31 s", t=1.0)])
    assert known.stalled == "no progress for 31 s"
    journal_events.read(record(), known, [End("stopped", t=2.0)])
    assert not known.stalled, "it may be paused: the next life is not the one that waited"
