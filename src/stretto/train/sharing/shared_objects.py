"""The objects given to `job.share`, the attributes of `job.state`, and the state that these make up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from stretto.core.errors import ScriptError
from stretto.core.schema import Json
from stretto.core.type_guards import is_dict, is_mapping
from stretto.train.sharing.state_codec import Stateful, TensorSpec, digest, flatten, load, spec, unflatten

STATE = "job.state"
"""The name that the attributes of `job.state` are shared under, once there is one."""


class SharedObjects:
    """Everything that all workers share, by name. It can be flattened into one state and loaded from it."""

    def __init__(self) -> None:
        self.objects: dict[str, Stateful] = {}
        self._state_values: dict[object, object] = {}
        self.state = JobStateAttributes(self._state_values, self._check_value)

    def add(self, objects: Mapping[str, object]) -> None:
        """Shares these objects. Refuses those without a state."""
        for name, shared_object in objects.items():
            if name in self.objects:
                raise ScriptError(f"job.share({name}=…) was called twice: give every shared object a name of its own")
            if is_dict(shared_object) and type(shared_object) is dict:
                shared_object = plain(name, shared_object)
                flatten(shared_object.state_dict(), where=name)
            if isinstance(shared_object, type) or not (
                hasattr(shared_object, "state_dict") and hasattr(shared_object, "load_state_dict")
            ):
                raise ScriptError(
                    f"job.share({name}=…) got a {type(shared_object).__name__}, which has no state_dict and load_state_dict: "
                    "share modules, optimizers, schedulers, scalers, dictionaries of plain values, or give your object these two "
                    f"methods; for one number write job.state.{name} = …"
                )
            self.objects[name] = cast(Stateful, shared_object)

    def _check_value(self, name: str, value: object) -> None:
        flatten(value, where=name)
        self._check_copies(name, value)

    def check_plain(self) -> None:
        """At every boundary: what the script has put into shared dictionaries."""
        for name, shared_object in self.objects.items():
            if isinstance(shared_object, PlainState):
                self._check_copies(name, shared_object.values)

    def _check_copies(self, name: str, value: object) -> None:
        """Refuses the tensors of a shared module or optimizer themselves: they go on changing here, and would not on a newcomer."""
        memory = {tensor.data_ptr() for tensor in tensors_in(value) if tensor.numel()}
        if not memory:
            return
        for other, shared_object in self.objects.items():
            if any(tensor.data_ptr() in memory for tensor in _own_tensors(shared_object)):
                raise ScriptError(
                    f"{name} holds the tensors of `{other}` themselves, not copies: they go on changing here, and "
                    f"would not on a worker that joins; write copy.deepcopy({other}.state_dict())"
                )

    @property
    def modules(self) -> list[tuple[str, torch.nn.Module]]:
        return [(name, shared_object) for name, shared_object in self.objects.items() if isinstance(shared_object, torch.nn.Module)]

    @property
    def states(self) -> Mapping[str, Stateful]:
        """Everything that is shared, by name."""
        values = PlainState(self._state_values)
        return {**self.objects, STATE: values} if values.values or STATE in self.objects else self.objects

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [shared_object for shared_object in self.objects.values() if isinstance(shared_object, torch.optim.Optimizer)]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Everything that may get a gradient, once each, in a fixed order."""
        return [parameter for parameter in self.all_parameters() if parameter.requires_grad]

    def all_parameters(self) -> list[torch.nn.Parameter]:
        """Parameters of modules and optimizers, frozen ones too, once each, in a fixed order."""
        parameters: dict[int, torch.nn.Parameter] = {}
        for _, module in self.modules:
            for parameter in module.parameters():
                parameters.setdefault(id(parameter), parameter)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameters.setdefault(id(parameter), parameter)
        return list(parameters.values())

    def groups(self) -> dict[str, list[list[int]]]:
        """The parameters in each optimizer's groups, by their places in `all_parameters`."""
        places = {id(parameter): place for place, parameter in enumerate(self.all_parameters())}
        return {
            name: [[places[id(p)] for p in group["params"]] for group in optimizer.param_groups]
            for name, optimizer in self.objects.items()
            if isinstance(optimizer, torch.optim.Optimizer)
        }

    def tensors(self) -> list[torch.Tensor]:
        """Tensors of the modules, which this worker's memory holds already."""
        return [t for _, module in self.modules for t in module.state_dict().values() if isinstance(t, torch.Tensor)]

    def flatten(self, place: Mapping[str, object]) -> tuple[Json, list[torch.Tensor]]:
        """The whole state: the objects and the job's position."""
        return flatten(
            {"objects": {name: shared_object.state_dict() for name, shared_object in self.states.items()}, "place": place}
        )

    def digest(self, place: Mapping[str, object]) -> str:
        """SHA-256 of the whole state."""
        return digest(*self.flatten(place))

    def shape(self, loaders: Sequence[Sequence[object]]) -> str:
        """A short text that two workers have in common exactly if their models and loaders fit together."""
        tensors = [
            [name, [[path, *spec(t)] for path, t in module.state_dict().items() if isinstance(t, torch.Tensor)]]
            for name, module in self.modules
        ]
        kinds = [[name, type(shared_object).__name__] for name, shared_object in self.objects.items()]
        numbers = sum(t.numel() for t in self.tensors())
        sha = hashlib.sha256(json.dumps([tensors, kinds, loaders]).encode()).hexdigest()[:16]
        return f"{', '.join(name for name, _ in kinds) or 'nothing'}: {numbers} numbers, {len(loaders)} loaders, {sha}"

    def in_place(self, skeleton: Json, specs: list[TensorSpec]) -> list[torch.Tensor | None]:
        """For each tensor of a state with this skeleton the module's own tensor, if it can be filled in place."""
        own = dict(_named(*flatten({name: module.state_dict() for name, module in self.modules})))
        targets: list[torch.Tensor | None] = [None] * len(specs)
        for path, index in _places(_objects(skeleton), ""):
            tensor = own.get(path)
            if tensor is not None and tensor.is_contiguous() and spec(tensor) == specs[index] and tensor.device.type == "cpu":
                targets[index] = tensor
        return targets

    def load(self, skeleton: object, tensors: list[torch.Tensor]) -> dict[str, Any]:
        """Loads the states of all objects. Returns the job's position."""
        whole = unflatten(skeleton, tensors)
        own = {t.data_ptr() for t in self.tensors() if t.numel()}
        self._regroup(whole["place"].get("groups") or {}, whole["objects"])
        for name, state in whole["objects"].items():
            target = PlainState(self._state_values) if name == STATE else self.objects.get(name)
            if target is None:
                raise ScriptError(f"the job shares {name!r}, this worker does not: all workers must run the same script")
            filled = isinstance(target, torch.nn.Module) and all(
                isinstance(t, torch.Tensor) and (not t.numel() or t.data_ptr() in own) for t in state.values()
            )
            if not filled:
                load(target, state)
        if STATE not in whole["objects"]:
            self._state_values.clear()
        return whole["place"]

    def _regroup(self, groups: dict[str, list[list[int]]], states: dict[str, Any]) -> None:
        """Gives optimizers the parameter groups that those of the job have got since training began."""
        parameters = self.all_parameters()
        for name, wanted in groups.items():
            optimizer = self.objects.get(name)
            if isinstance(optimizer, torch.optim.Optimizer) and self.groups()[name] != wanted:
                optimizer.param_groups.clear()
                for places, saved in zip(wanted, states[name]["param_groups"], strict=True):
                    optimizer.add_param_group({**saved, "params": [parameters[place] for place in places]})


def _own_tensors(shared_object: object) -> Iterator[torch.Tensor]:
    """Tensors of a module or an optimizer, without calling its state_dict(), which costs more."""
    if isinstance(shared_object, torch.nn.Module):
        yield from shared_object.parameters()
        yield from shared_object.buffers()
    elif isinstance(shared_object, torch.optim.Optimizer):
        yield from tensors_in(shared_object.state)


def _objects(skeleton: Json) -> Json:
    """The part of a whole state's skeleton that describes the objects."""
    return dict(cast(Any, skeleton)["map"])["objects"]


def _places(skeleton: Json, path: str) -> Iterator[tuple[str, int]]:
    """Paths of the tensors in a skeleton."""
    if not isinstance(skeleton, dict):
        return
    node = cast("dict[str, Any]", skeleton)
    if "tensor" in node:
        yield path, node["tensor"]
    elif "map" in node:
        for key, entry in node["map"]:
            yield from _places(entry, f"{path}/{key}")
    else:
        for kind in ("list", "tuple"):
            for place, entry in enumerate(node.get(kind, ())):
                yield from _places(entry, f"{path}/{place}")


def _named(skeleton: Json, tensors: list[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, index in _places(skeleton, ""):
        yield path, tensors[index]


class PlainState:
    """Something whose state is a plain dictionary of numbers, texts, tensors, lists and dictionaries."""

    def __init__(self, values: dict[object, object]) -> None:
        self.values = values

    def state_dict(self) -> dict[object, object]:
        """The dictionary itself."""
        return self.values

    def load_state_dict(self, state_dict: Mapping[object, object]) -> None:
        """Changes the dictionary in place: the script keeps its reference to it."""
        if state_dict is not self.values:
            new = dict(state_dict)
            self.values.clear()
            self.values.update(new)


class JobStateAttributes:
    """Values that are the same on all workers, as attributes: `job.state.best = 0.0`.

    Newcomers and resumed workers get them with the rest of the shared state; `job.digest()` includes them.
    """

    def __init__(self, values: dict[object, object], check: Callable[[str, object], None]) -> None:
        """`values` belong to the caller, who shares them. `check` refuses a value that cannot be shared when it is set, where the
        traceback names the line."""
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_check", check)

    def __getattr__(self, name: str) -> Any:
        values: dict[object, Any] = object.__getattribute__(self, "_values")
        if name in values:
            return values[name]
        raise AttributeError(f"job.state has no {name!r}: set it before training, for instance `job.state.{name} = 0`")

    def __setattr__(self, name: str, value: object) -> None:
        self._check(f"job.state.{name}", value)
        self._values[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._values:
            raise AttributeError(f"job.state has no {name!r}")
        del self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __dir__(self) -> list[str]:
        return sorted(map(str, self._values))

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def plain(name: str, values: dict[object, object]) -> PlainState:
    """A dictionary that was given to `job.share`."""
    for key in values:
        if not isinstance(key, str | int):
            raise ScriptError(f"job.share({name}={{…}}) has the key {key!r}: keys of shared dictionaries are texts or integers")
    return PlainState(values)


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Tensors in dictionaries within dictionaries, as state_dict() gives them. Lists are not looked through: histories are long."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_mapping(value):
        for entry in value.values():
            yield from tensors_in(entry)
