"""Whether workers are alive, judged by their heartbeats.

The limits belong together:

    BEAT_S (0.1) + ROUND_S (0.1) < FROZEN_S (0.6) < FROZEN_S + ROUND_S < 1 s: a frozen worker is noticed within a second
    FROZEN_S < SLICE_S (10) < LOST_S (15) < FIRST_SLICE_S (120)

A heartbeat that is 0.6 s late means little on a busy machine, so the agent asks the kernel as well: only a *stopped* process is
frozen. One that is merely silent has 15 s, because code that holds the interpreter's lock can starve the heartbeat thread. The
first slice of a process has longer than others: compilers and allocators warm up there.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.core.heartbeat import Activity, HeartbeatSample

if TYPE_CHECKING:
    from stretto.agent.workers.worker_handle import WorkerHandle

ROUND_S = 0.1
"""How often the agent checks."""
FROZEN_S = 0.6
LOST_S = 15.0
SLICE_S = 10.0
SLICE_FACTOR = 20.0
FIRST_SLICE_S = 120.0


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long a worker may be silent or busy."""

    frozen_s: float = FROZEN_S
    lost_s: float = LOST_S
    slice_s: float = SLICE_S
    """The least time that a slice may take; more where slices are measured to take long."""
    first_slice_s: float = FIRST_SLICE_S
    outside_s: float | None = None
    """`--hang-timeout`: how long the user's code may take between steps; None for ever."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """Why a worker counts as dead."""

    what: str
    """`frozen`, `silent` or `hung`."""
    text: str


def judge(
    pulse: HeartbeatSample, *, now: float, since: float, state: str, typical_s: float, limits: LivenessLimits
) -> Liveness | None:
    """`since` is the earliest time that counts (the start of the process, or when the agent itself woke up late)."""
    age = now - max(pulse.beaten, since)
    if age > limits.frozen_s and state == "T":
        return Liveness("frozen", f"stopped, and no heartbeat for {age:.1f} s (the limit is {limits.frozen_s} s)")
    if pulse.beaten and age > limits.lost_s:
        return Liveness("silent", f"no heartbeat for {age:.1f} s (the limit is {limits.lost_s} s)")
    seconds = now - max(pulse.since, since)
    if pulse.activity is Activity.SLICE:
        return _slice(pulse, seconds, typical_s=max(typical_s, pulse.typical_s), limits=limits)
    if pulse.activity in (Activity.OUTSIDE, Activity.STEPPING) and limits.outside_s and seconds > limits.outside_s:
        return Liveness(
            "hung",
            f"{seconds:.1f} s after step {pulse.step} without reaching the next one (--hang-timeout is {limits.outside_s:g} s)",
        )
    return None


def _slice(pulse: HeartbeatSample, seconds: float, *, typical_s: float, limits: LivenessLimits) -> Liveness | None:
    least = limits.slice_s if pulse.slices else max(limits.slice_s, limits.first_slice_s)
    bound = max(least, SLICE_FACTOR * typical_s)
    if seconds <= bound:
        return None
    return Liveness(
        "hung",
        f"{seconds:.1f} s in slice {pulse.slice} of step {pulse.step}, pass {pulse.pass_} "
        f"(the limit is {bound:.1f} s: slices take {typical_s:.3f} s)",
    )


def process_state(pid: int) -> str:
    """The kernel's letter for a process (`R`, `S`, `D`, `T`, `Z`…), or nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


async def watch_heartbeats(
    workers: Callable[[], Iterable[WorkerHandle]], *, limits: LivenessLimits, mark_dead: Callable[[WorkerHandle, Liveness], None]
) -> None:
    """Checks all heartbeats ten times a second, until cancelled. An agent that was itself stopped starts to count afresh when it
    wakes up."""
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
                mark_dead(worker, verdict)
