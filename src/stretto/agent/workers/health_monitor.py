"""Goes round the workers' beats, ten times a second."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable

from stretto.agent.workers.liveness import FROZEN_S, ROUND_S, Liveness, LivenessLimits, judge, process_state
from stretto.agent.workers.worker_handle import WorkerHandle


async def patrol(
    workers: Callable[[], Iterable[WorkerHandle]], *, limits: LivenessLimits, condemn: Callable[[WorkerHandle, Liveness], None]
) -> None:
    """Until cancelled. An agent that was itself stopped begins to count anew when it wakes up."""
    awake = last = time.monotonic()
    while True:
        await asyncio.sleep(ROUND_S)
        now = time.monotonic()
        if now - last > FROZEN_S:
            awake = now
        last = now
        watched = [worker for worker in workers() if worker.pid and worker.serving]
        pulses = [worker.beat.read() for worker in watched]
        times = [pulse.typical_s for pulse in pulses if pulse.typical_s]
        typical = statistics.median(times) if times else 0.0
        for worker, pulse in zip(watched, pulses, strict=True):
            since = max(awake, worker.started)
            quiet = now - max(pulse.beaten, since) > limits.frozen_s
            verdict = judge(
                pulse, now=now, since=since, state=process_state(worker.pid) if quiet else "", typical_s=typical, limits=limits
            )
            if verdict is not None:
                condemn(worker, verdict)
