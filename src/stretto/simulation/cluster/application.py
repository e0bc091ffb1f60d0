"""What a simulated job truly does: how long its steps take and what they are worth. Policies never see this.

`Application` is the interface; `profiles.py` has measured ones, `Synthetic` here is made of a throughput model and a noise scale.
Progress counts steps of the initial batch, as in AdaScale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stretto.batching.throughput import ThroughputModel


class Application(Protocol):
    """The truth about a kind of job."""

    @property
    def name(self) -> str: ...
    @property
    def initial_batch(self) -> int: ...
    @property
    def most_batch(self) -> int: ...
    @property
    def local_low(self) -> int: ...
    @property
    def local_high(self) -> int: ...
    @property
    def epochs(self) -> int: ...

    def step_s(self, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """Seconds for a step without accumulation, and those of them spent on the exchange, for workers on each node."""
        ...

    def noise(self, batch: float, epoch: int) -> tuple[float, float]:
        """|G|² and the trace of the covariance at the initial batch, during that epoch."""
        ...

    def progress(self, epoch: int) -> float:
        """The progress at which this many epochs are finished."""
        ...

    def loss(self, epoch: float) -> float:
        """The loss that the application reports after `epoch` epochs."""
        ...

    def steps_left(self, batch: float, epoch: int) -> float:
        """Optimizer steps from the end of epoch + 1 to the end of the job at this batch, as a user could know them."""
        ...


@dataclass(frozen=True, slots=True)
class Synthetic:
    """An application that is exactly its model: for users' own traces and for tests."""

    name: str
    throughput: ThroughputModel
    initial_batch: int
    most_batch: int
    steps: float
    """Steps at the initial batch until it is finished."""
    noise_scale: float = 0.0
    """φ in samples; 0 means that larger batches are worth nothing more."""
    local_low: int = 1
    local_high: int = 1 << 30
    epochs: int = 10
    first_loss: float = 1.0
    last_loss: float = 0.1

    def step_s(self, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        step = self.throughput.step_s(nodes=len(shape), workers=sum(shape), local_batch=local_batch)
        return step, step - self.throughput.grad_s(local_batch)

    def noise(self, batch: float, epoch: int) -> tuple[float, float]:
        return 1.0, self.noise_scale / self.initial_batch

    def progress(self, epoch: int) -> float:
        return self.steps * epoch / self.epochs

    def loss(self, epoch: float) -> float:
        share = min(max(epoch / self.epochs, 0.0), 1.0)
        return self.last_loss + (self.first_loss - self.last_loss) * (1 - share) ** 2

    def steps_left(self, batch: float, epoch: int) -> float:
        if epoch >= self.epochs - 1:
            return 1.0
        sqr, var = self.noise(batch, epoch)
        gain = (var + sqr) / (var * self.initial_batch / batch + sqr)
        return (self.progress(self.epochs) - self.progress(epoch + 1)) / gain
