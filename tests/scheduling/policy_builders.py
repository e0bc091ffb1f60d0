"""Jobs, nodes and models for the tests of policies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stretto.batching.goodput import BatchRange, GoodputModel
from stretto.batching.throughput import ThroughputModel
from stretto.scheduling.types import ClusterNode, SchedulableJob

ROOT = Path(__file__).resolve().parents[2]
MODEL = ThroughputModel(0.02, 0.001, 0.08, 0.002, 0.02, 0.001, 1.5)
BATCH = BatchRange(128, 4096, 16, 512)


def model(*, scale: float = 1.0, noise: float = 20.0, sync: float = 1.0) -> GoodputModel:
    """A plausible model; more `noise` makes large batches worth more, more `sync` makes spreading cost more."""
    speeds = ThroughputModel(0.02 * scale, 0.001 * scale, 0.08 * sync, 0.002 * sync, 0.02 * sync, 0.001 * sync, 1.5)
    return GoodputModel(speeds, 1.0, noise, BATCH)


def job(name: str, **fields: Any) -> SchedulableJob:
    fields.setdefault("arrival_s", 0.0)
    fields.setdefault("most", 16)
    fields.setdefault("profiled", 8)
    fields.setdefault("models", {"default": model()})
    return SchedulableJob(name, **fields)


def nodes(count: int, slots: int = 4, **fields: Any) -> list[ClusterNode]:
    return [ClusterNode(f"n{number:02d}", slots, **fields) for number in range(count)]


def traces() -> Path:
    """The published traces, or a skip that says how to get them."""
    for folder in (os.environ.get("STRETTO_TRACES"), ROOT.parent / "shared" / "traces"):
        if folder and (Path(folder) / "pollux" / "profiles").is_dir():
            return Path(folder) / "pollux"
    pytest.skip("the published traces are not here: set STRETTO_TRACES to the folder that has pollux/ in it")


def workload(load: str, number: int) -> Path:
    return traces() / ("workloads" if load == "1.0" else f"workloads-{load}") / f"workload-{number}.csv"
