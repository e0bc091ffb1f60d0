"""A host that was suspended past its lease and wakes up: what it still holds of the old roster reaches nobody and nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from launching import gone

from stretto.core.journal import Checkpoint, Commit
from stretto.train.checkpoint.catalog import entries, verify
from stretto.train.checkpoint.storage import LocalStorage
from tests.hosts.cluster import Agent, Job, paced
from tests.hosts.loopback import Loopback, start
from tests.stores.store_servers import EtcdProcess

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: apt-get install etcd-server"),
]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    etcd = EtcdProcess(tmp_path)
    etcd.start()
    one = Loopback(tmp_path, f"etcd://{etcd.endpoint}").job(paced(epochs=120))
    yield one
    one.stop()
    etcd.stop()


def saving(one: Job, host: str) -> Agent:
    return start(
        one,
        host,
        "--slots",
        "1",
        "--lease",
        "3",
        "--checkpoint",
        str(one.folder / "saves"),
        "--checkpoint-every",
        "10",
        "--keep",
        "1000",
    )


def everything_of(agent: Agent) -> tuple[list[int], list[int]]:
    """The agent with its fork server, and the workers that come from it."""
    process = psutil.Process(agent.process.pid)
    near = [process.pid, *(child.pid for child in process.children())]
    return near, [child.pid for child in process.children(recursive=True) if child.pid not in near]


@pytest.mark.long
def test_a_host_that_wakes_up_after_its_lease_commits_nothing_saves_nothing_and_ends_its_workers(job: Job) -> None:
    first = saving(job, "h1")
    job.until_workers(1)
    second = saving(job, "h2")
    job.until_workers(2)
    job.until_more(10)
    roster = job.roster()
    assert roster is not None
    asked = first.folder.read(first.folder.request) or {}
    assert roster.members[0]["agent"] == asked["agent"], "the frozen host is not that of the chief, who saves"
    near, workers = everything_of(first)
    assert len(workers) == 1
    frozen = [*near, *workers]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    at = job.commits()[-1].step
    told = len(first.records())
    job.until_workers(1)
    job.until(lambda: [one for one in second.records() if isinstance(one, Checkpoint) and one.step > at + 10], why="another's save")
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    job.until(lambda: all(gone(pid) for pid in workers), why="the end of the worker that was frozen")
    assert job.finish(lost=[first] if first.process.poll() else []) == job.cluster.reference(job)
    assert job.audit().returncode == 0, job.audit().stdout
    stale = [one for one in first.records()[told:] if isinstance(one, Commit) and one.roster <= roster.number and one.step > at + 1]
    assert not stale, "its journal has steps of the old roster after it woke up"
    vault = LocalStorage(job.folder / "saves")
    for entry in entries(vault):
        assert entry.complete and entry.manifest is not None, entry
        verify(vault, entry.manifest)
        assert entry.step <= at + 1 or entry.manifest.roster > roster.number, f"{entry.path} is of the roster that was frozen"
