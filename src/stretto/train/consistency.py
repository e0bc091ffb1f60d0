"""What must be the same on every worker when an exchange begins, as short hashes that travel in its preamble.

Small things are compared in every exchange: how often each optimizer has stepped since the last one, the settings of its groups,
schedulers, counters, plain attributes of the modules (dropout rates, `training`). Parameters and optimizer states are compared in
turn, a 64th of their bytes in every exchange. A job of one worker compares nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, cast

import torch

from stretto.core.errors import Broken, ScriptError
from stretto.train.membership import Membership, Misplaced
from stretto.train.position import Position
from stretto.train.reduce.buffers import modules_of
from stretto.train.reduce.preamble import Place, Preamble, first_difference, judge, places_text
from stretto.train.reduce.tree_allreduce import TreeAllreduce
from stretto.train.script_checks.variables import suspects

if TYPE_CHECKING:
    from stretto.train.sharing.optimizer_hooks import OptimizerHooks
    from stretto.train.sharing.shared_objects import SharedObjects
    from stretto.train.state_sync import StateSync

PARTS = 64
"""Exchanges until every byte was compared."""
SMALL_BYTES = 1 << 12
"""Tensors up to this size in the states of schedulers, counters and the like are compared every time."""
LONG, END = 256, 64
"""Of a list with more entries, the length and the last ones are compared: a history grows with every step."""
_SIMPLE = (bool, int, float, str, type(None))
_MASK = (1 << 64) - 1

STEPS = "steps of the optimizers"
SETTINGS = "settings of the optimizers"
STATE = "shared state"
ATTRIBUTES = "attributes of the modules"
SET_AGAIN = "Set it from the epoch or from job.step every time, not once, or keep it in shared state"
SAMPLES = "order of the samples"
DATASET = "what the script has changed in the dataset"
TENSORS = "shared tensors"


_INTEGERS = {
    1: (torch.uint8, torch.int32),
    2: (torch.int16, torch.int32),
    4: (torch.int32, torch.int32),
    8: (torch.int64, torch.int64),
}
"""What an element of each width is taken as and summed in: sums of the same type are the fast ones."""


def checksum(tensor: torch.Tensor) -> int:
    """The sum of the tensor's elements as integers of their own width, modulo 2**32 or 2**64: fast, and the same on every device.

    Any single bit that differs changes the sum; the order of elements in memory does not. Made for finding mistakes, not for
    keeping out attackers: `job.digest()` is SHA-256.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.element_size() not in _INTEGERS or not tensor.numel():
        return tensor.numel()
    taken, summed = _INTEGERS[tensor.element_size()]
    return int(tensor.view(taken).sum(dtype=summed).item())


class Consistency:
    """Hashes of what must be equal on all workers of a job, and the values behind each hash for the message about a difference."""

    def __init__(self, shared: SharedObjects, hooks: OptimizerHooks) -> None:
        self._shared = shared
        self._hooks = hooks
        self._changes: dict[str, str] = {}

    def checks(self, *, part: int, order: str, changes: dict[str, str]) -> dict[str, str]:
        """A hash for each kind of value. `part` is the part of the tensors' bytes whose turn it is."""
        self._changes = changes
        hashes = {name: _hash(read()) for name, read in self._small().items()}
        return {**hashes, SAMPLES: order, TENSORS: f"{part % PARTS}:{self._sum(part % PARTS):x}"}

    def details(self, name: str, *, part: int) -> object:
        """What a hash was made of, with names."""
        if name == TENSORS:
            names = list(self._names())
            return {names[number]: f"{checksum(piece):x}" for number, piece in self._pieces(part % PARTS)}
        if name == ATTRIBUTES:
            return self.attributes()
        read = self._small().get(name)
        return _plain(read()) if read is not None else None

    def attributes(self, *, without: Set[int] = frozenset()) -> dict[str, dict[str, object]]:
        """Plain attributes of all shared modules, and which of their parameters are trained. `without` leaves out some by id."""
        return {
            f"{shared}.{path}" if path else shared: {**_attributes(module), **_trained(module, without)}
            for shared, root in self._shared.modules
            for path, module in modules_of(root)
        }

    def _small(self) -> dict[str, Callable[[], object]]:
        return {
            STEPS: lambda: self._hooks.steps,
            SETTINGS: self._settings,
            STATE: self._states,
            ATTRIBUTES: self._attributes,
            DATASET: lambda: self._changes,
        }

    def _settings(self) -> dict[str, object]:
        """Every entry of every parameter group but the parameters."""
        return {
            name: [
                {key: value if key != "params" else len(value) for key, value in group.items()} for group in optimizer.param_groups
            ]
            for name, optimizer in self._shared.objects.items()
            if isinstance(optimizer, torch.optim.Optimizer)
        }

    def _states(self) -> dict[str, object]:
        return {
            name: _plain(shared_object.state_dict())
            for name, shared_object in self._shared.states.items()
            if not isinstance(shared_object, torch.nn.Module | torch.optim.Optimizer)
        }

    def _attributes(self) -> list[object]:
        return [
            [_attributes(module), [p is not None and p.requires_grad for p in module._parameters.values()]]
            for _, root in self._shared.modules
            for module in root.modules()
        ]

    # ---- tensors, in turn

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Everything that newcomers would get of modules and optimizers, in the order of `_names`."""
        for _, root in self._shared.modules:
            for module in root.modules():
                yield from (tensor for tensor in module._parameters.values() if tensor is not None)
                hidden = module._non_persistent_buffers_set
                yield from (tensor for key, tensor in module._buffers.items() if tensor is not None and key not in hidden)
        for optimizer in self._shared.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    yield from (tensor for tensor in state.values() if isinstance(tensor, torch.Tensor))

    def _names(self) -> Iterator[str]:
        for shared, root in self._shared.modules:
            for path, module in modules_of(root):
                keys = [key for key, tensor in module._parameters.items() if tensor is not None]
                keys += [
                    key
                    for key, tensor in module._buffers.items()
                    if tensor is not None and key not in module._non_persistent_buffers_set
                ]
                yield from (".".join(part for part in (shared, path, key) if part) for key in keys)
        for shared, shared_object in self._shared.objects.items():
            if isinstance(shared_object, torch.optim.Optimizer):
                for number, parameter in enumerate(p for group in shared_object.param_groups for p in group["params"]):
                    yield from (
                        f"{shared}'s {key} of parameter {number}"
                        for key, tensor in shared_object.state.get(parameter, {}).items()
                        if isinstance(tensor, torch.Tensor)
                    )

    def _pieces(self, part: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The rows of tensors that begin in one of the equal parts of all bytes, with the tensors' numbers.

        Rows, not ranges of memory: a newcomer's tensors may lie in another order in memory than the job's.
        """
        tensors = list(self._tensors())
        total = sum(tensor.nbytes for tensor in tensors)
        low, high = total * part // PARTS, total * (part + 1) // PARTS
        begin = 0
        for number, tensor in enumerate(tensors):
            end = begin + tensor.nbytes
            if end > low and begin < high:
                if tensor.dim():
                    row = max(1, tensor.nbytes // max(1, tensor.shape[0]))
                    first, last = -(-max(low - begin, 0) // row), -(-(min(high, end) - begin) // row)
                    if last > first:
                        yield number, tensor.detach()[first:last]
                elif begin >= low:
                    yield number, tensor.detach()
            begin = end

    def _sum(self, part: int) -> int:
        total = 0
        for _, piece in self._pieces(part):
            total = (total * 1_000_003 + checksum(piece)) & _MASK
        return total


class PreambleCheck:
    """Compares the workers at the beginning of each exchange, before any numbers are added up."""

    def __init__(self, consistency: Consistency, *, membership: Membership, position: Position, state_sync: StateSync) -> None:
        self._consistency = consistency
        self._membership = membership
        self._position = position
        self._state_sync = state_sync

    def comparison(
        self, place: Place, *, order: str = "", changes: dict[str, str] | None = None
    ) -> Callable[[TreeAllreduce], None] | None:
        """Takes the hashes of this moment, and returns what compares them on the exchange's thread. None in a roster of one."""
        membership, state_sync = self._membership, self._state_sync
        if membership.size == 1:
            return None
        part = membership.seat.tick or 0
        checks = {} if state_sync.resend else self._consistency.checks(part=part, order=order, changes=changes or {})
        own = Preamble(place, state_sync.joined, checks)
        return lambda exchange: self._compare(exchange, own)

    def _compare(self, exchange: TreeAllreduce, own: Preamble) -> None:
        """Raises where the workers' preambles do not fit together."""
        preambles = [Preamble.decode(text) for text in exchange.all_gather(own.encode())]
        verdict = judge(preambles, tick=self._membership.seat.tick or 0)
        if not (verdict.misplaced or verdict.scattered or verdict.differing):
            if own.checks:
                self._state_sync.compared(with_older=any(other.joined < own.joined for other in preambles))
            return
        workers = list(exchange.group.roster.workers)
        places = places_text(preambles, workers)
        if verdict.scattered:
            raise ScriptError(
                f"the workers' scripts have gone different ways: {places}: whatever decides that must be the same on "
                f"every worker{suspects()}"
            )
        if verdict.differing:
            text = self._explain(exchange, verdict.differing[0], workers, step=own.place.step)
        else:
            text = f"its script is at another place than the job's: {places}{suspects()}"
        if exchange.group.rank in verdict.misplaced:
            raise Misplaced(text)
        raise Broken(f"a worker has to go: {text}") if verdict.misplaced else ScriptError(text)

    def _explain(self, exchange: TreeAllreduce, name: str, workers: list[str], *, step: int) -> str:
        """What differs, and on which workers: all of them exchange what their hashes were made of."""
        own = self._consistency.details(name, part=self._membership.seat.tick or 0)
        details = [json.loads(text) for text in exchange.all_gather(json.dumps(own).encode())]
        difference = first_difference(details, workers)
        text = f"the workers differ at step {step}, before it is committed: {name}" + (f": {difference}" if difference else "")
        if name == TENSORS:
            since = max(0, self._position.step - PARTS)
            return (
                f"{text}. They were equal at step {since} or later: once the cause is found, go on from a checkpoint of step "
                f"{since} or before"
            )
        if name in (ATTRIBUTES, DATASET):
            return f"{text}. {SET_AGAIN}"
        if name == STEPS:
            return (
                f"{text}. A counter of the script's own begins anew on a worker that joins: use step.index, job.step or shared "
                f"state (job.state){suspects()}"
            )
        return text


def _attributes(module: torch.nn.Module) -> dict[str, object]:
    """Plain values that a module keeps beside its tensors."""
    return {key: value for key, value in module.__dict__.items() if type(value) in _SIMPLE and not key.startswith("_")}


def _trained(module: torch.nn.Module, without: Set[int]) -> dict[str, bool]:
    return {
        f"{key}.requires_grad": p.requires_grad for key, p in module._parameters.items() if p is not None and id(p) not in without
    }


def _hash(value: object) -> str:
    """Equal for equal values, whatever the order of keys: a state that was loaded may have another."""
    return hashlib.blake2b(json.dumps(value, default=_plain, sort_keys=True).encode(), digest_size=6).hexdigest()


def _plain(value: object) -> object:
    """A value as plain JSON: small tensors as their contents, what cannot be compared by its kind."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        entries = cast("Sequence[object]", value)
        shown = entries if len(entries) <= LONG else [f"{len(entries)} entries", *entries[-END:]]
        return [_plain(entry) for entry in shown]
    if isinstance(value, set | frozenset):
        return sorted(map(str, cast("Set[object]", value)))
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, torch.Tensor):
        small = value.nbytes <= SMALL_BYTES and value.layout is torch.strided
        return cast("list[object]", value.detach().flatten().tolist()) if small else [str(value.dtype), *value.shape]
    return f"a {type(value).__name__}"
