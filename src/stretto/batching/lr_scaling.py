"""Rules at work: PyTorch's own optimizer step hooks multiply each group's learning rate and put back what the user set.

Between steps the optimizer always shows the user's rate, so schedulers, loggers and checkpoints see nothing of this.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from stretto.batching.grad_norms import ParamGroup
from stretto.batching.lr_rules import LEGW, AdaScale, LinearScale, LrRule, Moment, SqrtScale, gain
from stretto.batching.noise_scale import NoiseScale

Rate = float | torch.Tensor
StepHook = Callable[[Optimizer, object, object], None]


class RuleWarning(UserWarning):
    """A rule with an optimizer that it is not made for."""


class LrScaling:
    """One rule on some optimizers. Holds the step's batch and scale-invariant progress; state is plain values."""

    def __init__(
        self, rule: LrRule | None, optimizers: Sequence[Optimizer], *, reference: int, noise: NoiseScale | None = None
    ) -> None:
        self.rule = rule
        self.reference = reference if rule is None or rule.reference is None else rule.reference
        self.progress = 0.0
        """Steps of the reference batch that the steps so far are worth."""
        self._optimizers = tuple(optimizers)
        self._noise = noise
        self._batch = self.reference
        self._before = 1.0
        self._since = 1 << 30
        self._warmed = 0.0
        self._set: dict[tuple[int, int], tuple[Rate, Rate]] = {}
        """Of each group during a step: what the user had, and what the hook made of it."""
        self._handles: list[RemovableHandle] = []
        if rule is not None:
            self._attach(rule)

    def begin(self, batch: int) -> None:
        """The next step has this batch. Called once a step, before its gradients are used."""
        if batch != self._batch:
            self._before, self._since = self.factor(), 0
            self._batch = batch

    def committed(self, *, epochs: float = 0.0, applied: bool = True) -> None:
        """The step is done: `epochs` is the part of an epoch that it was. One that was not applied is no progress."""
        if applied:
            self.progress += self.gain
        self._since = min(self._since + 1, 1 << 30)
        if isinstance(self.rule, LEGW):
            self._warmed = min(1.0, self._warmed + self.rule.warms(epochs, scale=self._batch / self.reference))

    @property
    def gain(self) -> float:
        """Reference steps that the present step is worth."""
        pair = self._noise.pair() if self._noise is not None else None
        return gain(pair, batch=self._batch, reference=self.reference)

    def factor(self, group: int | None = None) -> float:
        """What the rule multiplies the rate of a group with, or of all of them, in this step."""
        if self.rule is None:
            return 1.0
        pair = self._noise.pair(group) if self._noise is not None else None
        if self._noise is not None and pair == (0.0, 0.0):  # never measured: of a pass after the first, as in a GAN
            pair = self._noise.pair()
        return self.rule.factor(
            Moment(self.reference, self._batch, before=self._before, since=self._since, warmed=self._warmed, pair=pair)
        )

    def settled(self) -> float:
        """The factor that the present batch will have once its ramp is over."""
        if self.rule is None:
            return 1.0
        pair = self._noise.pair() if self._noise is not None else None
        return self.rule.factor(Moment(self.reference, self._batch, pair=pair))

    def detach(self) -> None:
        """Takes the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def state_dict(self) -> dict[str, float]:
        return {
            "progress": self.progress,
            "batch": self._batch,
            "before": self._before,
            "since": self._since,
            "warmed": self._warmed,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.progress = float(state["progress"])
        self._batch = int(state["batch"])
        self._before = float(state["before"])
        self._since = int(state["since"])
        self._warmed = float(state["warmed"])

    def _attach(self, rule: LrRule) -> None:
        first = 0
        for place, optimizer in enumerate(self._optimizers):
            advice = unfit(rule, optimizer)
            if advice is not None:
                warnings.warn(advice, RuleWarning, stacklevel=_outside())
            self._handles.append(optimizer.register_step_pre_hook(self._scaler(place, first)))
            self._handles.append(optimizer.register_step_post_hook(self._restorer(place)))
            first += len(optimizer.param_groups)

    def _scaler(self, place: int, first: int) -> StepHook:
        def scale(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._restore(place, optimizer)
            for number, group in enumerate(optimizer.param_groups):
                user = group["lr"]
                made = user * self.factor(first + number)
                self._set[place, number] = (_keep(user), made)
                _put(group, made)

        return scale

    def _restorer(self, place: int) -> StepHook:
        def restore(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._restore(place, optimizer)

        return restore

    def _restore(self, place: int, optimizer: Optimizer) -> None:
        """Puts the user's rates back. After a step that raised it is the next one that does it, unless the script set
        another rate meanwhile."""
        for number, group in enumerate(optimizer.param_groups):
            user, made = self._set.pop((place, number), (None, None))
            if user is not None and (isinstance(user, torch.Tensor) or group["lr"] == made):
                _put(group, user)


def unfit(rule: LrRule, optimizer: Optimizer) -> str | None:
    """Why this rule is not made for this optimizer, and which one is; None if it is."""
    name = type(optimizer).__name__
    match rule:
        case AdaScale() | LinearScale() if normalises(optimizer):
            return (
                f"lr_rule={type(rule).__name__}() is made for SGD and {name} normalises its gradients: "
                "the rate will be too high for large batches; use stretto.SqrtScale()"
            )
        case SqrtScale() if isinstance(optimizer, SGD):
            return (
                f"lr_rule=SqrtScale() is made for Adam and AdamW, with {name} the rate will be too low "
                "for large batches; use stretto.AdaScale() or stretto.LinearScale()"
            )
        case _:
            return None


def normalises(optimizer: Optimizer) -> bool:
    """Whether its steps are of one size however large the gradient is: Adam and its kin, RMSprop, Adagrad, Lion."""
    return any("betas" in group or "eps" in group for group in optimizer.param_groups)


def _outside() -> int:
    """How many frames up the script is, so that a warning shows its line and not one of the library."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "stretto":
        frame, level = frame.f_back, level + 1
    return level


def _keep(rate: Rate) -> Rate:
    return rate.clone() if isinstance(rate, torch.Tensor) else rate


def _put(group: ParamGroup, rate: Rate) -> None:
    """In place where the rate is a tensor: captured graphs hold on to it."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].copy_(torch.as_tensor(rate))
    else:
        group["lr"] = rate
