"""The process that policies run in: a snapshot on standard input, one line of JSON on standard output, until the pipe
ends."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
import sys
from dataclasses import replace
from functools import lru_cache
from typing import BinaryIO

from stretto.batching.goodput import GoodputModel
from stretto.scheduling.words import Job
from stretto.server.policies import Snapshot, current, load
from stretto.server.snapshot import from_speeds

MOST_MEMORY = 8 << 30


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    memory: dict[str, object] = {}
    while head := source.read(8):
        (length,) = struct.unpack("<Q", head)
        snapshot: Snapshot = pickle.loads(source.read(length))
        try:
            policy = load(snapshot.policy)
            answer = policy(modelled(snapshot), snapshot.nodes, current(snapshot, memory.get(snapshot.policy)), snapshot.time_s)
            memory = {snapshot.policy: answer.memory}
            places = {job: [list(one) for one in placement] for job, placement in answer.places.items() if placement}
            text = json.dumps({"places": places, "reasons": dict(answer.reasons)})
        except Exception as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        sink.write(text.encode() + b"\n")
        sink.flush()


def modelled(snapshot: Snapshot) -> list[Job]:
    """The jobs; those without a model of their own get one from their measured speeds."""
    kind = snapshot.nodes[0].kind if snapshot.nodes else "default"
    jobs: list[Job] = []
    for job in snapshot.jobs:
        if not job.models and job.name in snapshot.measured:
            batch, speeds = snapshot.measured[job.name]
            model = _fitted(batch, speeds, job.most)
            jobs.append(replace(job, models={kind: model}) if model is not None else job)
        else:
            jobs.append(job)
    return jobs


@lru_cache(maxsize=4096)
def _fitted(batch: int, speeds: tuple[tuple[int, float], ...], most: int) -> GoodputModel | None:
    return from_speeds(batch, speeds, most=most)


def main() -> None:
    # What a policy prints must not end up in its answer.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.nice(5)
    serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
