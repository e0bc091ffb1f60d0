"""The process that policies run in: a snapshot on standard input, one line of JSON on standard output, until the pipe
ends."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import resource
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import BinaryIO

from stretto.batching.goodput import GoodputModel
from stretto.core.errors import PolicyError
from stretto.scheduling import pipeline
from stretto.scheduling.pipeline import Decision
from stretto.scheduling.registry import load
from stretto.scheduling.types import Placement, SchedulableJob
from stretto.server.decisions.policy_runner import READY, PolicyInput, names
from stretto.server.decisions.snapshot import from_speeds
from stretto.server.jobs.run_progress import Pace

MOST_MEMORY = 8 << 30
FITTING_S = 0.5
"""The time for fits in one decision. Jobs that are not reached keep their last model, or have none yet."""


class Models:
    """Fits models from measured speeds for jobs that report none. Jobs with the same speeds share one fit, which is repeated when
    their speeds change."""

    def __init__(self) -> None:
        self._fitted: dict[Pace, GoodputModel | None] = {}
        self._latest: dict[str, Pace] = {}

    def add(self, snapshot: PolicyInput) -> list[SchedulableJob]:
        kind = snapshot.nodes[0].kind if snapshot.nodes else "default"
        until = time.monotonic() + FITTING_S
        jobs = [self._one(job, snapshot, kind, until) for job in snapshot.jobs]
        self._latest = {name: pace for name, pace in self._latest.items() if name in snapshot.paces}
        self._fitted = {pace: self._fitted[pace] for pace in set(self._latest.values())}
        return jobs

    def _one(self, job: SchedulableJob, snapshot: PolicyInput, kind: str, until: float) -> SchedulableJob:
        pace = snapshot.paces.get(job.name)
        if job.models or pace is None:
            return job
        if pace not in self._fitted and time.monotonic() < until:
            self._fitted[pace] = from_speeds(*pace)
        if pace in self._fitted:
            self._latest[job.name] = pace
        model = self._fitted.get(self._latest.get(job.name, pace))
        return replace(job, models={kind: model}) if model is not None else job


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    memory: dict[str, object] = {}
    models = Models()
    while head := source.read(8):
        (length,) = struct.unpack("<Q", head)
        snapshot: PolicyInput = pickle.loads(source.read(length))
        try:
            decision = decide(snapshot, models.add(snapshot), memory.get(snapshot.policy))
            answer = decision.answer
            memory = {snapshot.policy: answer.memory}
            places, shown = _document(answer.places), _document(decision.shown.places)
            text = json.dumps({"places": places, "shown": shown, "reasons": dict(answer.reasons)})
        except PolicyError as error:
            text = json.dumps({"refused": str(error)})
        except Exception as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        sink.write(text.encode() + b"\n")
        sink.flush()


def decide(snapshot: PolicyInput, jobs: list[SchedulableJob], memory: object) -> Decision:
    """The pipeline's decision on a snapshot."""
    current = snapshot.current(memory)
    return pipeline.decide(load(snapshot.policy), jobs, snapshot.nodes, current, snapshot.time_s, settings=snapshot.settings)


def _document(places: Mapping[str, Placement]) -> dict[str, list[list[str | int]]]:
    return {job: [[node, count] for node, count in placement] for job, placement in places.items() if placement}


def main() -> None:
    # What a policy prints must not end up in its answer.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # What policies import when they decide is imported before the first decision, so that it does not count as its time.
    importlib.import_module("scipy.optimize")
    names()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    try:
        sink.write(READY)
        sink.flush()
        serve(sys.stdin.buffer, sink)
    except BrokenPipeError:  # the server was killed
        os._exit(0)


if __name__ == "__main__":
    main()
