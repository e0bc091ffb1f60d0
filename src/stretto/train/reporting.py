"""Reports of a worker to its agent, which writes them into the journal: commits, roster switches, evaluations.

The chief also reports application metrics (docs/reference/metrics.md), which schedulers decide from.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypedDict

from stretto.batching.batch_policies import Adaptive, PerWorker, Policy, efficiency
from stretto.batching.goodput import BatchRange
from stretto.core.errors import ScriptError
from stretto.core.journal import Commit, EpochEnd, Evaluation, JournalEvent, JournalReport, LoaderLine
from stretto.core.messages import OrderMessage, ResumedMessage, SwitchedMessage, ToAgent
from stretto.core.roster import Roster
from stretto.core.schema import JsonObject
from stretto.train.entry.agent_channel import AgentChannel
from stretto.train.membership import Membership
from stretto.train.position import Position

if TYPE_CHECKING:
    from stretto.train.batch_controller import BatchController
    from stretto.train.data.loader import Loader
    from stretto.train.data.step import Step


class BatchFields(TypedDict, total=False):
    """The fields of a `Commit` that the batch controller knows."""

    parts: int
    left: int | None
    slice_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class ReporterCarryover:
    """What a reporter hands to the next one where a script starts again in its process."""

    last_commit: Commit | None
    pauses: dict[int, float]
    own_s: float
    left_at: float | None
    ended_at: float


class AgentReporter:
    """Reports to the agent. Job-level records are sent by one worker per host: every agent keeps a journal of its own."""

    def __init__(self, channel: AgentChannel | None, *, seed: int, membership: Membership, position: Position) -> None:
        self._channel = channel
        self._seed = seed
        self._membership = membership
        self._position = position
        self.last_commit: Commit | None = None
        """Reported again after a rescue: the chief that had to report it may have died."""
        self._stepped_at = time.monotonic()
        self._own_s = 0.0
        """Seconds that the script has spent between sweeps over its loaders. They do not count as a pause."""
        self._left_at: float | None = None
        """When the last sweep ended, between two sweeps."""
        self._ended_at = self._clock()
        """When the last step ended. Pauses are counted from there."""
        self._pauses: dict[int, float] = {}
        """Rosters that this worker has switched to since then, each with the time at which the step before it ended."""
        self._order = (-1, -1)
        """The loader and epoch whose order of samples the agent knows of."""

    def send(self, message: ToAgent) -> None:
        """Sends a message. Does nothing for a script that runs alone."""
        if self._channel is not None:
            self._channel.send(message)

    def warn(self, text: str) -> None:
        """A warning for the job's owner, on the terminal where there is no agent."""
        if self._channel is None:
            print(f"stretto: {text}", file=sys.stderr)
        self.send(JournalEvent(what="warning", text=text))

    def _clock(self) -> float:
        """Monotonic seconds without the script's own time: stands still between sweeps."""
        return (time.monotonic() if self._left_at is None else self._left_at) - self._own_s

    def sweep_begins(self) -> None:
        """A loop over a loader begins: the script's own time ends."""
        if self._left_at is not None:
            self._own_s += time.monotonic() - self._left_at
            self._left_at = None

    def sweep_ended(self) -> None:
        """The script goes on by itself, unless this was an evaluation inside a training step."""
        if self._position.training is None or self._position.left is not None:
            self._left_at = time.monotonic()

    def _step_ended(self) -> None:
        """After the first step that follows a change: reports the pause since the end of the step before the change."""
        now = self._clock()
        for number, since in self._pauses.items():
            self.send(ResumedMessage(number=number, pause_ms=round((now - since) * 1e3, 3)))
        self._pauses.clear()
        self._ended_at = now

    def admitted(self) -> None:
        """This worker is a newcomer, and has finished no step yet."""
        self._ended_at = self._clock()

    def begin(self) -> None:
        """Training begins here: the first step is timed from now on."""
        self._stepped_at = time.monotonic()

    def carryover(self) -> ReporterCarryover:
        return ReporterCarryover(self.last_commit, self._pauses, self._own_s, self._left_at, self._ended_at)

    def carry_on(self, carried: ReporterCarryover) -> None:
        """This worker ran out of memory in a step, and another reporter reported the steps until then."""
        self.last_commit, self._pauses = carried.last_commit, carried.pauses
        self._own_s, self._left_at, self._ended_at = carried.own_s, carried.left_at, carried.ended_at

    def switched(self, roster: Roster, *, switch_ms: float) -> None:
        """`switch_ms` is what the change itself took: at the boundary, or from the broken exchange to the new roster."""
        if (roster.base or roster.rescue) and self._membership.worker not in roster.joined:
            self._pauses[roster.number] = self._ended_at
        change = "join" if roster.joined else "leave" if roster.left else "balance"
        cause = "rescue" if roster.rescue else "start" if not roster.base else change
        self.send(
            SwitchedMessage(
                number=roster.number,
                tick=self._membership.seat.tick or 0,
                step=self._position.step,
                switch_ms=round(switch_ms, 3),
                joined=roster.joined,
                left=roster.left,
                cause=cause,
                workers=len(roster.members),
            )
        )

    def loader(self, loader: Loader) -> None:
        """Describes a loader to the agent, which checks the coverage of its samples."""
        if self._membership.first_of_agent:
            self.send(
                LoaderLine(
                    loader=loader.number,
                    samples=loader.source.size,
                    batch=loader.batch,
                    slices=loader.slices,
                    tail=loader.tail,
                    train=loader.train,
                    seed=self._seed,
                    shuffle=loader.source.shuffle,
                )
            )

    def step_seconds(self) -> float:
        """Seconds since the last call: from one commit to the next."""
        now = time.monotonic()
        step_s, self._stepped_at = now - self._stepped_at, now
        return step_s

    def committed(self, step: Step, *, step_s: float, batching: BatchFields) -> None:
        """A training step is over: its optimizer has run. `batching` comes from the batch controller."""
        membership = self._membership
        self.last_commit = Commit(
            step=step.index,
            tick=membership.seat.tick,
            epoch=step.epoch,
            loader=step.loader.number,
            first=step.first,
            count=step.count,
            batch=step.loader.batch,
            roster=membership.roster.number,
            workers=membership.size,
            order=step.order,
            metrics=step.metrics,
            step_s=round(step_s, 6),
            **batching,
        )
        self._step_ended()
        if membership.first_of_agent:
            self.send(self.last_commit)
        elif self._order != (step.loader.number, step.epoch):
            self.send(OrderMessage(loader=step.loader.number, epoch=step.epoch, order=step.order))
        self._order = (step.loader.number, step.epoch)

    def repeat_commit(self) -> None:
        """After a rescue, since the worker that had to report the last commit may have died."""
        if self.last_commit is not None and self._membership.first_of_agent:
            self.send(self.last_commit)

    def evaluated(self) -> None:
        """A step of an evaluation is over."""
        self._step_ended()

    def epoch_done(self, loader: Loader) -> None:
        """A training loader has given all steps of an epoch."""
        self.send(EpochEnd(epoch=loader.epoch, loader=loader.number))

    def swept(self, loader: Loader) -> None:
        """An evaluation is over."""
        if self._membership.first_of_agent:
            self.send(
                Evaluation(
                    loader=loader.number,
                    epoch=self._position.epoch or 0,
                    step=self._position.step,
                    samples=loader.source.size,
                    metrics=loader.metrics,
                )
            )


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
        self._reporter.send(JournalReport(step=step.index, of="job", metrics=metrics))


def document(planning: BatchController, step: Step, *, workers: int, epochs: int | None) -> JsonObject:
    """The application metrics after a step."""
    loader = step.loader
    noise, fitted = planning.noise, planning.speed.fitted
    reference = planning.rate.reference if planning.rate is not None else loader.batch
    phi, pair = (noise.scale, noise.pair()) if noise is not None else (None, None)
    total, left = planning.breakdown.get("total", 0.0), left_of(step, epochs=epochs)
    speed = step.count / total if total else 0.0
    share = efficiency(phi, batch=step.count, reference=reference) if phi is not None else 1.0
    batches = range_of(planning.policy(loader), batch=loader.batch, reference=reference, slices=loader.slices)
    allowed: JsonObject = {
        "initial": batches.initial,
        "most": batches.most,
        "fixed": batches.fixed,
        "per_worker": batches.per_worker,
    }
    noise_terms = {} if pair is None else {"grad_sqr": pair[0], "grad_var": pair[1] / batches.initial}
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
        "range": allowed,
        "samples_per_s": round(speed, 3),
        "efficiency": round(share, 6),
        "goodput": round(speed * share, 3),
        "step_s": {name: round(value, 6) for name, value in planning.breakdown.items()},
        "noise_scale": phi,
        "noise": None
        if noise is None or not noise_terms
        else {"scale": phi, **noise_terms, "measured": noise.count, "ignored": noise.ignored},
        "throughput": None
        if fitted is None
        else {**asdict(fitted.model), "confidence": round(fitted.confidence, 4), "observations": len(planning.speed.observations)},
        "model": None
        if fitted is None or not noise_terms
        else {"throughput": asdict(fitted.model), **noise_terms, "batch": {**allowed, "slices": loader.slices}},
        "skipped": planning.skipped,
        "remaining": None if left is None else {"samples": left, "seconds": round(left / speed, 3) if speed else None},
    }


def reported(metrics: Mapping[str, float]) -> dict[str, float]:
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


def range_of(policy: Policy | None, *, batch: int, reference: int, slices: int) -> BatchRange:
    """What batches a policy allows."""
    match policy:
        case Adaptive(start=start, at_most=most):
            return BatchRange(start, most)
        case PerWorker(per_worker=per_worker, at_most=most):
            return BatchRange(per_worker, most or per_worker * slices, per_worker=per_worker)
        case _:
            return BatchRange(reference, max(batch, reference), fixed=batch)
