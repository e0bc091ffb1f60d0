"""Application metrics (docs/reference/metrics.md): what a scheduler decides from. The chief reports them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stretto.batching.batch_policies import Adaptive, PerWorker, Policy, efficiency
from stretto.core.errors import ScriptError

if TYPE_CHECKING:
    from stretto.train.data.step import Step
    from stretto.train.job import Job

REPORT_S = 5.0
"""Between two reports."""
SCHEMA = 1


class Metrics:
    """Says the document every few seconds and at the end of every epoch."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._reported = 0.0
        self._latest: Step | None = None

    def report(self, step: Step) -> None:
        """After a step."""
        self._latest = step
        if time.monotonic() - self._reported >= REPORT_S:
            self._say()

    def epoch_done(self) -> None:
        """The last word about an epoch, if the last step was not reported."""
        if self._latest is not None:
            self._say()

    def _say(self) -> None:
        step, self._latest = self._latest, None
        if step is None or not self._job.chief:
            return
        self._reported = time.monotonic()
        self._job._telling.say("report", step=step.index, of="job", metrics=document(self._job, step))


def document(job: Job, step: Step) -> dict[str, Any]:
    planning, loader = job._planning, step.loader
    noise, fitted = planning.noise, planning.speed.fitted
    reference = planning.rate.reference if planning.rate is not None else loader.batch
    phi, pair = (noise.scale, noise.pair()) if noise is not None else (None, None)
    total, left = planning.breakdown.get("total", 0.0), left_of(step, epochs=job._last_epoch)
    speed = step.count / total if total else 0.0
    share = efficiency(phi, batch=step.count, reference=reference) if phi is not None else 1.0
    batches = range_of(planning.policy(loader), batch=loader.batch, reference=reference, slices=loader.slices)
    known = {} if pair is None else {"grad_sqr": pair[0], "grad_var": pair[1] / batches["initial"]}
    return {
        "schema": SCHEMA,
        "step": step.index,
        "epoch": step.epoch,
        "progress": planning.progress,
        "workers": job.workers,
        "nodes": planning.nodes,
        "slices": loader.slices,
        "batch": loader.batch,
        "parts": step.parts,
        "range": batches,
        "samples_per_s": round(speed, 3),
        "efficiency": round(share, 6),
        "goodput": round(speed * share, 3),
        "step_s": {name: round(value, 6) for name, value in planning.breakdown.items()},
        "noise_scale": phi,
        "noise": None if noise is None or not known else {"scale": phi, **known, "measured": noise.count, "ignored": noise.ignored},
        "throughput": None
        if fitted is None
        else {**asdict(fitted.model), "confidence": round(fitted.confidence, 4), "observations": len(planning.speed.observations)},
        "model": None
        if fitted is None or not known
        else {"throughput": asdict(fitted.model), **known, "batch": {**batches, "slices": loader.slices}},
        "skipped": planning.skipped,
        "remaining": None if left is None else {"samples": left, "seconds": round(left / speed, 3) if speed else None},
    }


def reported(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a script gives to `job.report`, as plain numbers. Raises `ScriptError` for what is none."""
    values: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ScriptError(f"job.report({name}={value!r}) is not a number: give one, or a tensor with one element") from None
    return values


def left_of(step: Step, *, epochs: int | None) -> int | None:
    """Samples until the end of the last epoch at the present batch, where the script has said which one that is."""
    if epochs is None:
        return None
    size, batch = step.loader.source.size, step.loader.batch
    here, each = size - step.first - step.count, size
    if step.loader.tail == "drop":
        here, each = here - here % batch, size - size % batch
    return here + max(0, epochs - step.epoch - 1) * each


def range_of(policy: Policy | None, *, batch: int, reference: int, slices: int) -> dict[str, Any]:
    """What batches are allowed, as goodput models take it."""
    match policy:
        case Adaptive(start=start, at_most=most):
            return {"initial": start, "most": most, "fixed": None, "per_worker": None}
        case PerWorker(per_worker=per_worker, at_most=most):
            return {"initial": per_worker, "most": most or per_worker * slices, "fixed": None, "per_worker": per_worker}
        case _:
            return {"initial": reference, "most": max(batch, reference), "fixed": batch, "per_worker": None}
