"""Which global batch the next step has: policies as values, and one pure function that applies them.

The sequence of decisions is the job's *batch plan*. It is a part of what determines the bits (the roster is not), so
every decision is written to the journal and can be replayed on any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stretto.core.errors import ScriptError
from stretto.core.text import quantity

GAIN = 1.05
"""A batch is changed only for a predicted goodput this many times the present one."""
SETTLE_STEPS = 20
"""Steps between two adaptive changes: fewer would measure the transition and not the batch."""
GROWTH = 2
"""An adaptive batch grows at most this many times past what has been measured: the models are trusted near the data
only."""
LADDER = 2 ** (1 / 4)
"""Ratio between neighbouring candidates."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same batch whatever happens: the default."""

    batch: int

    @property
    def reference(self) -> int:
        return self.batch


@dataclass(frozen=True, slots=True)
class PerWorker:
    """A constant batch a worker, so the global one grows and shrinks with the workers, up to `at_most`."""

    per_worker: int
    at_most: int | None = field(default=None, kw_only=True)

    @property
    def reference(self) -> int:
        """The batch that the optimizer's learning rate was chosen for: one worker's."""
        return self.per_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """The batch with the highest measured goodput between `start` and `at_most`."""

    start: int
    at_most: int

    @property
    def reference(self) -> int:
        return self.start


Policy = Fixed | PerWorker | Adaptive


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision may depend on, besides the policy."""

    workers: int
    slices: int
    samples: int
    """In an epoch."""
    batch: int | None = None
    """In effect; None before the first step."""
    since: int = 0
    """Steps done with the batch in effect."""
    largest: int = 0
    """The largest batch that was measured so far."""
    room: int | None = None
    """Samples that one forward and backward may have at most: lowered by out-of-memory errors."""
    noise_scale: float | None = None
    seconds: Callable[[int, int], float] | None = None
    """The fitted model: (batch, parts) to seconds a step."""


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """A line of the batch plan. `parts` is the number of pieces that each slice is accumulated from."""

    batch: int
    parts: int
    reason: str


def policy_of(batch_size: int | Policy) -> Policy:
    """What the user wrote as `batch_size=`, as a policy."""
    if isinstance(batch_size, Fixed | PerWorker | Adaptive):
        return batch_size
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScriptError(
            f"batch_size={batch_size!r} is a {type(batch_size).__name__}: "
            "give a whole number, stretto.PerWorker(...) or stretto.Adaptive(...)"
        )
    return Fixed(batch_size)


def check(policy: Policy, *, slices: int, samples: int) -> None:
    """Raises `ScriptError` for a policy that cannot work with these slices and this dataset."""
    match policy:
        case Fixed(batch):
            _check_batch("batch_size", batch, slices, samples)
        case PerWorker(per_worker=per_worker, at_most=at_most):
            _check_batch("per_worker", per_worker, slices, samples)
            if at_most is not None:
                _check_bound("per_worker", per_worker, at_most, slices)
        case Adaptive(start=start, at_most=at_most):
            _check_batch("start", start, slices, samples)
            _check_bound("start", start, at_most, slices)


def next_batch(policy: Policy, situation: Situation) -> BatchDecision:
    """The batch of the next step, and why. Pure: the same arguments give the same answer on every worker."""
    match policy:
        case Fixed(batch):
            return _fitted(batch, situation, "fixed")
        case PerWorker():
            return _per_worker(policy, situation)
        case Adaptive():
            return _adaptive(policy, situation)


def parts_for(batch: int, *, slices: int, room: int | None) -> int:
    """The fewest pieces that a slice has to be accumulated from so that none is larger than `room` samples."""
    part = -(-batch // slices)
    return 1 if room is None or part <= room else -(-part // max(1, room))


def candidates(policy: Adaptive, situation: Situation) -> Iterator[int]:
    """Multiples of the slices from `start` to the highest batch that may be tried now, on a geometric ladder."""
    slices = situation.slices
    top = min(policy.at_most, GROWTH * max(situation.largest, policy.start), situation.samples)
    top = max(policy.start, top // slices * slices)
    last = 0
    rung = float(policy.start)
    while rung < top:
        batch = round(rung / slices) * slices
        if batch > last and batch >= policy.start:
            last = batch
            yield batch
        rung *= LADDER
    if top > last:
        yield top


def efficiency(noise_scale: float, *, batch: int, reference: int) -> float:
    """Statistical efficiency of a batch relative to the reference: progress a sample, in (0, 1] for larger batches."""
    return (noise_scale + reference) / (noise_scale + batch)


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ScriptError(f"{name}={value!r} is a {type(value).__name__}: a number of samples is a whole number")


def _check_batch(name: str, batch: int, slices: int, samples: int) -> None:
    _check_whole(name, batch)
    if batch < 1:
        raise ScriptError(f"{name}={batch} must be at least 1: a step needs samples")
    if batch % slices:
        near = max(slices, round(batch / slices) * slices)
        raise ScriptError(
            f"{name}={batch} cannot be divided by slices={slices}: use {name}={near}, or another slices= in job.loader(...)"
        )
    if batch > samples:
        raise ScriptError(
            f"{name}={batch} is more than the dataset's {samples} samples: "
            f"no step could be filled; use at most {max(slices, samples // slices * slices)}"
        )


def _check_bound(name: str, start: int, at_most: int, slices: int) -> None:
    _check_whole("at_most", at_most)
    if at_most < start:
        raise ScriptError(f"at_most={at_most} is below {name}={start}: raise at_most= or lower {name}=")
    if at_most % slices:
        raise ScriptError(
            f"at_most={at_most} cannot be divided by slices={slices}: "
            f"use at_most={at_most // slices * slices}, or another slices= in job.loader(...)"
        )


def _fitted(batch: int, situation: Situation, reason: str) -> BatchDecision:
    parts = parts_for(batch, slices=situation.slices, room=situation.room)
    if parts > 1:
        reason += f"; each slice in {parts} parts of at most {situation.room} samples, for memory"
    return BatchDecision(batch, parts, reason)


def _per_worker(policy: PerWorker, situation: Situation) -> BatchDecision:
    slices = situation.slices
    batch = policy.per_worker * situation.workers
    reason = f"{quantity(policy.per_worker, 'sample')} x {quantity(situation.workers, 'worker')}"
    bounds = [("at_most", policy.at_most), ("the dataset's size", situation.samples // slices * slices)]
    for name, bound in bounds:
        if bound is not None and batch > bound:
            batch, reason = bound, f"{reason}, bounded by {name} {bound}"
    return _fitted(batch, situation, reason)


def _adaptive(policy: Adaptive, situation: Situation) -> BatchDecision:
    if situation.batch is None:
        return _fitted(policy.start, situation, "start")
    if situation.noise_scale is None or situation.seconds is None:
        return _fitted(situation.batch, situation, "not enough measured yet")
    if situation.since < SETTLE_STEPS:
        return _fitted(situation.batch, situation, f"changed {situation.since} steps ago")

    noise_scale, seconds = situation.noise_scale, situation.seconds

    def goodput(batch: int) -> float:
        parts = parts_for(batch, slices=situation.slices, room=situation.room)
        speed = batch / max(seconds(batch, parts), 1e-9)
        return speed * efficiency(noise_scale, batch=batch, reference=policy.start)

    now = goodput(situation.batch)
    best = max(candidates(policy, situation), key=goodput)
    gain = goodput(best) / now if now > 0 else 0.0
    if best == situation.batch or not gain > GAIN:
        return _fitted(situation.batch, situation, f"goodput {now:.4g}/s; {best} would give x{gain:.3f}, a change needs x{GAIN}")
    return _fitted(best, situation, f"goodput x{gain:.2f} over batch {situation.batch} at noise scale {noise_scale:.4g}")
