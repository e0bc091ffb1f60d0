"""Goodput: samples a second, times what a sample is worth at that batch size.

A larger batch makes better use of the workers and less use of each sample. With the gradient's squared norm |G|² and the trace of
its covariance at the initial batch B0, a step at batch B = scale·B0 is worth gain = (var + sqr)/(var/scale + sqr) steps at B0;
gain/scale is the statistical efficiency, the same as (φ + B0)/(φ + B) with the noise scale φ.
(McCandlish et al. 2018; AdaScale, ICML'20; Pollux, OSDI'21.)

`GoodputModel.choose` finds the batch with the highest goodput for one number of workers; `goodputs` does so for many jobs
and sizes at once, for schedulers. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stretto.batching.throughput import ThroughputModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CANDIDATES = 50
"""Batch sizes that are tried between the smallest and the largest, evenly spaced in their logarithm."""
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class BatchRange:
    """What batch sizes a job may use: anything from `initial` to `most`, or one `fixed` batch, or a fixed part `per_worker`."""

    initial: int
    most: int
    local_low: int = 1
    local_high: int = 1 << 30
    fixed: int | None = None
    per_worker: int | None = None
    slices: int | None = None
    """Where the batch is cut into slices that a worker computes one after the other: then a local batch is one slice."""

    @property
    def most_workers(self) -> int:
        """More workers than this would leave one with less than the smallest local batch."""
        if self.slices is not None:
            return self.slices
        if self.per_worker is not None:
            return max(self.most // self.per_worker, 1)
        return max((self.fixed or self.most) // self.local_low, 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """The batch with the highest goodput on a placement: samples in a local batch, and extra passes before each exchange."""

    goodput: float
    local_batch: int
    accumulation: int


@dataclass(frozen=True, slots=True)
class GoodputModel:
    """A job's fitted speed and noise: what a policy knows of it."""

    throughput: ThroughputModel
    grad_sqr: float
    grad_var: float
    batch: BatchRange
    factor: float = field(default=1.0)
    """Speed relative to the throughput model, for models carried over to another kind of node."""

    def gain(self, batch: float) -> float:
        return gain(self.grad_sqr, self.grad_var, batch / self.batch.initial)

    def choose(self, *, nodes: int, workers: int) -> Choice:
        """The best batch for this size: goodput in samples of the initial batch a second, local batch, accumulation steps."""
        local, accumulation = candidates(self.batch, np.array([workers]), count=CANDIDATES)
        value = _evaluate(
            _pack([self]), np.array([nodes > 1]), np.array([workers]), local[None], accumulation[None], self.batch.slices
        )[0, 0]
        best = int(np.argmax(value))
        return Choice(float(value[best]) * self.factor, int(local[0, best]), int(accumulation[0, best]))

    @property
    def sane(self) -> bool:
        noise = math.isfinite(self.grad_sqr) and math.isfinite(self.grad_var) and self.grad_var >= 0
        bounds = 0 < self.batch.initial <= self.batch.most and 0 < self.batch.local_low <= self.batch.local_high
        return self.throughput.sane and noise and bounds and math.isfinite(self.factor) and self.factor > 0


def gain(grad_sqr: float, grad_var: float, scale: float) -> float:
    """How many steps at the initial batch one step at `scale` times it is worth; 1 where the statistics make no sense."""
    below = grad_var / scale + grad_sqr
    return (grad_var + grad_sqr) / below if below > 0 else 1.0


def candidates(batch: BatchRange, workers: Ints, *, count: int) -> tuple[Ints, Ints]:
    """As `_candidates`, remembered: a scheduler asks for the same few sizes again and again."""
    return _candidates(batch, tuple(workers.tolist()), count)


@lru_cache(maxsize=4096)
def _candidates(batch: BatchRange, sizes: tuple[int, ...], count: int) -> tuple[Ints, Ints]:
    """Local batches and accumulation steps to try, (sizes, count) each; a local batch of 0 is not allowed for that size.

    One worker accumulates at least once above the initial batch: the noise of a gradient cannot be seen in a single part.
    """
    k = np.array(sizes, dtype=np.float64)[:, None]
    if batch.slices is not None:
        return _sliced(batch, k, count, batch.slices)
    if batch.per_worker is not None:
        local = np.full((len(sizes), 1), float(batch.per_worker))
    elif batch.fixed is not None:
        local = batch.fixed / k
    else:
        low = np.minimum(np.maximum(batch.initial, batch.local_low * k), batch.most)
        local = low * (batch.most / low) ** (np.arange(count) / max(count - 1, 1)) / k
    accumulation = np.maximum(np.ceil(local / batch.local_high - EPSILON) - 1, 0)
    alone = (k == 1) & (local > batch.initial + EPSILON)
    accumulation = np.where(alone, np.maximum(accumulation, 1), accumulation)
    size = np.ceil(local / (accumulation + 1) - EPSILON)
    size = np.minimum(size, np.floor(batch.most / (k * (accumulation + 1)) + EPSILON))
    fits = (size >= batch.local_low) & (size <= batch.local_high)
    return np.where(fits, size, 0).astype(np.int64), accumulation.astype(np.int64)


def _sliced(batch: BatchRange, k: Floats, count: int, slices: int) -> tuple[Ints, Ints]:
    """The same for a batch in slices: the local batch is a slice, and a worker has as many of them as the busiest one."""
    if batch.per_worker is not None:
        whole = np.minimum(batch.per_worker * k, batch.most)
    elif batch.fixed is not None:
        whole = np.full_like(k, batch.fixed)
    else:
        whole = batch.initial * (batch.most / batch.initial) ** (np.arange(count) / max(count - 1, 1)) + 0.0 * k
    local = np.where(k <= slices, np.ceil(whole / slices - EPSILON), 0)
    accumulation = np.ceil(slices / k) - 1 + 0.0 * whole
    return local.astype(np.int64), accumulation.astype(np.int64)


def goodputs(models: Sequence[GoodputModel], *, across: Sequence[bool], workers: Sequence[int], count: int = CANDIDATES) -> Floats:
    """The goodput of every model (rows) at every size (columns); 0 where a size is impossible."""
    sizes = np.asarray(workers, dtype=np.int64)
    spread = np.asarray(across, dtype=bool)
    if not models:
        return np.zeros((0, len(sizes)))
    result = np.zeros((len(models), len(sizes)))
    groups: dict[BatchRange, list[int]] = {}
    for place, model in enumerate(models):
        groups.setdefault(model.batch, []).append(place)
    for batch, places in groups.items():
        local, accumulation = candidates(batch, sizes, count=count)
        packed = _pack([models[place] for place in places])
        values = _evaluate(packed, spread, sizes, local[None], accumulation[None], batch.slices)
        result[places] = values.max(axis=-1) * packed[:, 10, None]
    return result


def _pack(models: Sequence[GoodputModel]) -> Floats:
    return np.array(
        [
            (
                t.alpha_grad,
                t.beta_grad,
                t.alpha_across,
                t.beta_across,
                t.alpha_within,
                t.beta_within,
                t.gamma,
                m.grad_sqr,
                m.grad_var,
                m.batch.initial,
                m.factor,
                t.alone_s,
            )
            for m in models
            for t in (m.throughput,)
        ],
        dtype=np.float64,
    )


def _evaluate(
    packed: Floats, across: NDArray[np.bool_], workers: Ints, local: Ints, accumulation: Ints, slices: int | None
) -> Floats:
    """Goodput of (models, sizes, candidates) from broadcastable arrays."""
    a, b, a_across, b_across, a_within, b_within = (packed[:, column, None] for column in range(6))
    gamma, sqr, var, initial = (packed[:, column, None, None] for column in range(6, 10))
    more = np.maximum(workers - 2, 0)
    sync = np.where(across, a_across + b_across * more, a_within + b_within * more)
    sync = np.maximum(np.where(workers > 1, sync, 0.0), 1e-12)[..., None]
    grad = np.maximum(a[..., None] + b[..., None] * local, 1e-12)
    step = np.exp(np.logaddexp(gamma * np.log(grad), gamma * np.log(sync)) / gamma)
    alone = np.where(workers > 1, 0.0, packed[:, 11, None])[..., None]
    total = step + accumulation * grad + alone
    whole = workers[:, None] * local * (accumulation + 1) if slices is None else slices * local
    scale = whole / initial
    with np.errstate(divide="ignore", invalid="ignore"):
        below = var / scale + sqr
        worth = np.where((below > 0) & (local > 0), (var + sqr) / below, 1.0)
    return np.where(local > 0, initial * worth / total, 0.0)
