"""What must be the same on every worker when an exchange begins, as short hashes that travel in its preamble.

Small things are compared in every exchange: how often each optimizer has stepped since the last one, the settings of its groups,
schedulers, counters, plain attributes of the modules (dropout rates, `training`). Parameters and optimizer states are compared in
turn, a 64th of their bytes in every exchange. A job of one worker compares nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from stretto.train.reduce.checksum import checksum

if TYPE_CHECKING:
    from stretto.train.sharing.optimizer_hooks import OptimizerHooks
    from stretto.train.sharing.shared import Shared

PARTS = 64
"""Exchanges until every byte was compared."""
SMALL_BYTES = 1 << 12
"""Tensors up to this size in the states of schedulers, counters and the like are compared every time."""
_SIMPLE = (bool, int, float, str, type(None))
_MASK = (1 << 64) - 1

STEPS = "steps of the optimizers"
SETTINGS = "settings of the optimizers"
STATE = "shared state"
ATTRIBUTES = "attributes of the modules"
SAMPLES = "order of the samples"
DATASET = "what the script has changed in the dataset"
TENSORS = "shared tensors"


class Consistency:
    """The checks of one job."""

    def __init__(self, shared: Shared, hooks: OptimizerHooks) -> None:
        self._shared = shared
        self._hooks = hooks
        self._changes: dict[str, str] = {}

    def checks(self, *, part: int, order: str, changes: dict[str, str]) -> dict[str, str]:
        """One hash for each kind of thing. `part` is the part of the tensors' bytes whose turn it is."""
        self._changes = changes
        found = {name: _hash(tell()) for name, tell in self._small().items()}
        return {**found, SAMPLES: order, TENSORS: f"{part % PARTS}:{self._sum(part % PARTS):x}"}

    def details(self, name: str, *, part: int) -> Any:
        """What a hash was made of, with names, for the message about a difference."""
        if name == TENSORS:
            return {path: f"{checksum(piece):x}" for path, piece in self._pieces(part % PARTS)}
        if name == ATTRIBUTES:
            return {f"{shared}.{path}" if path else shared: _attributes(module)
                    for shared, root in self._shared.modules for path, module in root.named_modules()}
        tell = self._small().get(name)
        return _plain(tell()) if tell is not None else None

    def _small(self) -> dict[str, Callable[[], Any]]:
        return {STEPS: lambda: self._hooks.steps, SETTINGS: self._settings, STATE: self._states, ATTRIBUTES: self._attributes,
                DATASET: lambda: self._changes}

    def _settings(self) -> dict[str, Any]:
        """Every entry of every parameter group but the parameters."""
        return {name: [{key: value if key != "params" else len(value) for key, value in group.items()}
                       for group in one.param_groups]
                for name, one in self._shared.objects.items() if isinstance(one, torch.optim.Optimizer)}

    def _states(self) -> dict[str, Any]:
        return {name: _plain(one.state_dict()) for name, one in self._shared.states.items()
                if not isinstance(one, torch.nn.Module | torch.optim.Optimizer)}

    def _attributes(self) -> list[Any]:
        return [[_attributes(module) for module in root.modules()] + [[p.requires_grad for p in root.parameters()]]
                for _, root in self._shared.modules]

    # ---- tensors, in turn

    def _tensors(self) -> Iterator[tuple[Callable[[], str], torch.Tensor]]:
        """Everything that newcomers would get, with functions that name it."""
        for shared, root in self._shared.modules:
            for path, module in root.named_modules():
                for key, tensor in module._parameters.items():
                    if tensor is not None:
                        yield lambda s=shared, p=path, k=key: ".".join(part for part in (s, p, k) if part), tensor
                for key, tensor in module._buffers.items():
                    if tensor is not None and key not in module._non_persistent_buffers_set:
                        yield lambda s=shared, p=path, k=key: ".".join(part for part in (s, p, k) if part), tensor
        for shared, one in self._shared.objects.items():
            if isinstance(one, torch.optim.Optimizer):
                for number, parameter in enumerate(p for group in one.param_groups for p in group["params"]):
                    for key, tensor in one.state.get(parameter, {}).items():
                        if isinstance(tensor, torch.Tensor):
                            yield lambda s=shared, n=number, k=key: f"{s}'s {k} of parameter {n}", tensor

    def _pieces(self, part: int) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((name(), piece) for name, piece in self._cut(part))

    def _cut(self, part: int) -> Iterator[tuple[Callable[[], str], torch.Tensor]]:
        """The tensors, or ranges of them, whose bytes fall into one of the equal parts."""
        tensors = list(self._tensors())
        total = sum(tensor.nbytes for _, tensor in tensors)
        low, high = total * part // PARTS, total * (part + 1) // PARTS
        begin = 0
        for name, tensor in tensors:
            end = begin + tensor.nbytes
            if end > low and begin < high and tensor.nbytes:
                if tensor.is_contiguous():
                    width = tensor.element_size()
                    first, last = max(low - begin, 0) // width, -(-(min(high, end) - begin) // width)
                    yield name, tensor.detach().view(-1)[first:last]
                elif begin >= low:
                    yield name, tensor.detach()
            begin = end

    def _sum(self, part: int) -> int:
        total = 0
        for _, piece in self._cut(part):
            total = (total * 1_000_003 + checksum(piece)) & _MASK
        return total


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Plain values that a module keeps beside its tensors."""
    return {key: value for key, value in module.__dict__.items() if type(value) in _SIMPLE and not key.startswith("_")}


def _hash(value: Any) -> str:
    """Equal for equal values, whatever the order of keys: a state that was loaded may have another."""
    return hashlib.blake2b(json.dumps(value, default=_plain, sort_keys=True).encode(), digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    """A value as plain JSON: small tensors as their contents, what cannot be compared by its kind."""
    if isinstance(value, dict):
        return {str(key): _plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, torch.Tensor):
        small = value.nbytes <= SMALL_BYTES and value.layout is torch.strided
        return value.detach().flatten().tolist() if small else [str(value.dtype), *value.shape]
    return f"a {type(value).__name__}"
