"""Measured step times, and the throughput model that is fitted to them on a thread of its own.

A fit that fails or takes long costs the job nothing: decisions go on with the model before, or with none.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from stretto.batching.throughput import Observation, ThroughputModel, fit
from stretto.core import threads

KEPT = 32
"""Measurements of each way of running that count."""
ENOUGH = 5
"""Measurements that a way of running needs before it is fitted."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One way of running the job: what its step time depends on."""

    nodes: int
    workers: int
    part: int
    """Samples in one forward and backward."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A throughput model fitted to measured steps, with its error."""

    model: ThroughputModel
    error: float
    """Root mean square of the logarithm of measured over predicted step time: 0.1 is about 10%."""
    ways: int

    @property
    def confidence(self) -> float:
        """Between 0 and 1: halved by every 10% of error, and by having seen one size of batch only."""
        certainty = 1.0 if self.ways > 1 else 0.5
        return certainty * 0.5 ** (self.error / 0.1)


class StepTiming:
    """What one worker has seen of the job's speed. All methods are quick; fitting goes on elsewhere."""

    def __init__(self) -> None:
        self.fitted: Fitted | None = None
        self.failure: str | None = None
        """Why the last fit failed, if it did."""
        self._seen: dict[RunConfig, deque[tuple[float, float]]] = {}
        self._fresh = 0
        self._thread: threading.Thread | None = None

    def observe(self, config: RunConfig, *, grad_s: float, step_s: float) -> None:
        """One step: the seconds of one forward and backward, and of a step with one of them and the exchange."""
        if 0 < grad_s < math.inf and 0 < step_s < math.inf:
            self._seen.setdefault(config, deque(maxlen=KEPT)).append((grad_s, max(step_s, grad_s)))
            self._fresh += 1

    @property
    def observations(self) -> list[Observation]:
        return [
            Observation(
                config.nodes,
                config.workers,
                config.part,
                statistics.median(g for g, _ in times),
                statistics.median(s for _, s in times),
            )
            for config, times in self._seen.items()
            if len(times) >= ENOUGH
        ]

    def refit(self, *, after: int = 20) -> None:
        """Starts a fit if there are at least `after` new measurements and no fit is under way."""
        if self._fresh < after or (self._thread is not None and self._thread.is_alive()):
            return
        observations = self.observations
        if not observations:
            return
        self._fresh = 0
        self._thread = threads.start(self._fit, observations, name="stretto-fit")

    def join(self) -> None:
        """Waits for the fit under way."""
        if self._thread is not None:
            self._thread.join()

    def seconds(self, *, nodes: int, workers: int, slices: int) -> Callable[[int, int], float] | None:
        """The model as (batch, parts) to seconds a step on these workers; None while there is no model."""
        if self.fitted is None:
            return None
        model, rounds = self.fitted.model, -(-slices // workers)

        def predict(batch: int, parts: int) -> float:
            return model.step_s(nodes=nodes, workers=workers, local_batch=batch / slices / parts, accumulation=rounds * parts - 1)

        return predict

    def _fit(self, observations: list[Observation]) -> None:
        try:
            model = fit_with_rest(observations)
            if not model.sane:
                raise ValueError(f"the fit makes no sense: {model}")
            self.fitted = Fitted(model, _error(model, observations), len({observation.local_batch for observation in observations}))
            self.failure = None
        except Exception as error:  # the job goes on with what it has
            self.failure = f"{type(error).__name__}: {error}"


def fit_with_rest(observations: list[Observation]) -> ThroughputModel:
    """The paper's model says that a step of one worker is its gradients and nothing else. An optimizer takes its time too, and only
    once for all slices of a step: left in, it would be taken for a part of every slice."""
    rests = [observation.step_s - observation.grad_s for observation in observations if observation.workers <= 1]
    bare = [
        replace(observation, step_s=observation.grad_s) if observation.workers <= 1 else observation for observation in observations
    ]
    return replace(fit(bare), alone_s=max(0.0, statistics.median(rests)) if rests else 0.0)


def _error(model: ThroughputModel, observations: list[Observation]) -> float:
    misses = [
        math.log(
            observation.step_s
            / model.step_s(nodes=observation.nodes, workers=observation.workers, local_batch=observation.local_batch)
        )
        for observation in observations
    ]
    return math.sqrt(sum(miss * miss for miss in misses) / len(misses))
