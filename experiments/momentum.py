"""Experiment 2: the loss after the batch grows k times in mid-run, with the learning rate raised at once, ramped or unchanged."""

from __future__ import annotations

import statistics

from experiments.tasks import digits
from experiments.trainer import Trainer
from stretto.batching.lr_rules import LinearScale

FACTORS = (4, 8, 16)
METHODS = {"jump": LinearScale(ramp=0), "ramp": LinearScale(ramp=8), "unchanged": None}
BEFORE, AFTER = 60, 40
RATE = 3.0
"""Factor on the task's learning rate: close to the largest stable one, where a jump can do harm."""


def run(method: str, factor: int, seed: int) -> list[float]:
    """The training losses after the change, relative to the mean of the last steps before it."""
    task = digits()
    trainer = Trainer(task, METHODS[method], seed, lr_factor=RATE)
    for _ in range(BEFORE):
        trainer.step(task.reference)
    before = statistics.fmean(trainer.losses[-20:])
    return [trainer.step(task.reference * factor) / before for _ in range(AFTER)]


def experiment(seeds: int) -> dict[str, object]:
    results: dict[str, object] = {}
    for factor in FACTORS:
        results[f"k={factor}"] = {method: [run(method, factor, seed) for seed in range(seeds)] for method in METHODS}
        print(f"  k={factor}: done", flush=True)
    return results
