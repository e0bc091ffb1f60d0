"""The local cluster by itself: simulated agents, no server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from server_harness import SIMULATED

from stretto.clusters import local
from stretto.clusters.base import Assignment, EventKind, RunRef, Stop, Workload
from stretto.clusters.local import LocalCluster
from stretto.clusters.local_nodes import NodeSource

GUARD_S = 120.0


def assignment(job: str, *, workers: int = 1, stop: Stop | None = None) -> Assignment:
    work = Workload(script=("train.py", "--steps", "100000", "--step-s", "0.02"))
    return Assignment(job, 1, work, 1, 2, {"node0": workers}, run=job, stop=stop)


async def lines_of(cluster: LocalCluster, *jobs: str) -> None:
    """Until each of these has written something."""
    missing = set(jobs)
    async for portion in cluster.watch():
        missing -= {event.job for event in portion if event.kind is EventKind.LINES}
        if not missing:
            return


async def end(cluster: LocalCluster, *jobs: str) -> None:
    await cluster.apply([assignment(job, stop=Stop.NOW) for job in jobs])
    missing = set(jobs)
    async for portion in cluster.watch():
        missing -= {event.job for event in portion if event.kind is EventKind.GONE}
        if not missing:
            return


def test_an_agent_that_does_not_answer_holds_up_nobody_elses_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def play() -> None:
        cluster = LocalCluster(tmp_path, NodeSource(slots=4), launcher=SIMULATED)
        await cluster.apply([assignment("a"), assignment("b")])
        await asyncio.wait_for(lines_of(cluster, "a", "b"), GUARD_S)
        real = local.ask

        async def silent(folder: Path, verb: str, **more: object) -> None:
            asked.append(verb)
            await asyncio.Event().wait()

        monkeypatch.setattr(local, "ask", silent)
        await cluster.apply([assignment("a", workers=2), assignment("b")])
        for _ in range(3):
            await asyncio.wait_for(lines_of(cluster, "b"), GUARD_S)
        monkeypatch.setattr(local, "ask", real)
        for attempt in cluster.attempts.values():
            if attempt.steering is not None:
                attempt.steering.cancel()
        await asyncio.wait_for(end(cluster, "a", "b"), GUARD_S)
        await cluster.close()

    asyncio.run(play())
    assert asked == ["scale"], "one request at a time"


def test_runs_of_one_job_that_begin_from_nothing_have_checkpoint_folders_of_their_own(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, NodeSource(slots=4))
    first, second = (
        cluster._command(Assignment("j", life, Workload(script=("train.py",)), 1, 2, {"node0": 1}, run=run))
        for life, run in ((1, "j"), (2, "j-2"))
    )
    assert first[first.index("--checkpoint") + 1] != second[second.index("--checkpoint") + 1]
    assert not asyncio.run(cluster.resumable(RunRef("j", 1, "j")))
