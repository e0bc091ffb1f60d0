"""Squared norms of gradients, of slices as backward produces them and of their mean: what the noise scale is estimated from.

An optimizer of Adam's kind follows the gradient divided by the root of its second moments, so that is the one that is measured.
Norms stay on their device until the caller reads them together with the step's exchange, and nothing gradient-sized is copied.
A *unit* is what one backward is made of: a slice, or a part of one where slices are accumulated from parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

_foreach_norm = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]

ParamGroup = dict[str, Any]
"""A parameter group of an optimizer, and below a parameter's state: torch leaves open what is in them."""
ParamState = dict[str, Any]

CHUNK = 1 << 18
"""Elements summed in one fp32 reduction: at 2**20 its error is 2e-5, at 25 million 3e-3. Chunks are added in fp64, and small
enough for the buffer of a preconditioned one to stay in the cache."""
RIPE = 10
"""Steps of an adaptive optimizer before its second moments are good enough to divide by."""


class GradNorms:
    """Squared norms of the gradients of some optimizers, one number a parameter group; preconditioned where the optimizer keeps
    second moments as Adam does. Of another that normalises (Adamax, RMSprop, Adagrad) it is the plain gradient."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self._scratch: dict[torch.device, Tensor] = {}
        self._ripe = False
        self._divide: set[Optimizer] = set()
        """Optimizers with second moments, known once all are ripe: of these a parameter that has none yet is not counted."""
        self._homes: dict[Tensor, tuple[int, Optimizer, ParamGroup]] = {}
        groups = ((optimizer, group) for optimizer in optimizers for group in optimizer.param_groups)
        for place, (optimizer, group) in enumerate(groups):
            for param in group["params"]:
                self._homes.setdefault(param, (place, optimizer, group))

    @property
    def groups(self) -> int:
        return sum(len(optimizer.param_groups) for optimizer in self._optimizers)

    def ripe(self) -> bool:
        """False while an adaptive optimizer has no second moments worth dividing by."""
        if not self._ripe and all(_ripe(optimizer) for optimizer in self._optimizers):
            self._ripe = True
            self._divide = {optimizer for optimizer in self._optimizers if _has_moments(optimizer)}
        return self._ripe

    @torch.no_grad()
    def squared(self, *, scale: Tensor | float = 1.0) -> Tensor:
        """|g|² of each group as it stands in `.grad`, in fp64 on the gradients' device; `scale` is the loss scale to
        undo."""
        rows = [self._group(optimizer, group) for optimizer in self._optimizers for group in optimizer.param_groups]
        device = next((row.device for row in rows if row is not None), torch.device("cpu"))
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return torch.stack([zero if row is None else row for row in rows]) / scale**2

    def of(self, param: Tensor, grad: Tensor) -> list[Tensor]:
        """Norms whose squares add up to |g|² of one parameter; 0-dim and on its device. For gradients as they are produced."""
        home = self._homes.get(param)
        if home is None:
            return []
        _, optimizer, group = home
        state = optimizer.state.get(param, {})
        if _second_moment(state) is not None:
            return self._preconditioned(grad, state, group)
        if optimizer in self._divide:
            return []
        return [torch.linalg.vector_norm(chunk, dtype=_sum_type(chunk)) for chunk in _chunks(grad)]

    def group_of(self, param: Tensor) -> int:
        """The place of a parameter's group among all; -1 for a parameter of no optimizer."""
        home = self._homes.get(param)
        return -1 if home is None else home[0]

    def _group(self, optimizer: Optimizer, group: ParamGroup) -> Tensor | None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return None
        states = [optimizer.state.get(param, {}) for param in params]
        if optimizer not in self._divide and not any(_second_moment(state) is not None for state in states):
            return plain(tuple(_dense(param.grad) for param in params))
        norms = [
            norm
            for param, state in zip(params, states, strict=True)
            for norm in self._preconditioned(_dense(param.grad), state, group)
        ]
        return squares(norms) if norms else None

    def _preconditioned(self, whole: Tensor, state: ParamState, group: ParamGroup) -> list[Tensor]:
        """Norms of g / (√v̂ + ε), a chunk at a time through one small buffer."""
        moment = _second_moment(state)
        if moment is None:
            return []
        grow = 1 / _bias_root(state, group)
        if whole.stride() != moment.stride():
            whole, moment = whole.reshape(-1), moment.reshape(-1)
        norms: list[Tensor] = []
        for grad, second in zip(_chunks(whole), _chunks(moment), strict=True):
            denominator = self._buffer(whole.device)[: grad.numel()]
            torch.sqrt(second, out=denominator)
            denominator.mul_(grow).add_(group["eps"])
            torch.div(grad, denominator, out=denominator)
            norms.append(cast("Tensor", torch.linalg.vector_norm(denominator)))
        return norms

    def _buffer(self, device: torch.device) -> Tensor:
        if device not in self._scratch:
            self._scratch[device] = torch.empty(CHUNK, dtype=torch.float32, device=device)
        return self._scratch[device]


class Meter:
    """Collects the gradient norms of one pass, unit by unit, while backward runs.

    A pass that is repeated starts afresh with `begin`. Nothing waits for the device before `rows`.
    """

    def __init__(self, norms: GradNorms) -> None:
        self.norms = norms
        self._units: dict[int, list[list[Tensor]]] = {}
        self._open: list[list[Tensor]] = []

    def begin(self) -> None:
        """A pass starts, possibly once more."""
        self._units = {}

    def enter(self, unit: int) -> None:
        self._open = self._units[unit] = [[] for _ in range(self.norms.groups)]

    @torch.no_grad()
    def take(self, gradient: Tensor, parameter: torch.nn.Parameter) -> None:
        """One parameter's gradient of the unit at hand. Launches kernels, waits for none."""
        group = self.norms.group_of(parameter)
        if group >= 0:
            self._open[group] += self.norms.of(parameter, gradient.detach())

    @torch.no_grad()
    def rows(self, scale: Tensor | float) -> dict[int, list[float]]:
        """|g|² by unit and group; the one point where the host reads what the device has computed."""
        if not self._units:
            return {}
        device = next((norm.device for unit in self._units.values() for norms in unit for norm in norms), None)
        zero = torch.zeros((), dtype=torch.float64, device=device)
        table = torch.stack([torch.stack([squares(norms) if norms else zero for norms in unit]) for unit in self._units.values()])
        rows = cast("list[list[float]]", (table / scale**2).tolist())
        return dict(zip(self._units, rows, strict=True))


@torch.no_grad()
def plain(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares over all tensors in fp64, as a 0-dim tensor on their device. No synchronisation, no copy."""
    views = [chunk for tensor in tensors for chunk in _chunks(tensor)]
    exact = all(_sum_type(view) is None for view in views)
    return squares(_foreach_norm(views) if exact else _foreach_norm(views, 2, dtype=torch.float32))


def squares(norms: Sequence[Tensor]) -> Tensor:
    """The sum of the squares of 0-dim norms, in fp64."""
    return torch.stack(list(norms)).to(torch.float64).square().sum()


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Flat views of at most `CHUNK` elements. Only a tensor that is not dense in memory has to be copied for it."""
    flat = tensor.as_strided((tensor.numel(),), (1,)) if _is_dense(tensor) else tensor.reshape(-1)
    yield from flat.split(CHUNK)


def _is_dense(tensor: Tensor) -> bool:
    """Contiguous in some order of its dimensions (channels-last weights too)."""
    return tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _sum_type(tensor: Tensor) -> torch.dtype | None:
    """None where the tensor's own precision will do."""
    return None if tensor.dtype in (torch.float32, torch.float64) else torch.float32


def _dense(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad.coalesce().values() if grad.is_sparse else grad


def _second_moment(state: ParamState) -> Tensor | None:
    for name in ("max_exp_avg_sq", "exp_avg_sq"):
        if name in state:
            return state[name]
    return None


def _bias_root(state: ParamState, group: ParamGroup) -> Tensor | float:
    """√(1 - β2^t), as PyTorch's Adam corrects the second moment; a tensor where the step count is one."""
    step = state.get("step")
    if step is None:  # an optimizer of the script's own that keeps no count: by now there is nothing left to correct
        return 1.0
    correction = 1 - group["betas"][1] ** step
    return correction.sqrt() if isinstance(correction, Tensor) else math.sqrt(correction)


def _has_moments(optimizer: Optimizer) -> bool:
    return any(_second_moment(state) is not None for state in optimizer.state.values())


def _ripe(optimizer: Optimizer) -> bool:
    """Whether its second moments are good enough to divide by, or it is known to have none."""
    if not any("betas" in group and "eps" in group for group in optimizer.param_groups):
        return True
    if not _has_moments(optimizer):
        return bool(optimizer.state)
    steps = [state["step"] for state in optimizer.state.values() if "step" in state]
    return min((float(step) for step in steps), default=float(RIPE)) >= RIPE
