"""The batch policy at work in a worker: the batch of the next step, and the measurements behind it.

Everything that the bits depend on (noise scale, progress, the plan's place) is shared state, so newcomers and checkpoints get it.
Measured seconds are not: they only decide what the chief writes into the plan, which all members then follow.
A job with a fixed batch and no learning-rate rule measures nothing and shares nothing.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.hooks import RemovableHandle

from stretto.batching.batch_policies import Adaptive, BatchDecision, Fixed, Policy, Situation, next_batch, parts_for
from stretto.batching.grad_norms import GradNorms, Meter
from stretto.batching.lr_rules import LrRule, rule_of
from stretto.batching.lr_scaling import LrScaling
from stretto.batching.noise_scale import NoiseScale, Sampling
from stretto.batching.recorded_batches import Replay
from stretto.batching.step_timing import RunConfig, StepTiming
from stretto.core.errors import ScriptError
from stretto.core.journal import JournalEvent, Plan
from stretto.train.position import Directives, Position
from stretto.train.reporting import BatchFields, left_of

if TYPE_CHECKING:
    from stretto.train.data.loader import Loader
    from stretto.train.data.step import Step
    from stretto.train.membership import Membership
    from stretto.train.reduce.reducer import Header, Reducer
    from stretto.train.reporting import AgentReporter
    from stretto.train.sharing.shared_objects import SharedObjects

NAME = "stretto.batching"


@dataclass(frozen=True, slots=True)
class BatchCarryover:
    """What a script that is started again in this process needs besides the shared state. By the loader's number."""

    parts: dict[int, int]
    room: dict[int, int | None]
    announced: dict[int, tuple[int, int]]
    speed: StepTiming


class BatchController:
    """Decides the batches of one job and measures what they are decided from. `start` is called once everything is shared."""

    def __init__(
        self, *, position: Position, membership: Membership, reporter: AgentReporter, shared: SharedObjects, loaders: list[Loader]
    ) -> None:
        self._position = position
        self._membership = membership
        self._reporter = reporter
        self._shared = shared
        self._loaders = loaders
        self._reducer: Reducer | None = None
        self.rule: LrRule | None = None
        self.rate: LrScaling | None = None
        self.noise: NoiseScale | None = None
        self.meter: Meter | None = None
        self.speed = StepTiming()
        self.skipped = 0
        """Steps that were not applied because of a NaN or an infinity in their gradient."""
        self._policies: dict[int, Policy] = {}
        self._since: dict[int, int] = {}
        self._largest: dict[int, int] = {}
        self._parts: dict[int, int] = {}
        self._room: dict[int, int | None] = {}
        self._decided: dict[int, BatchDecision] = {}
        self._announced: dict[int, tuple[int, int]] = {}
        self._measured = False
        self._chosen: frozenset[int] = frozenset()
        self._stride = 1
        self._finite = True
        """Whether the last pass's gradient is finite: the optimizer's step depends on it."""
        self._whole = True
        """Whether the gradients of all passes of this step are finite so far."""
        self._sampling = Sampling()
        self._replay: Replay | None = None
        self._handles: list[RemovableHandle] = []
        self._slice_s: dict[str, float] = {}
        self._spent = [0.0, 0, 0.0]
        self.breakdown: dict[str, float] = {}
        """Seconds of the last step."""

    @property
    def progress(self) -> float:
        return self.rate.progress if self.rate is not None else float(self._position.step)

    # ---- setting up

    def policy(self, loader: Loader) -> Policy | None:
        return self._policies.get(loader.number)

    def use(self, loader: Loader, policy: Policy) -> None:
        """Decides the batches of a training loader by this policy."""
        if not loader.train:
            return
        self._check_mean(loader, policy, self.rule)
        number = loader.number
        self._policies[number] = policy
        self._since[number], self._largest[number], self._parts[number], self._room[number] = 0, 0, 1, None

    def follow(self, lr_rule: LrRule) -> None:
        """Sets the rule of all optimizers: there is one batch, so there is one rule."""
        rule = rule_of(lr_rule)
        if self.rule is not None and rule != self.rule:
            raise ScriptError(
                f"lr_rule={rule!r} here and {self.rule!r} in an earlier job.share: a job has one rule, for all of its optimizers"
            )
        for loader in self._loaders:
            self._check_mean(loader, Fixed(loader.batch), rule)
        self.rule = rule

    def _check_mean(self, loader: Loader, policy: Policy, rule: LrRule | None) -> None:
        """The noise scale, and all that follows it, is that of a mean: a sum's gradient grows with the batch."""
        if loader.reduction == "mean" or (isinstance(policy, Fixed) and rule is None):
            return
        argument = f"lr_rule={rule!r}" if rule is not None else f"batch_size={policy!r}"
        raise ScriptError(
            f"reduction='sum' and {argument}: the noise scale and the learning rate's rules are those of a mean, and a "
            "sum grows with the batch; let the loss be a mean (reduction='mean'), or keep a fixed batch without "
            "a rule"
        )

    def identity(self) -> dict[str, str]:
        """Policies and rule as the script gave them, for checkpoints. A fixed batch is in the loader's description."""
        policies = {f"loader {number}": repr(policy) for number, policy in sorted(self._policies.items())}
        return {**policies, "lr_rule": type(self.rule).__name__} if self.active else {}

    @property
    def active(self) -> bool:
        return self.rule is not None or any(not isinstance(policy, Fixed) for policy in self._policies.values())

    def start(self, reducer: Reducer, *, replay: str | None) -> None:
        """Everything is shared and no state has come yet. `replay` is a file in the run's folder with the batches to repeat."""
        self._reducer = reducer
        if replay:
            with open(os.path.join(os.environ.get("STRETTO_RUN", ""), replay), encoding="utf-8") as file:
                self._replay = Replay.read(json.load(file)["plan"])
        if not self.active:
            return
        optimizers = self._shared.optimizers
        if not optimizers:
            self._check_without_optimizer()
        norms = GradNorms(optimizers)
        self.meter = Meter(norms) if optimizers else None
        self.noise = NoiseScale(norms.groups)
        reference = next(iter(self._policies.values())).reference
        for optimizer in optimizers:  # before the rule's own hooks, so that a step without gradients is not scaled
            self._handles.append(optimizer.register_step_pre_hook(self._guard))
        self.rate = LrScaling(self.rule, optimizers, reference=reference, noise=self.noise)
        reducer.watch = True
        self._shared.add({NAME: self})

    def close(self) -> None:
        """Takes the hooks off, and waits for a fit under way."""
        for handle in self._handles:
            handle.remove()
        if self.rate is not None:
            self.rate.detach()
        self.speed.join()

    def _check_without_optimizer(self) -> None:
        adaptive = next((policy for policy in self._policies.values() if isinstance(policy, Adaptive)), None)
        if self.rule is None and adaptive is None:
            return
        argument = f"lr_rule={self.rule!r}" if self.rule is not None else f"batch_size={adaptive!r}"
        raise ScriptError(
            f"{argument} follows the gradients of an optimizer and none is shared: pass it to job.share(model=..., optimizer=...)"
        )

    def state_dict(self) -> dict[str, object]:
        assert self.noise is not None and self.rate is not None
        numbers = sorted(self._policies)
        return {
            "noise": self.noise.state_dict(),
            "rate": self.rate.state_dict(),
            "skipped": self.skipped,
            "loaders": [[k, self._since[k], self._largest[k], self._parts[k], self._room[k]] for k in numbers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self.noise is not None and self.rate is not None
        self.noise.load_state_dict(state["noise"])
        self.rate.load_state_dict(state["rate"])
        self.skipped = int(state["skipped"])
        for number, since, largest, parts, room in state["loaders"]:
            self._since[number], self._largest[number], self._parts[number] = since, largest, parts
            self._room[number] = room

    # ---- the next step's batch

    def apply(self, loader: Loader) -> None:
        """At a boundary, on every worker alike: the loader's next step gets its batch."""
        policy = self._policies.get(loader.number)
        if policy is None:
            return
        decision, before = self._decide(loader, policy), loader.batch
        loader.position.batch = decision.batch
        parts = decision.parts if self._replay is None else self._replayed_parts(loader, decision.parts)
        if decision.batch != before or parts != self._parts[loader.number]:
            self._since[loader.number] = 0
        self._parts[loader.number] = parts
        if self.rate is not None:
            self.rate.begin(decision.batch)
        self._announce(loader, decision)

    def _decide(self, loader: Loader, policy: Policy) -> BatchDecision:
        number = loader.number
        if self._replay is not None:
            line = self._replay.at(self._position.step, loader=number)
            if line is not None:
                return BatchDecision(line.batch, line.parts, "replayed")
        if isinstance(policy, Adaptive):
            decided = self._decided.pop(number, None)
            parts = parts_for(loader.batch, slices=loader.slices, room=self._room[number])
            return decided or BatchDecision(loader.batch, parts, "start" if loader.batch == policy.start else "as it was")
        return next_batch(
            policy,
            Situation(workers=self._membership.size, slices=loader.slices, samples=loader.source.size, room=self._room[number]),
        )

    def _replayed_parts(self, loader: Loader, parts: int) -> int:
        """The parts of a replayed step. Where they are more than memory is known to need, the recorded run ran out of memory in
        this step: the state, and so its digest, learns this here as it did there."""
        number, count = loader.number, loader.next_count()
        if parts <= parts_for(loader.batch, slices=loader.slices, room=self._room[number]):
            return parts
        if not count:  # that step is the next epoch's first
            return self._parts[number]
        self._limit(number, count=count, slices=loader.slices, parts=parts)
        return parts

    def _announce(self, loader: Loader, decision: BatchDecision) -> None:
        plan = (decision.batch, decision.parts)
        if self._announced.get(loader.number) == plan:
            return
        first = loader.number not in self._announced
        self._announced[loader.number] = plan
        if not self._membership.chief or (first and isinstance(self._policies[loader.number], Fixed) and decision.parts == 1):
            return
        factor = self.rate.settled() if self.rate is not None else 1.0
        self._reporter.send(
            Plan(
                step=self._position.step,
                loader=loader.number,
                batch=decision.batch,
                parts=decision.parts,
                factor=round(factor, 6),
                reason=decision.reason,
            )
        )

    def directive(self) -> Directives:
        """The chief decides for the next boundary what depends on measured times."""
        if self.rate is None or self._replay is not None:
            return Directives()
        plans: dict[str, list[int | str]] = {}
        for loader in self._loaders:
            policy = self._policies.get(loader.number)
            if isinstance(policy, Adaptive):
                decision = next_batch(policy, self._situation(loader))
                if (decision.batch, decision.parts) != (loader.batch, self._parts[loader.number]):
                    plans[str(loader.number)] = [decision.batch, decision.parts, decision.reason]
        return Directives(plan=plans) if plans else Directives()

    def follow_directive(self, directives: Directives) -> None:
        """At the boundary, on every worker: what the chief decided there."""
        for number, (batch, parts, reason) in directives.get("plan", {}).items():
            self._decided[int(number)] = BatchDecision(int(batch), int(parts), str(reason))

    def _situation(self, loader: Loader) -> Situation:
        number, noise = loader.number, self.noise
        ripe = noise is not None and noise.count >= 10
        return Situation(
            workers=self._membership.size,
            slices=loader.slices,
            samples=loader.source.size,
            batch=loader.batch,
            since=self._since[number],
            largest=self._largest[number],
            room=self._room[number],
            noise_scale=noise.scale if ripe and noise is not None else None,
            seconds=self.speed.seconds(nodes=self.nodes, workers=self._membership.size, slices=loader.slices),
        )

    @property
    def nodes(self) -> int:
        return len({member.agent for member in self._membership.roster.members})

    # ---- passes

    def parts(self, loader: Loader) -> int:
        return self._parts.get(loader.number, 1)

    def begin(self, step: Step) -> None:
        """A pass of a training step starts, possibly once more."""
        self._spent = [0.0, 0, time.monotonic()]
        gradients = self._reducer.gradients if self._reducer is not None else None
        self._chosen = self._sampling.slices(step.index, step.loader.slices)
        self._stride = step.parts
        self._measured = (
            self.meter is not None
            and gradients is not None
            and step.passes == 0
            and self._sampling.includes(step.index)
            and self.meter.norms.ripe()
        )
        if gradients is not None:
            gradients.squares = None
        if self._measured and self.meter is not None:
            self.meter.begin()

    def enter(self, unit: int) -> None:
        """A slice, or a part of one, is about to be computed."""
        gradients = self._reducer.gradients if self._reducer is not None else None
        if not self._measured or self.meter is None or gradients is None:
            return
        chosen = unit // self._stride in self._chosen
        gradients.squares = self.meter.take if chosen else None
        if chosen:
            self.meter.enter(unit)

    def computed(self, seconds: float, *, slices: float) -> None:
        self._spent[0] += seconds
        self._spent[1] += slices

    def fill(self, header: Header) -> None:
        """Adds this worker's measurements to its header."""
        header.spent = [round(self._spent[0], 6), self._spent[1]]
        if self._measured and self.meter is not None:
            header.norms = {str(unit): row for unit, row in self.meter.rows(self._loss_scale()).items()}

    def exchanged(self, step: Step, headers: list[Header]) -> None:
        """The pass has happened: its gradient is there. Before anything is clipped or stepped."""
        self._slice_s = {
            name: header.spent[0] / header.spent[1]
            for name, header in zip(self._membership.roster.workers, headers, strict=True)
            if header.spent and header.spent[1]
        }
        self._finite = all(header.finite for header in headers)
        self._whole = self._finite and (self._whole or step.passes == 0)
        if self._measured and self.meter is not None and self.noise is not None:
            mean = cast("list[float]", self.meter.norms.squared(scale=self._loss_scale()).tolist())
            rows = {int(unit): row for header in headers for unit, row in header.norms.items()}
            sizes = step.units()
            units = sorted(rows)
            self.noise.observe([rows[unit] for unit in units], mean=mean, sizes=[sizes[unit] for unit in units], batch=step.count)

    def _guard(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """A step whose gradient is not finite changes nothing, as a GradScaler would have it."""
        if self._finite:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _loss_scale(self) -> torch.Tensor | float:
        """The factor that a shared GradScaler has put on the loss; read on its device."""
        for shared_object in self._shared.objects.values():
            if isinstance(shared_object, torch.amp.GradScaler) and shared_object.is_enabled():
                scale = shared_object._scale
                return 1.0 if scale is None else scale.double()
        return 1.0

    def committed(self, step: Step, *, step_s: float) -> BatchFields:
        """The step is over. Returns what its commit says about the batch."""
        number = step.loader.number
        if not self._whole:
            self.skipped += 1
            if self._membership.chief:
                self._reporter.send(
                    JournalEvent(
                        what="skipped",
                        text=f"step {step.index} was not applied: its gradient has a NaN or an infinity ({self.skipped} so far)",
                    )
                )
        if number in self._policies:
            self._since[number] += 1
            self._largest[number] = max(self._largest[number], step.count)
        if self.rate is not None:
            self.rate.committed(epochs=step.count / step.loader.source.size, applied=self._whole)
        self._time(step, step_s)
        fields = BatchFields(parts=step.parts, left=left_of(step, epochs=self._position.epochs))
        if self._slice_s:
            fields["slice_s"] = {name: round(seconds, 6) for name, seconds in self._slice_s.items()}
        return fields

    def _time(self, step: Step, step_s: float) -> None:
        """Adds the step to what the throughput model is fitted to. The first of a roster or a batch are not typical."""
        if not self._slice_s or self._spent[1] == 0 or step.passes != 1:
            return
        compute = self._spent[0]
        self.breakdown = {"total": step_s, "compute": compute, "other": max(0.0, step_s - compute)}
        if not self.active or self._since.get(step.loader.number, 0) < 3:
            return
        rounds = -(-step.loader.slices // self._membership.size) * step.parts
        grad_s = max(self._slice_s.values()) / step.parts
        config = RunConfig(self.nodes, self._membership.size, -(-step.count // (step.loader.slices * step.parts)))
        self.speed.observe(config, grad_s=grad_s, step_s=step_s - (rounds - 1) * grad_s)
        if self._membership.chief:
            self.speed.refit()

    # ---- memory

    def out_of_memory(self, step: Step) -> None:
        """A unit of this step did not fit: units get smaller, here now and everywhere with the next exchange."""
        self.agree(step, 2 * step.parts)

    def agree(self, step: Step, parts: int) -> None:
        """All workers cut the slices of this step, and of later ones, into this number of parts at least."""
        number = step.loader.number
        part = -(-step.count // step.loader.slices)
        if part <= 1 and parts > 1 and step.parts >= part:
            return
        step.parts = min(parts, part)
        self._limit(number, count=step.count, slices=step.loader.slices, parts=step.parts)
        self._announce(
            step.loader,
            BatchDecision(step.loader.batch, step.parts, f"out of memory: at most {self._room[number]} samples at a time"),
        )

    def _limit(self, number: int, *, count: int, slices: int, parts: int) -> None:
        """From now on one of `parts` parts of a slice is computed at a time; a slice is a `slices`th of `count` samples."""
        part = -(-count // slices)
        self._parts[number], self._room[number] = parts, -(-part // parts)

    def carryover(self) -> BatchCarryover:
        return BatchCarryover(dict(self._parts), dict(self._room), dict(self._announced), self.speed)

    def carry_on(self, carried: BatchCarryover) -> None:
        self._parts.update(carried.parts)
        self._room.update(carried.room)
        self._announced.update(carried.announced)
        self.speed = carried.speed
