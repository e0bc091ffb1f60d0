"""A job's record without a server."""

from __future__ import annotations

from dataclasses import replace

from stretto.server.jobs.state import JobRecord
from stretto.server.models import JobState
from stretto.server.spec import JobSpec

SPEC = JobSpec.model_validate({"name": "digits", "run": ["python", "train.py"], "elastic": {"min": 1, "max": 4}})


def record(**more: object) -> JobRecord:
    return replace(JobRecord("j-aaaaaaaaaaaa", "default", SPEC, JobState.RUNNING, 100.0, life=1, run="r"), **more)  # type: ignore[arg-type]
