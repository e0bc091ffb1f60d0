"""What is different about a worker that would compute other bits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(worker: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    """`threads is 2, the job's is 1`, for every setting that differs."""
    return [f"{key} is {worker.get(key)}, the job's is {job.get(key)}"
            for key in sorted({*worker, *job}) if worker.get(key) != job.get(key)]
