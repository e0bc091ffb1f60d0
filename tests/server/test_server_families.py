"""What finished jobs took, and how fast they were, is told to the policy for the next ones of their family."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.core.journal import Commit, Resume
from stretto.scheduling.types import ClusterNode
from stretto.server.app import Server, build
from stretto.server.decisions.policy_process import Models, decide
from stretto.server.jobs import journal_events
from stretto.server.jobs.families import MOST_FAMILIES, MOST_FINISHED, Families, family
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import JobRecord, NewEvent
from stretto.server.models import JobState
from stretto.server.settings import ServerSettings
from stretto.server.spec import JobSpec


def record(run: object = ("python", "train.py"), *, tenant: str = "mine", **more: object) -> JobRecord:
    spec = JobSpec.model_validate({"name": "digits", "run": list(run) if isinstance(run, tuple) else run, **more})
    return JobRecord("j-aaaaaaaaaaaa", tenant, spec, JobState.FINISHED, 100.0)


def known(samples: int) -> RunProgress:
    return RunProgress(samples=samples)


def test_a_family_is_a_script_of_a_tenant_in_a_folder() -> None:
    one = family(record())
    assert family(record(("python3", "-u", "train.py", "--epochs", "60"))) == one, "whatever its arguments"
    assert family(record(("stretto", "run", "train.py"))) == one
    assert family(record("python train.py --epochs 3")) == one, "a text that needs no shell is the same script"
    others = [record(tenant="theirs"), record(workdir="/data"), record(("python", "other.py")), record("python train.py | tee log")]
    assert one not in [family(other) for other in others]


def test_only_jobs_that_ended_well_count_and_only_the_latest() -> None:
    families = Families()
    for state in (JobState.FAILED, JobState.CANCELLED, JobState.RUNNING):
        families.ended(replace(record(), state=state), known(10))
    families.ended(record(), known(0))
    assert families.took(record()) == ()
    for count in range(1, MOST_FINISHED + 4):
        families.ended(record(), known(count))
    assert families.took(record()) == tuple(float(count) for count in range(4, MOST_FINISHED + 4))
    assert families.took(record(tenant="theirs")) == (), "nobody learns how long somebody else's jobs are"


def test_what_a_family_lasted_is_the_middle_of_what_it_trained() -> None:
    families = Families()
    assert families.lasted(record()) is None
    for seconds in (10.0, 30.0, 1000.0):
        families.ended(replace(record(), started_at=200.0, ended_at=200.0 + seconds), known(1))
    assert families.lasted(record()) == 30.0
    assert families.lasted(record(tenant="theirs")) is None


def test_families_are_bounded() -> None:
    families = Families()
    for place in range(MOST_FAMILIES + 1):
        families.ended(record(("python", f"{place}.py")), known(1))
    assert families.took(record(("python", "0.py"))) == ()
    assert families.took(record(("python", "1.py"))) == (1.0,)


def commit(step: int) -> Commit:
    return Commit(step=step, epoch=0, loader=0, first=8 * step, count=8, batch=8, roster=1, workers=1, step_s=0.5, t=1.0 + step)


def test_steps_that_a_resume_repeats_are_counted_once() -> None:
    seen, one = RunProgress(), replace(record(), state=JobState.RUNNING)
    seen.renew(life=1, run="r")
    journal_events.read(one, seen, [commit(step) for step in range(10)])
    assert seen.samples == 80
    seen.renew(life=2, run="r")
    journal_events.read(one, seen, [Resume.after(6, life=2, path="")])
    assert seen.samples == 48
    journal_events.read(one, seen, [commit(step) for step in range(6, 10)])
    assert seen.samples == 80
    seen.renew(life=3, run="r-3")
    assert seen.samples == 0, "a run that begins from nothing has done nothing"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def open_server(home: Path) -> Server:
    return build(ServerSettings(home=home, port=0, slots=2))


def close_server(server: Server) -> None:
    server.lock.release()
    server.storage.engine.dispose()


async def live(server: Server, job: str, *, steps: int, end: str | None) -> None:
    spec = {"name": job[2:], "run": ["python", "train.py", "--run", job], "elastic": {"min": 1, "max": 2}}
    drafts = [
        NewEvent("submitted", "", {"id": job, "tenant": "default", "spec": spec}),
        NewEvent("allocated", "", {"nodes": {"node0": 1}, "run": job}),
        NewEvent("ready", "", {"workers": 1, "step": 0}),
    ]
    await server.book.append(job, drafts)
    journal_events.read(server.book.records[job], server.book.progress[job], [commit(step) for step in range(steps)])
    if end is not None:
        await server.book.append(job, [NewEvent(end, "", {"steps": steps, "error": "no"})])


def told(server: Server) -> tuple[float | None, tuple[float, ...]]:
    (job,) = server.decider._snapshot().jobs
    return job.done, job.finished


def test_a_policy_is_told_what_finished_jobs_took_before_and_after_a_restart(home: Path) -> None:
    server = open_server(home)

    async def lives() -> None:
        await live(server, "j-bbbbbbbbbbbb", steps=5, end="finished")
        await live(server, "j-cccccccccccc", steps=9, end="failed")
        await live(server, "j-aaaaaaaaaaaa", steps=7, end="finished")
        await live(server, "j-dddddddddddd", steps=2, end=None)

    asyncio.run(lives())
    assert told(server) == (16.0, (40.0, 56.0)), "in the order in which they ended"
    asyncio.run(server.book.flush(list(server.book.records)))
    close_server(server)
    again = open_server(home)
    assert told(again) == (16.0, (40.0, 56.0))
    close_server(again)


def waiting(job: str, *, steps: int, script: str = "train.py") -> NewEvent:
    spec = {"name": job[2:], "run": ["python", script], "elastic": {"min": 1, "max": 2}, "steps": steps}
    return NewEvent("submitted", "", {"id": job, "tenant": "default", "spec": spec})


def test_of_those_who_wait_the_one_with_fewer_steps_goes_first_where_its_family_is_known(home: Path) -> None:
    server = open_server(home)
    long, short, other = "j-eeeeeeeeeeee", "j-ffffffffffff", "j-gggggggggggg"

    async def lives() -> None:
        await live(server, "j-bbbbbbbbbbbb", steps=5, end="finished")
        await server.book.append(long, [waiting(long, steps=1000)])
        await server.book.append(short, [waiting(short, steps=10)])
        await server.book.append(other, [waiting(other, steps=10, script="other.py")])

    asyncio.run(lives())
    snapshot = server.decider._snapshot()
    assert [(job.name, job.remaining) for job in snapshot.jobs] == [(long, 8000.0), (short, 80.0), (other, None)]
    assert snapshot.paces.keys() == {long, short}, "nothing is presumed of a family that nobody has seen"
    both = replace(snapshot, policy="goodput", jobs=snapshot.jobs[:2], nodes=[ClusterNode("node0", 1)], places={})
    assert decide(both, Models().add(both), None).answer.places == {short: (("node0", 1),)}
    unknown = replace(both, jobs=[replace(job, remaining=None, done=None, finished=()) for job in both.jobs], paces={})
    assert decide(unknown, Models().add(unknown), None).answer.places == {long: (("node0", 1),)}, "a control: else as they came"
    close_server(server)


def test_no_policy_sees_a_job_that_can_never_run(home: Path) -> None:
    """It would be waited for (FIFO's patience), and others would be set back to the queue for it."""
    server = open_server(home)
    large, small = "j-eeeeeeeeeeee", "j-ffffffffffff"
    slots = sum(node.slots for node in server.cluster.nodes())
    spec = {"name": "large", "run": ["python", "train.py"], "elastic": {"min": slots + 1, "max": slots + 1}}

    async def lives() -> None:
        await server.book.append(large, [NewEvent("submitted", "", {"id": large, "tenant": "default", "spec": spec})])
        await server.book.append(small, [waiting(small, steps=10)])

    asyncio.run(lives())
    server.decider.impossible = server.decider._impossible()
    assert server.decider.impossible == {large: f"can never run here: it needs {slots + 1} slots, the cluster has {slots}"}
    assert [job.name for job in server.decider._snapshot().jobs] == [small]
    close_server(server)
