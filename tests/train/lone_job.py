"""A job of a script that runs alone, without `stretto.join`: the test's process has no job afterwards."""

from __future__ import annotations

from stretto.train.entry.agent_channel import NullHeartbeat
from stretto.train.job import Job
from stretto.train.membership import Membership
from stretto.train.session import TrainingSession, WorkerProcess


def lone_job(seed: int = 3) -> Job:
    """A job that nobody else takes part in."""
    process = WorkerProcess("alone", {}, None, NullHeartbeat(), Membership("alone", channel=None))
    return Job(TrainingSession(process, seed=seed, changed=[]))
