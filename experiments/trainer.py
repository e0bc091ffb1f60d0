"""A training loop in one process with the library's own slices, noise scale and learning-rate rules. It needs no workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from experiments.tasks import Task
from stretto.batching.grad_norms import GradNorms
from stretto.batching.lr_rules import LrRule
from stretto.batching.lr_scaling import LrScaling
from stretto.batching.noise_scale import NoiseScale

SLICES = 8
Schedule = Callable[[float], float]
"""Maps progress in [0, 1] to a factor on the learning rate."""


def cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(slots=True)
class Trainer:
    """One run, determined by the seed and the batches. `step(batch)` does one optimizer step."""

    task: Task
    rule: LrRule | None
    seed: int
    momentum: float = 0.9
    lr_factor: float = 1.0
    losses: list[float] = field(default_factory=list)
    samples: int = 0

    model: nn.Module = field(init=False)
    optimizer: torch.optim.SGD = field(init=False)
    noise: NoiseScale = field(init=False)
    rate: LrScaling = field(init=False)
    _norms: GradNorms = field(init=False)
    _order: Tensor = field(init=False)
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = self.task.build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.task.lr * self.lr_factor, momentum=self.momentum)
        self._norms = GradNorms([self.optimizer])
        self.noise = NoiseScale(self._norms.groups)
        self.rate = LrScaling(self.rule, [self.optimizer], reference=self.task.reference, noise=self.noise)
        self._generator = torch.Generator().manual_seed(1000 + self.seed)
        self._order = torch.empty(0, dtype=torch.int64)

    def _samples(self, count: int) -> Tensor:
        """The next samples, epoch after epoch."""
        while len(self._order) < count:
            self._order = torch.cat([self._order, torch.randperm(len(self.task.inputs), generator=self._generator)])
        chosen, self._order = self._order[:count], self._order[count:]
        return chosen

    def step(self, batch: int, *, schedule: float = 1.0) -> float:
        """One step with this batch. `schedule` multiplies the learning rate. Returns the loss before the step."""
        chosen = self._samples(batch)
        parameters = list(self.model.parameters())
        total = [torch.zeros_like(parameter) for parameter in parameters]
        rows: list[list[float]] = []
        loss_sum = 0.0
        parts = chosen.chunk(SLICES)
        for part in parts:
            self.optimizer.zero_grad()
            loss = self.task.loss(self.model(self.task.inputs[part]), self.task.targets[part])
            loss.backward()
            rows.append(self._norms.squared().tolist())
            loss_sum += float(loss.detach()) * len(part)
            for gradient_sum, parameter in zip(total, parameters, strict=True):
                gradient_sum.add_(parameter.grad, alpha=len(part) / batch)  # type: ignore[arg-type]
        for gradient_sum, parameter in zip(total, parameters, strict=True):
            parameter.grad = gradient_sum
        self.noise.observe(rows, mean=self._norms.squared().tolist(), sizes=[len(part) for part in parts])
        self.rate.begin(batch)
        self.optimizer.param_groups[0]["lr"] = self.task.lr * self.lr_factor * schedule
        self.optimizer.step()
        self.rate.committed(epochs=batch / len(self.task.inputs))
        self.samples += batch
        self.losses.append(loss_sum / batch)
        return self.losses[-1]
