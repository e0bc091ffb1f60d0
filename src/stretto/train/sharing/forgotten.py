"""What a script has forgotten to share, said before it costs the promises: nothing would fail, and the bits would be others."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from stretto.core.errors import ScriptError
from stretto.train.sharing.shared import Shared

PLAIN = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
"""Kinds of objects that are known to hold no parameters or optimizers in their states beside their own."""


def check_shared(shared: Shared) -> None:
    """Before training: there is a model, and what its optimizers step is in it."""
    if not shared.parameters():
        raise ScriptError("the job shares no parameter that is trained, so every worker would train a model of its own: call "
                          "job.share(model=model, optimizer=optimizer) before the first `for step in data`")
    if _wrapped(shared):
        return
    held = {parameter for _, module in shared.modules for parameter in module.parameters()}
    for name, optimizer in shared.objects.items():
        if isinstance(optimizer, torch.optim.Optimizer):
            for parameter in _stepped(optimizer):
                if parameter not in held:
                    raise ScriptError(f"job.share({name}=…) steps a parameter of shape {tuple(parameter.shape)} that is in no "
                                      "shared module, so newcomers would not get it: give its module to job.share as well")


class Forgotten:
    """Listens to torch's optimizers: one that steps shared parameters and keeps a state has to be shared too."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._known = {id(optimizer) for optimizer in shared.optimizers}
        self._parameters = set(shared.parameters())
        self._handle = register_optimizer_step_post_hook(self._after)

    def close(self) -> None:
        self._handle.remove()

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) in self._known or _wrapped(self._shared):
            return
        self._known.add(id(optimizer))
        if any(parameter in self._parameters and optimizer.state.get(parameter) for parameter in _stepped(optimizer)):
            raise ScriptError(f"an optimizer ({type(optimizer).__name__}) steps shared parameters and is not shared itself, so "
                              "newcomers would go on without its state: give it to job.share(optimizer=…) as well")


def _wrapped(shared: Shared) -> bool:
    """Whether some object's state may hold the parameters or the optimizer's state: a wrapper of the script's own."""
    return any(not isinstance(one, PLAIN) for one in shared.objects.values())


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
