"""Is this worker alive? A pure judgement of its beat.

The limits belong together:

    BEAT_S (0.1) + ROUND_S (0.1) < FROZEN_S (0.6) < FROZEN_S + ROUND_S < 1 s: a frozen worker is seen within a second
    FROZEN_S < SLICE_S (10) < LOST_S (15) < FIRST_SLICE_S (120)

A beat that is late by 0.6 s means little on a busy machine, so the kernel is asked as well: only a *stopped* process
is frozen. One that is merely silent has 15 s, because a thread that beats can be starved by code that keeps the
interpreter's lock. The first slice of a process has longer than others: compilers and allocators warm up there.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.core.heartbeat import Activity, HeartbeatSample

ROUND_S = 0.1
"""How often the agent looks."""
FROZEN_S = 0.6
LOST_S = 15.0
SLICE_S = 10.0
SLICE_FACTOR = 20.0
FIRST_SLICE_S = 120.0


@dataclass(frozen=True, slots=True)
class LivenessLimits:
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
    took = now - max(pulse.since, since)
    if pulse.activity is Activity.SLICE:
        return _slice(pulse, took, typical_s=max(typical_s, pulse.typical_s), limits=limits)
    if pulse.activity in (Activity.OUTSIDE, Activity.STEPPING) and limits.outside_s and took > limits.outside_s:
        return Liveness(
            "hung", f"{took:.1f} s after step {pulse.step} without reaching the next one (--hang-timeout is {limits.outside_s:g} s)"
        )
    return None


def _slice(pulse: HeartbeatSample, took: float, *, typical_s: float, limits: LivenessLimits) -> Liveness | None:
    least = limits.slice_s if pulse.slices else max(limits.slice_s, limits.first_slice_s)
    bound = max(least, SLICE_FACTOR * typical_s)
    if took <= bound:
        return None
    return Liveness(
        "hung",
        f"{took:.1f} s in slice {pulse.slice} of step {pulse.step}, pass {pulse.pass_} "
        f"(the limit is {bound:.1f} s: slices take {typical_s:.3f} s)",
    )


def process_state(pid: int) -> str:
    """The kernel's letter for a process (`R`, `S`, `D`, `T`, `Z`…), or nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
