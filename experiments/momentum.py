"""Experiment 2: what happens to the loss when the batch becomes k times larger in mid-run: rate at once, ramped, or unchanged."""

from __future__ import annotations

import statistics

from experiments.tasks import digits
from experiments.trainer import Trainer
from stretto.batching.lr_rules import LinearScale

FACTORS = (4, 8, 16)
METHODS = {"jump": LinearScale(ramp=0), "ramp": LinearScale(ramp=8), "unchanged": None}
BEFORE, AFTER = 60, 40
RATE = 3.0
"""Times the task's rate: near the largest that is stable, where a jump can do harm at all."""


def run(method: str, factor: int, seed: int) -> list[float]:
    """The training loss of the steps after the change, over the mean of the last steps before it."""
    task = digits()
    trainer = Trainer(task, METHODS[method], seed, lr_factor=RATE)
    for _ in range(BEFORE):
        trainer.step(task.reference)
    before = statistics.fmean(trainer.losses[-20:])
    return [trainer.step(task.reference * factor) / before for _ in range(AFTER)]


def experiment(seeds: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for factor in FACTORS:
        found[f"k={factor}"] = {method: [run(method, factor, seed) for seed in range(seeds)] for method in METHODS}
        print(f"  k={factor}: done", flush=True)
    return found
