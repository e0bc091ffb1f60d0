"""Experiment 3: the online noise scale against one from 1,000 gradients, and what it predicts against what is measured."""

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
"""Of the held-out loss."""


def offline(task: Task, model: torch.nn.Module) -> float:
    """The noise scale from single-sample gradients and the gradient of the whole dataset."""
    parameters = list(model.parameters())
    whole = _gradient(task, model, torch.arange(len(task.inputs)), parameters)
    chosen = torch.randperm(len(task.inputs), generator=torch.Generator().manual_seed(5))[:GRADIENTS]
    spread = [float((_gradient(task, model, chosen[k : k + 1], parameters) - whole).square().sum()) for k in range(len(chosen))]
    return statistics.fmean(spread) / float(whole.square().sum())


def _gradient(task: Task, model: torch.nn.Module, chosen: torch.Tensor, parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    loss = task.loss(model(task.inputs[chosen]), task.targets[chosen])
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, parameters)])


def online(seed: int) -> list[tuple[int, float, float]]:
    """(step, online, offline) along one run, at a rate so low that the gradient hardly moves within the average's span."""
    task = digits()
    trainer = Trainer(task, None, seed, lr_factor=0.1)
    found: list[tuple[int, float, float]] = []
    for step in range(max(CHECKS) + 1):
        trainer.step(4 * task.reference)
        if step in CHECKS:
            found.append((step, trainer.noise.scale or 0.0, offline(task, trainer.model)))
    return found


def samples_to_target(batch: int, seed: int) -> tuple[int, float]:
    """Samples until the held-out loss is at the target, with AdaScale's rate; and the median online noise scale on the way."""
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
