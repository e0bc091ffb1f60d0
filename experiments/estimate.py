"""Experiment 3: the online noise scale against one from 1,000 gradients, and predicted against measured efficiency."""

from __future__ import annotations

import statistics

import torch

from experiments.tasks import Task, digits
from experiments.trainer import Trainer
from stretto.batching.lr_rules import AdaScale

CHECKS = (60, 150, 300, 500)
"""Steps at which the online estimate is compared."""
GRADIENTS = 1000
BATCHES = (16, 32, 64, 128, 256, 512)
TARGET = 0.25
"""The held-out loss to reach."""


def offline(task: Task, model: torch.nn.Module) -> float:
    """The noise scale from single-sample gradients and the gradient of the whole dataset."""
    parameters = list(model.parameters())
    whole = _gradient(task, model, torch.arange(len(task.inputs)), parameters)
    chosen = torch.randperm(len(task.inputs), generator=torch.Generator().manual_seed(5))[:GRADIENTS]
    deviations = [float((_gradient(task, model, index, parameters) - whole).square().sum()) for index in chosen.split(1)]
    return statistics.fmean(deviations) / float(whole.square().sum())


def _gradient(task: Task, model: torch.nn.Module, chosen: torch.Tensor, parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    loss = task.loss(model(task.inputs[chosen]), task.targets[chosen])
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, parameters)])


def online(seed: int) -> list[tuple[int, float, float]]:
    """(step, online, offline) along one run. The learning rate is low: the gradient hardly moves within the moving average."""
    task = digits()
    trainer = Trainer(task, None, seed, lr_factor=0.1)
    comparisons: list[tuple[int, float, float]] = []
    for step in range(max(CHECKS) + 1):
        trainer.step(4 * task.reference)
        if step in CHECKS:
            comparisons.append((step, trainer.noise.scale or 0.0, offline(task, trainer.model)))
    return comparisons


def samples_to_target(batch: int, seed: int) -> tuple[int, float]:
    """Samples until the held-out loss reaches the target under AdaScale, and the median online noise scale on the way."""
    task = digits()
    trainer = Trainer(task, AdaScale(), seed)
    scales: list[float] = []
    while trainer.samples < 60 * len(task.inputs):
        trainer.step(batch)
        scales.append(trainer.noise.scale or 0.0)
        if len(scales) % max(1, 64 // batch) == 0 and task.validate(trainer.model) < TARGET:
            break
    return trainer.samples, statistics.median(scales)


def experiment(seeds: int) -> dict[str, object]:
    checks = [online(seed) for seed in range(max(2, seeds // 2))]
    print("  online against offline: done", flush=True)
    runs = {str(batch): [samples_to_target(batch, seed) for seed in range(seeds)] for batch in BATCHES}
    return {"checks": checks, "samples": runs, "reference": BATCHES[0], "target": TARGET}
