"""Watches optimizers through PyTorch's own hooks, and refuses mistakes before the step is applied.

Nothing is patched: `register_optimizer_step_pre_hook` and `register_optimizer_step_post_hook` see every `step` of every optimizer
in the process. They also count the steps of each shared optimizer between two exchanges, which workers compare.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stretto.core.errors import ScriptError
from stretto.train.sharing.shared_objects import PlainState
from stretto.train.sharing.torchmetrics_state import TorchMetrics

if TYPE_CHECKING:
    from stretto.train.reduce.gradients import Gradients
    from stretto.train.sharing.shared_objects import SharedObjects

PLAIN = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler, PlainState, TorchMetrics)
"""Types whose states are known to have no parameters or optimizers but their own."""


def check_shared(shared: SharedObjects) -> None:
    """Before training: refuses a job without a complete model, and optimizers that step anything else."""
    for name, module in shared.modules:
        if any(torch.nn.parameter.is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()]):
            raise ScriptError(
                f"job.share({name}=…) has lazy parameters whose shapes are not known yet: run one batch through the "
                f"model before job.share, for instance `{name}(torch.zeros(1, …))`"
            )
    if not shared.parameters():
        raise ScriptError(
            "the job shares no parameter that is trained, so every worker would train a model of its own: call "
            "job.share(model=model, optimizer=optimizer) before the first `for step in data`"
        )
    if _wrapped(shared):
        return
    owned = {parameter for _, module in shared.modules for parameter in module.parameters()}
    for name, optimizer in shared.objects.items():
        if isinstance(optimizer, torch.optim.Optimizer):
            for parameter in _stepped(optimizer):
                if parameter not in owned:
                    raise ScriptError(
                        f"job.share({name}=…) steps a parameter of shape {tuple(parameter.shape)} that is in no "
                        "shared module, so newcomers would not get it: give its module to job.share as well; a "
                        "parameter in no module at all goes into torch.nn.ParameterList([parameter])"
                    )


@dataclass(slots=True)
class UsedGradient:
    """A gradient that optimizers have stepped with."""

    gradient: weakref.ref[torch.Tensor]
    version: int
    optimizers: set[int] = field(default_factory=set[int])
    stale: bool = False
    """A later pass was added on top of it."""

    def is_still(self, gradient: torch.Tensor | None) -> bool:
        """Whether this is that gradient, unchanged since the optimizer's step."""
        return gradient is not None and self.gradient() is gradient and self.version == gradient._version


class OptimizerHooks:
    """Watches the optimizers of one job, from its admission to its end."""

    def __init__(self, shared: SharedObjects) -> None:
        self._shared = shared
        self._names = {
            id(optimizer): name for name, optimizer in shared.objects.items() if isinstance(optimizer, torch.optim.Optimizer)
        }
        self._parameters: set[torch.Tensor] = set(shared.all_parameters())
        self._used: dict[torch.Tensor, UsedGradient] = {}
        self.gradients: Gradients | None = None
        """The gradients of the pass at hand."""
        self.steps: dict[str, int] = {}
        """Steps of each shared optimizer since the last exchange."""
        self._handles = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()

    # ---- passes

    def begin_pass(self) -> None:
        """Before a pass takes the gradients away: keeps only those that were used and have not changed since."""
        self._used = {parameter: used for parameter, used in self._used.items() if used.is_still(parameter.grad)}

    def end_pass(self) -> None:
        """After a pass: gradients that had been used and were not zeroed now have a new one on top."""
        self.steps = {}
        for parameter, used in self._used.items():
            gradient = parameter.grad
            if gradient is not None and used.gradient() is gradient and gradient._version != used.version:
                used.stale, used.version = True, gradient._version

    def pending(self) -> list[tuple[int, torch.Tensor]]:
        """Gradients that no optimizer has used yet, by the parameter's place: newcomers and checkpoints need them."""
        gradients: list[tuple[int, torch.Tensor]] = []
        for place, parameter in enumerate(self._shared.all_parameters()):
            used = self._used.get(parameter)
            if parameter.grad is not None and (used is None or not used.is_still(parameter.grad)):
                gradients.append((place, parameter.grad))
        return gradients

    # ---- what PyTorch calls

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        parameters = [p for p in _stepped(optimizer) if p in self._parameters]
        if not parameters:
            return
        kind = type(optimizer).__name__
        if self.gradients is not None and self.gradients.inside:
            raise ScriptError(
                f"{kind}.step() was called inside the loop over the slices: there the gradients are those of one "
                "slice on one worker; call it after the loop, once for every step"
            )
        if any(callable(argument) for argument in (*args[1:], kwargs.get("closure"))):
            raise ScriptError(
                f"{kind}.step(closure) computes losses by itself, outside the loop over the slices, on this worker "
                "alone: use an optimizer that steps without a closure"
            )
        if id(optimizer) not in self._names and not _wrapped(self._shared):
            raise ScriptError(
                f"an optimizer ({kind}) steps shared parameters and is not shared itself, so newcomers would go on "
                "without its state: give it to job.share(optimizer=…) as well"
            )
        self._check_zeroed(optimizer, parameters)

    def _check_zeroed(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            used = self._used.get(parameter)
            if used is not None and used.stale and id(optimizer) in used.optimizers and used.gradient() is parameter.grad:
                name = self._names.get(id(optimizer), "optimizer")
                raise ScriptError(
                    f"{name}.step() would use the gradients of its last step again: they were not set to zero, so "
                    f"new ones were added to them, as PyTorch does; add `{name}.zero_grad()` after `{name}.step()`, "
                    "outside the loop over the slices"
                )

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        name = self._names.get(id(optimizer))
        if name is not None:
            self.steps[name] = self.steps.get(name, 0) + 1
        for parameter in _stepped(optimizer):
            gradient = parameter.grad
            if gradient is None or parameter not in self._parameters:
                continue
            used = self._used.get(parameter)
            if used is None or not used.is_still(gradient):
                used = self._used[parameter] = UsedGradient(weakref.ref(gradient), gradient._version)
            used.optimizers.add(id(optimizer))


def _wrapped(shared: SharedObjects) -> bool:
    """Whether some object's state may include the parameters or the optimizer's state: a wrapper of the script's own."""
    return any(not isinstance(shared_object, PLAIN) for shared_object in shared.objects.values())


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
