"""The process that policies run in: a snapshot on standard input, one line of JSON on standard output, until the pipe
ends."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
import sys
import time
from dataclasses import replace
from typing import BinaryIO

from stretto.batching.goodput import GoodputModel
from stretto.scheduling.guards import GuardLimits, guard
from stretto.scheduling.registry import load
from stretto.scheduling.types import Allocation, SchedulableJob
from stretto.server.decisions.policy_runner import READY, PolicyInput, current, names
from stretto.server.decisions.snapshot import from_speeds
from stretto.server.jobs.run_progress import Pace

MOST_MEMORY = 8 << 30
FITTING_S = 0.5
"""Fits of one decision; who comes later keeps the model of last time, or has none yet."""


class Models:
    """Models of jobs that report none of their own, from measured speeds: one fit for all that are alike, again when these have
    changed."""

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
            answer = decide(snapshot, models.add(snapshot), memory.get(snapshot.policy))
            memory = {snapshot.policy: answer.memory}
            places = {job: [list(one) for one in placement] for job, placement in answer.places.items() if placement}
            text = json.dumps({"places": places, "reasons": dict(answer.reasons)})
        except Exception as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        sink.write(text.encode() + b"\n")
        sink.flush()


def decide(snapshot: PolicyInput, jobs: list[SchedulableJob], memory: object) -> Allocation:
    """The policy's answer without the growths that a guard objects to."""
    now = current(snapshot, memory)
    answer = load(snapshot.policy)(jobs, snapshot.nodes, now, snapshot.time_s)
    return guard(jobs, snapshot.nodes, now, answer, snapshot.time_s, limits=GuardLimits(cooldown_s=snapshot.cooldown_s))


def main() -> None:
    # What a policy prints must not end up in its answer.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Imports are not part of a decision's time: they are done before the first one.
    import scipy.optimize  # noqa: F401

    names()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    try:
        sink.write(READY)
        sink.flush()
        serve(sys.stdin.buffer, sink)
    except BrokenPipeError:  # the server was killed: nobody asks any more
        os._exit(0)


if __name__ == "__main__":
    main()
