"""How long a step takes on a number of workers: Pollux' throughput model and its fit.

The gradients of one local batch of m samples take α + β·m seconds. Averaging them takes nothing on one worker, α_s + β_s·(K − 2)
on K workers, with other constants within a node than across nodes. The two overlap: a step with s accumulation steps takes
s·T_grad + (T_grad^γ + T_sync^γ)^(1/γ), with γ from 1 (one after the other) to 10 (the longer one hides the shorter).
(Qiao et al., Pollux, OSDI'21, section 3.2.)

The fit minimises the root mean square logarithmic error, starting optimistic: what was never observed (another node, more than two
workers, a second batch size) is taken to cost nothing, so that a scheduler tries it.
No torch here: the job server and the simulator use this file as well as the training side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FLOOR_S = 1e-8
"""Stands for 'no time at all', so that logarithms exist."""
MOST_GAMMA = 10.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured way of running the job."""

    nodes: int
    workers: int
    local_batch: int
    grad_s: float
    """Seconds for the gradients of one local batch, without exchange."""
    step_s: float
    """Seconds for a step with exchange and without accumulation."""


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """The fitted numbers: the seven of the paper, and one for a worker that is alone. All times in seconds."""

    alpha_grad: float
    beta_grad: float
    alpha_across: float
    beta_across: float
    alpha_within: float
    beta_within: float
    gamma: float
    alone_s: float = 0.0
    """What a step of one worker takes besides its gradients (optimizer, data). With more workers it is a part of the exchange."""

    def grad_s(self, local_batch: float) -> float:
        return self.alpha_grad + self.beta_grad * local_batch

    def sync_s(self, *, nodes: int, workers: int) -> float:
        if workers <= 1:
            return 0.0
        if nodes > 1:
            return self.alpha_across + self.beta_across * max(workers - 2, 0)
        return self.alpha_within + self.beta_within * max(workers - 2, 0)

    def step_s(self, *, nodes: int, workers: int, local_batch: float, accumulation: int = 0) -> float:
        grad = self.grad_s(local_batch)
        if workers <= 1:
            return (accumulation + 1) * grad + self.alone_s
        sync = self.sync_s(nodes=nodes, workers=workers)
        return accumulation * grad + overlap(grad, sync, self.gamma)

    def whole(self, *, batch: int, slices: int) -> ThroughputModel:
        """This model of slices as one of local batches that are computed in one go: at this batch, the constant of its slices
        is a part of every sample's time."""
        return replace(self, alpha_grad=0.0, beta_grad=self.beta_grad + self.alpha_grad * slices / batch)

    @property
    def sane(self) -> bool:
        """Whether the numbers can describe a machine at all: finite, nothing negative, some time for a gradient."""
        numbers = (
            self.alpha_grad,
            self.beta_grad,
            self.alpha_across,
            self.beta_across,
            self.alpha_within,
            self.beta_within,
            self.gamma,
            self.alone_s,
        )
        return (
            all(math.isfinite(x) and 0 <= x < 1e9 for x in numbers)
            and 1 <= self.gamma <= MOST_GAMMA
            and self.alpha_grad + self.beta_grad > 0
        )


class Minimum(Protocol):
    """What is used of scipy's `OptimizeResult`."""

    x: Floats


class Minimize(Protocol):
    """What is used of `scipy.optimize.minimize`, which has no types."""

    def __call__(
        self,
        fun: Callable[[Floats], tuple[float, Floats]],
        x0: Floats,
        *,
        jac: bool,
        method: str,
        bounds: Sequence[tuple[float, float]],
    ) -> Minimum: ...


def overlap(grad_s: float, sync_s: float, gamma: float) -> float:
    """(grad^γ + sync^γ)^(1/γ) without overflow for large γ."""
    longer, shorter = max(grad_s, sync_s), min(grad_s, sync_s)
    if longer <= 0:
        return 0.0
    return longer * (1.0 + (shorter / longer) ** gamma) ** (1.0 / gamma)


def fit(observations: Sequence[Observation]) -> ThroughputModel:
    """The model with the least logarithmic error on these observations, with priors for what they do not show."""
    if not observations:
        raise ValueError("a throughput model needs at least one observation")
    from scipy import optimize

    minimize = cast("Minimize", optimize.minimize)
    table = np.array([(o.nodes, o.workers, o.local_batch, o.grad_s, o.step_s) for o in observations], dtype=np.float64)
    table[:, 3:] = np.maximum(table[:, 3:], FLOOR_S)
    start, low, high = _bounds(table)
    free = np.flatnonzero(high > low)
    loss = _Loss(table, start, free)
    least = minimize(loss, start[free], jac=True, method="L-BFGS-B", bounds=list(zip(low[free], high[free], strict=True)))
    numbers = start.copy()
    numbers[free] = least.x
    if not (table[:, 0] > 1).any():
        # Nobody has seen the network yet: it cannot be faster than the inside of a node.
        numbers[2] = max(numbers[2], numbers[4] * 1.1)
        numbers[3] = max(numbers[3], numbers[5] * 1.1)
    return ThroughputModel(*(float(x) for x in numbers))


def _bounds(table: Floats) -> tuple[Floats, Floats, Floats]:
    """Start, lower and upper bounds; a parameter that the observations say nothing about has equal bounds."""
    nodes, workers, local_batch, grad_s = table[:, 0], table[:, 1], table[:, 2], table[:, 3]
    start = np.array([1e-1, 1e-2] * 3 + [1.0 + 1e-3])
    low = np.array([FLOOR_S] * 6 + [1.0])
    high = np.array([np.inf] * 6 + [MOST_GAMMA])
    if np.unique(local_batch).size == 1:
        start[0] = low[0] = high[0] = grad_s.mean() / 2  # half constant, half proportional: nothing says otherwise
    unseen: set[int] = set()
    if not (nodes > 1).any():
        unseen |= {2, 3}
    if not ((nodes == 1) & (workers > 1)).any():
        unseen |= {4, 5}
    if not (workers > 2).any():
        unseen |= {3, 5}
    for place in unseen:
        start[place] = high[place] = low[place]
    return start, low, high


class _Loss:
    """Logarithmic error and its gradient: err(T_grad) + err(T_step) + priors for a small γ and small growth per worker."""

    def __init__(self, table: Floats, start: Floats, free: NDArray[np.int64]):
        self.numbers = start.copy()
        self.free = free
        nodes, workers, self.local_batch = table[:, 0], table[:, 1], table[:, 2]
        self.log_grad, self.log_step = np.log(table[:, 3]), np.log(table[:, 4])
        self.across = (nodes > 1).astype(np.float64)
        self.within = ((nodes <= 1) & (workers > 1)).astype(np.float64)
        self.alone = FLOOR_S * (workers <= 1)
        self.more = np.maximum(workers - 2, FLOOR_S)

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        self.numbers[self.free] = x
        a, b, a_across, b_across, a_within, b_within, gamma = self.numbers.tolist()
        grad = a + b * self.local_batch
        sync = self.across * (a_across + b_across * self.more) + self.within * (a_within + b_within * self.more) + self.alone
        ln_grad, ln_sync = np.log(grad), np.log(sync)
        ln_step = np.logaddexp(gamma * ln_grad, gamma * ln_sync) / gamma
        share = np.exp(gamma * (ln_grad - ln_step))  # of T_grad in the step; the rest is T_sync's
        miss1, miss2 = ln_grad - self.log_grad, ln_step - self.log_step
        count = len(grad)
        err1 = math.sqrt(float(miss1 @ miss1) / count) + 1e-12
        err2 = math.sqrt(float(miss2 @ miss2) / count) + 1e-12
        slope1, slope2 = miss1 / (count * err1), miss2 / (count * err2)
        d_grad = (slope1 + slope2 * share) / grad
        d_sync = slope2 * (1 - share) / sync
        d_gamma = float(slope2 @ (share * ln_grad + (1 - share) * ln_sync - ln_step)) / gamma
        across, within = b_across / a_across, b_within / a_within
        value = err1 + err2 + 1e-3 * (gamma - 1) ** 2 + 1e-2 * (across**2 + within**2)
        d_across, d_within = d_sync * self.across, d_sync * self.within
        slopes = np.array(
            [
                d_grad.sum(),
                d_grad @ self.local_batch,
                d_across.sum() - 2e-2 * across**2 / a_across,
                d_across @ self.more + 2e-2 * across / a_across,
                d_within.sum() - 2e-2 * within**2 / a_within,
                d_within @ self.more + 2e-2 * within / a_within,
                d_gamma + 2e-3 * (gamma - 1),
            ]
        )
        return value, slopes[self.free]
