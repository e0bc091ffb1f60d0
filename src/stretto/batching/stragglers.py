"""Workers that are persistently slower than the others: fewer slices first, a replacement if that is not enough.

A worker's pace is the moving average of its time a slice over the median of all (EWMA 0.1, as in Or et al., MLSys
2020): 1 is usual, 3 is three times as slow. Moving slices does not change the bits, so it is cheap and comes first.
Pure: paces in, verdict out. Two thresholds keep a worker at the border from being moved back and forth.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stretto.core.errors import UsageError
from stretto.core.slices import weigh

Mode = Literal["rebalance", "replace", "ignore"]
MODES: tuple[Mode, ...] = ("rebalance", "replace", "ignore")


@dataclass(frozen=True, slots=True)
class StragglerConfig:
    """When a worker counts as slow, and when moving slices away from it or replacing it pays."""

    mode: Mode = "rebalance"
    weight: float = 0.1
    """Of the newest measurement."""
    slow: float = 1.25
    """A pace above this makes a straggler (0.8 of the median's speed)."""
    shortest_s: float = 0.005
    """Slices that take less than this count as taking this long: what differs then is the machine's jitter, not the workers."""
    steps: int = 10
    """Steps that a pace has to be measured over before it counts, and between two changes."""
    gain: float = 1.12
    """New shares are adopted if they make the step at least this many times shorter."""
    patience: int = 50
    """Steps that a straggler with new shares may still hold up the others before it is replaced."""
    held_up: float = 1.3
    """A straggler with the fewest slices possible that makes the step this many times longer than without it is
    replaced."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One worker's moving average."""

    value: float = 1.0
    steps: int = 0

    def after(self, ratio: float, *, weight: float) -> Pace:
        """With one more measurement. The first ones count as in a plain mean, so that the start is forgotten soon."""
        share = max(weight, 1.0 / (self.steps + 1))
        return Pace(self.value + share * (ratio - self.value), self.steps + 1)


@dataclass(frozen=True, slots=True)
class StragglerState:
    """What is known of a roster's workers. `changed` counts steps since the shares were changed last."""

    paces: Mapping[str, Pace] = field(default_factory=lambda: {})
    changed: int = 1 << 30
    moves: int = 0
    """Times that slices were moved: each doubles the wait for the next, so that noise cannot keep them moving."""
    slow_for: Mapping[str, int] = field(default_factory=lambda: {})
    """Steps that a worker has been a straggler in."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Change nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Deal the slices by these speeds (1 is the median's)."""

    speeds: Mapping[str, float]
    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Start another worker, and let this one go when it has joined."""

    worker: str
    reason: str


Verdict = Keep | Rebalance | Replace


def parse_mode(text: str) -> Mode:
    """The value of `--stragglers`. Raises `UsageError`."""
    if text not in MODES:
        raise UsageError(f"--stragglers {text!r} is not one of {', '.join(MODES)}")
    return text


def observe(config: StragglerConfig, state: StragglerState, slice_s: Mapping[str, float]) -> StragglerState:
    """After one step: the seconds a slice took on each worker of the roster. Those who left are forgotten."""
    usable = {worker: max(seconds, config.shortest_s) for worker, seconds in slice_s.items() if 0 < seconds < float("inf")}
    if not usable:
        return state
    median = statistics.median(usable.values())
    paces = {
        worker: state.paces.get(worker, Pace()).after(usable[worker] / median, weight=config.weight)
        if worker in usable
        else state.paces.get(worker, Pace())
        for worker in slice_s
    }
    slow_for = {
        worker: state.slow_for.get(worker, 0) + 1
        for worker, pace in paces.items()
        if pace.steps >= config.steps and pace.value > config.slow
    }
    return StragglerState(paces, min(state.changed + 1, 1 << 30), state.moves, slow_for)


def judge(config: StragglerConfig, state: StragglerState, shares: Sequence[tuple[str, int]]) -> Verdict:
    """What to do about a roster; `shares` are its workers, in order, with the slices that each computes."""
    if config.mode == "ignore":
        return Keep("stragglers are ignored")
    if len(shares) < 2:
        return Keep("one worker cannot be slower than the others")
    paces = {worker: state.paces.get(worker, Pace()) for worker, _ in shares}
    patience = config.steps * 2 ** min(state.moves, 7)
    if any(pace.steps < config.steps for pace in paces.values()) or state.changed < patience:
        return Keep("measuring")
    speeds = {worker: 1.0 / max(pace.value, 1e-3) for worker, pace in paces.items()}
    better = _rebalanced(config, shares, speeds)
    if better is not None:
        return better
    if config.mode == "replace":
        return _replaced(config, state, shares, speeds)
    return Keep("the slices are where they should be")


def step_time(counts: Sequence[int], speeds: Sequence[float]) -> float:
    """The slowest worker's time for its slices, in slices of the median worker."""
    return max(count / speed for count, speed in zip(counts, speeds, strict=True))


def _rebalanced(config: StragglerConfig, shares: Sequence[tuple[str, int]], speeds: Mapping[str, float]) -> Rebalance | None:
    counts = [count for _, count in shares]
    order = [speeds[worker] for worker, _ in shares]
    new = [len(span) for span in weigh(sum(counts), order)]
    now_t, new_t = step_time(counts, order), step_time(new, order)
    if new == counts or now_t < config.gain * new_t:
        return None
    moved = ", ".join(
        f"{worker} {old} to {count} slices (pace {1 / speeds[worker]:.2f})"
        for (worker, old), count in zip(shares, new, strict=True)
        if old != count
    )
    return Rebalance(dict(speeds), f"{moved}: the step gets {now_t / new_t:.2f} times shorter")


def _replaced(
    config: StragglerConfig, state: StragglerState, shares: Sequence[tuple[str, int]], speeds: Mapping[str, float]
) -> Verdict:
    slowest = max(speeds, key=lambda worker: (1.0 / speeds[worker], worker))
    pace = 1.0 / speeds[slowest]
    if pace <= config.slow or state.slow_for.get(slowest, 0) < config.patience:
        return Keep("no worker is slow enough for long enough to be replaced")
    order = [speeds[worker] for worker, _ in shares]
    usual = [1.0 if worker == slowest else speeds[worker] for worker, _ in shares]
    total = sum(count for _, count in shares)
    slowdown = step_time([count for _, count in shares], order) / step_time([len(s) for s in weigh(total, usual)], usual)
    if slowdown < config.held_up:
        return Keep(f"{slowest} is {pace:.2f} times as slow as the median, but with fewer slices it hardly holds up the others")
    return Replace(slowest, f"{slowest} is {pace:.2f} times as slow as the median and makes the step {slowdown:.2f} times longer")
