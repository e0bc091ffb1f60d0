"""Application metrics (docs/reference/metrics.md): what a scheduler decides from. The chief reports them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stretto.batching.batch_policies import Adaptive, PerWorker, Policy, efficiency
from stretto.core.errors import ScriptError

if TYPE_CHECKING:
    from stretto.train.batch_controller import BatchController
    from stretto.train.data.step import Step
    from stretto.train.membership import Membership
    from stretto.train.position import Position
    from stretto.train.reporting import AgentReporter

REPORT_S = 5.0
"""Between two reports."""
SCHEMA = 1


class MetricsReporter:
    """Reports the application metrics every few seconds and at the end of every epoch."""

    def __init__(self, reporter: AgentReporter, *, membership: Membership, position: Position, batches: BatchController) -> None:
        self._reporter = reporter
        self._membership = membership
        self._position = position
        self._batches = batches
        self._reported_at = 0.0
        self._latest: Step | None = None

    def report(self, step: Step) -> None:
        """After a step."""
        if not self._membership.first_of_agent:
            return
        self._latest = step
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._report()

    def epoch_done(self) -> None:
        """The last report of an epoch, unless its last step was reported already."""
        if self._latest is not None:
            self._report()

    def _report(self) -> None:
        step, self._latest = self._latest, None
        if step is None or not self._membership.chief:
            return
        self._reported_at = time.monotonic()
        metrics = document(self._batches, step, workers=self._membership.size, epochs=self._position.epochs)
        self._reporter.say("report", step=step.index, of="job", metrics=metrics)


def document(planning: BatchController, step: Step, *, workers: int, epochs: int | None) -> dict[str, Any]:
    """The application metrics after a step."""
    loader = step.loader
    noise, fitted = planning.noise, planning.speed.fitted
    reference = planning.rate.reference if planning.rate is not None else loader.batch
    phi, pair = (noise.scale, noise.pair()) if noise is not None else (None, None)
    total, left = planning.breakdown.get("total", 0.0), left_of(step, epochs=epochs)
    speed = step.count / total if total else 0.0
    share = efficiency(phi, batch=step.count, reference=reference) if phi is not None else 1.0
    batches = range_of(planning.policy(loader), batch=loader.batch, reference=reference, slices=loader.slices)
    known = {} if pair is None else {"grad_sqr": pair[0], "grad_var": pair[1] / batches["initial"]}
    return {
        "schema": SCHEMA,
        "step": step.index,
        "epoch": step.epoch,
        "progress": planning.progress,
        "workers": workers,
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
