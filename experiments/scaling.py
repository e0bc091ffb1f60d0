"""Experiment 1: AdaScale, linear scaling with warm-up and no scaling, for S times the batch and for an S that changes.

All use the same cosine schedule. AdaScale follows its own progress and stops when it is as far as the reference run; others take
1/S of the steps. Linear scaling warms up over a fifth of its steps, at least 8. The elastic runs change S at fixed fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from experiments.tasks import TASKS, Task
from experiments.trainer import Trainer, cosine
from stretto.batching.lr_rules import AdaScale, LinearScale

SCALES = (1, 8, 16, 32)
ELASTIC = ((0.0, 1), (0.25, 8), (0.5, 32), (0.75, 8))
"""Fractions of the run, and the multiple of the batch from there on."""
METHODS = ("adascale", "linear", "none")


def fixed(scale: int) -> Callable[[float], int]:
    return lambda _: scale


def elastic(fraction: float) -> int:
    return [scale for start, scale in ELASTIC if fraction >= start][-1]


def run(task: Task, method: str, scale_at: Callable[[float], int], seed: int) -> tuple[float, int]:
    """Returns the held-out loss at the end, and the number of steps."""
    rule = {"adascale": AdaScale(), "linear": LinearScale(ramp=0 if scale_at is not elastic else 8), "none": None}[method]
    trainer = Trainer(task, rule, seed)
    done, steps = 0.0, 0
    warm = max(8, math.ceil(0.2 * task.steps / scale_at(0.0)))
    while done < task.steps and steps < 4 * task.steps:
        scale = scale_at(done / task.steps)
        schedule = cosine(done / task.steps)
        if method == "linear" and scale_at is not elastic and scale > 1:
            # From the reference rate to S times it: the rule gives S at once here.
            schedule *= min(1.0, (1 + (scale - 1) * steps / warm) / scale)
        trainer.step(task.reference * scale, schedule=schedule)
        steps += 1
        done = trainer.rate.progress if method == "adascale" else done + scale
    return task.validate(trainer.model), steps


def experiment(seeds: int) -> dict[str, object]:
    results: dict[str, object] = {}
    for name, make in TASKS.items():
        task = make()
        rows: dict[str, dict[str, object]] = {}
        for method in METHODS:
            cases: dict[str, Callable[[float], int]] = {f"S={scale}": fixed(scale) for scale in SCALES if scale > 1}
            cases["elastic"] = elastic
            rows[method] = {case: _seeds(task, method, at, seeds) for case, at in cases.items()}
        results[name] = {"reference": _seeds(task, "none", fixed(1), seeds), "methods": rows, "steps": task.steps}
        print(f"  {name}: done", flush=True)
    return results


def _seeds(task: Task, method: str, at: Callable[[float], int], seeds: int) -> dict[str, object]:
    results = [run(task, method, at, seed) for seed in range(seeds)]
    return {"losses": [loss for loss, _ in results], "steps": [steps for _, steps in results]}
