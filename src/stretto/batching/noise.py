"""The gradient noise scale, from the slices that every step has anyway.

With g_i the mean gradient of slice i over b_i samples and g their mean over all B samples,
    E|g_i|² = |G|² + trΣ/b_i        E|g|² = |G|² + trΣ/B,
two equations for the two unknowns (McCandlish et al., arXiv 1812.06162, appendix A.1), on one worker as on many. The
inputs are one number a slice and one for the mean, taken in the order of the slices: the estimate is the same on any
roster. Norms stay on their device until the caller reads them together with the step's exchange, and nothing gradient-
sized is copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_foreach_norm = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]

CHUNK = 1 << 18
"""Elements summed in one fp32 reduction: at 2**20 its error is 2e-5, at 25 million 3e-3. Chunks are added in fp64, and small
enough for the buffer of a preconditioned one to stay in the cache."""
LIMIT = 100.0
"""The noise scale is at most this many times the batch that it was measured with: beyond that a gradient cannot be told from none,
and its estimate may come out as zero or below."""
RIPE = 10
"""Steps of an adaptive optimizer before its second moments are good enough to divide by."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is measured: all slices of the first steps, then two slices of every k-th. A function of the step, so alike everywhere.

    Two slices are enough: what is uncertain is the norm of the mean, not that of a slice. They lie half a batch apart, so that on
    two workers each has one, and move on from time to time.
    """

    every: int = 16
    first: int = 50

    def includes(self, step: int) -> bool:
        return step < self.first or step % self.every == 0

    def slices(self, step: int, slices: int) -> frozenset[int]:
        """The slices that are measured in an included step."""
        if step < self.first or slices <= 2:
            return frozenset(range(slices))
        half = slices // 2
        place = step // self.every % half
        return frozenset((place, place + half))


class Norms:
    """Squared norms of the gradients of some optimizers, one number a parameter group; preconditioned for Adam and its
    kin."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self._scratch: dict[torch.device, Tensor] = {}
        self._ripe = False
        self._homes: dict[Tensor, tuple[int, Optimizer, dict[str, Any]]] = {}
        groups = ((optimizer, group) for optimizer in optimizers for group in optimizer.param_groups)
        for place, (optimizer, group) in enumerate(groups):
            for param in group["params"]:
                self._homes.setdefault(param, (place, optimizer, group))

    @property
    def groups(self) -> int:
        return sum(len(optimizer.param_groups) for optimizer in self._optimizers)

    def ripe(self) -> bool:
        """False while an adaptive optimizer has no second moments worth dividing by."""
        if not self._ripe:
            self._ripe = all(_age(one) >= RIPE for one in self._optimizers if preconditions(one))
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
        found = self._homes.get(param)
        if found is None:
            return []
        _, optimizer, group = found
        if preconditions(optimizer):
            return self._preconditioned(grad, optimizer.state[param], group)
        return [torch.linalg.vector_norm(chunk, dtype=_sum_type(chunk)) for chunk in _chunks(grad)]

    def group_of(self, param: Tensor) -> int:
        """The place of a parameter's group among all; -1 for a parameter of no optimizer."""
        found = self._homes.get(param)
        return -1 if found is None else found[0]

    def _group(self, optimizer: Optimizer, group: dict[str, Any]) -> Tensor | None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return None
        if preconditions(optimizer):
            norms = [norm for param in params
                     for norm in self._preconditioned(_dense(param.grad), optimizer.state[param], group)]
            return squares(norms) if norms else None
        return plain(tuple(_dense(param.grad) for param in params))

    def _preconditioned(self, whole: Tensor, state: dict[str, Any], group: dict[str, Any]) -> list[Tensor]:
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
            norms.append(torch.linalg.vector_norm(denominator))
        return norms

    def _buffer(self, device: torch.device) -> Tensor:
        if device not in self._scratch:
            self._scratch[device] = torch.empty(CHUNK, dtype=torch.float32, device=device)
        return self._scratch[device]


@torch.no_grad()
def plain(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares over all tensors in fp64, as a 0-dim tensor on their device. No synchronisation, no copy."""
    views = [chunk for tensor in tensors for chunk in _chunks(tensor)]
    exact = all(_sum_type(view) is None for view in views)
    return squares(_foreach_norm(views) if exact else _foreach_norm(views, 2, dtype=torch.float32))


def squares(norms: Sequence[Tensor]) -> Tensor:
    """The sum of the squares of 0-dim norms, in fp64."""
    return torch.stack(list(norms)).to(torch.float64).square().sum()


def preconditions(optimizer: Optimizer) -> bool:
    """Whether this optimizer divides by the root of second moments: then that gradient's noise is the one that
    matters."""
    return any("betas" in group and "eps" in group for group in optimizer.param_groups)


def moments(norms: Sequence[float], *, mean: float, sizes: Sequence[int], batch: int | None = None) -> tuple[float, float]:
    """Unbiased (|G|², trΣ) of one step from squared norms of slices, that of the mean over the batch, and the slices' sizes.

    The slices count by their samples, as they do in the mean. Empty ones are left out; where only some slices were measured,
    `batch` has the samples of all.
    """
    pairs = [(norm, size) for norm, size in zip(norms, sizes, strict=True) if size > 0]
    seen = sum(size for _, size in pairs)
    batch = batch or seen
    if not pairs or len(pairs) * batch <= seen:
        raise ValueError(f"{len(pairs)} slices of {batch} samples: the noise scale needs slices smaller than the batch")
    single = sum(norm * size for norm, size in pairs) / seen
    small, large = len(pairs) / seen, 1.0 / batch
    return (single * -large + mean * small) / (small - large), (single - mean) / (small - large)


class NoiseScale:
    """Moving averages of |G|² and trΣ, a pair for each parameter group. Plain floats, so that it can be shared and
    saved."""

    def __init__(self, groups: int, *, halflife: float = 30.0) -> None:
        self._keep = 0.5 ** (1.0 / halflife)
        self._weight = 0.0
        self._signal = [0.0] * groups
        self._noise = [0.0] * groups
        self._batch = 0.0
        self.count = 0
        """Steps measured."""
        self.ignored = 0
        """Steps with a NaN or an infinity."""

    def observe(self, norms: Sequence[Sequence[float]], *, mean: Sequence[float], sizes: Sequence[int],
                batch: int | None = None) -> bool:
        """One step: `norms[slice][group]` and `mean[group]`. False if it was ignored because not all numbers are finite.

        `batch` is needed where not all slices were measured.
        """
        filled = [row for row, size in zip(norms, sizes, strict=True) if size > 0]
        finite = all(math.isfinite(norm) for row in (*filled, mean) for norm in row)
        if not finite:
            self.ignored += 1
            return False
        batch = batch or sum(sizes)
        if not filled or len(filled) * batch <= sum(sizes):
            return False
        keep = self._keep
        for group in range(len(self._signal)):
            signal, noise = moments([row[group] for row in norms], mean=mean[group], sizes=sizes, batch=batch)
            self._signal[group] = keep * self._signal[group] + (1 - keep) * signal
            self._noise[group] = keep * self._noise[group] + (1 - keep) * noise
        self._batch = keep * self._batch + (1 - keep) * batch
        self._weight = keep * self._weight + (1 - keep)
        self.count += 1
        return True

    def pair(self, group: int | None = None) -> tuple[float, float] | None:
        """(|G|², trΣ) of a group, or of all of them; None before the first measured step. Clipped after averaging."""
        if not self._weight:
            return None
        chosen = slice(None) if group is None else slice(group, group + 1)
        noise = max(0.0, sum(self._noise[chosen]) / self._weight)
        signal = sum(self._signal[chosen]) / self._weight
        return max(signal, noise * self._weight / (LIMIT * self._batch)), noise

    @property
    def scale(self) -> float | None:
        """The noise scale φ = trΣ/|G|² in samples; None before the first measured step."""
        pair = self.pair()
        if pair is None:
            return None
        signal, noise = pair
        return noise / signal if signal > 0 else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self._weight, "signal": list(self._signal), "noise": list(self._noise), "batch": self._batch,
                "count": self.count, "ignored": self.ignored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weight = float(state["weight"])
        self._signal = [float(value) for value in state["signal"]]
        self._noise = [float(value) for value in state["noise"]]
        self._batch = float(state["batch"])
        self.count = int(state["count"])
        self.ignored = int(state["ignored"])


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


def _second_moment(state: dict[str, Any]) -> Tensor | None:
    for name in ("max_exp_avg_sq", "exp_avg_sq"):
        if name in state:
            return state[name]
    return None


def _bias_root(state: dict[str, Any], group: dict[str, Any]) -> Tensor | float:
    """√(1 - β2^t), as PyTorch's Adam corrects the second moment; a tensor where the step count is one."""
    step = state["step"]
    correction = 1 - group["betas"][1] ** step
    return correction.sqrt() if isinstance(correction, Tensor) else math.sqrt(correction)


def _age(optimizer: Optimizer) -> float:
    """The fewest steps that any parameter has been through."""
    steps = [state["step"] for state in optimizer.state.values() if "step" in state]
    return min((float(step) for step in steps), default=0.0)
