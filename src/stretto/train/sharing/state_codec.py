"""Encodes shared state as a JSON skeleton and flat tensors. There is no pickle: a state can carry no code."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import torch

from stretto.core.errors import Refused, ScriptError
from stretto.core.schema import Json
from stretto.core.type_guards import is_mapping, is_sequence

TensorSpec = list[Any]
"""A tensor's dtype and shape as JSON: `["float32", [2, 3]]`."""


class Stateful(Protocol):
    """What `job.share` accepts: modules, optimizers, schedulers, and objects of a script with these two methods."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> object: ...


def flatten(value: object, *, where: str = "state") -> tuple[Json, list[torch.Tensor]]:
    """A JSON skeleton that refers to tensors by number, and these tensors."""
    tensors: list[torch.Tensor] = []

    def walk(node: object, path: str) -> Json:
        if node is None or isinstance(node, bool | str):
            return node
        if isinstance(node, int | float) and type(node) in (int, float):
            return node
        if isinstance(node, torch.Tensor):
            tensors.append(node.detach())
            return {"tensor": len(tensors) - 1}
        if _is_numpy(node):
            tensors.append(torch.from_numpy(np.array(node)))
            return {"array": len(tensors) - 1, "scalar": isinstance(node, np.generic)}
        if is_mapping(node):
            return {"map": [[walk(key, path), walk(entry, f"{path}.{key}")] for key, entry in node.items()]}
        if is_sequence(node):
            return {"tuple" if isinstance(node, tuple) else "list": [walk(entry, f"{path}[{k}]") for k, entry in enumerate(node)]}
        if _is_set(node):
            return {"set": [walk(entry, path) for entry in sorted(cast("set[str]", node))]}
        if isinstance(node, bytes):
            return {"bytes": base64.b64encode(node).decode()}
        raise ScriptError(
            f"{path} is a {type(node).__name__}: shared state may hold tensors and plain values (numbers, texts, lists, dicts) "
            "only; leave it out of state_dict() or store it as one of these"
        )

    return walk(value, where), tensors


def unflatten(skeleton: object, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `flatten`."""
    if not isinstance(skeleton, dict):
        return cast(Any, skeleton)
    node = cast("dict[str, Any]", skeleton)
    if "tensor" in node:
        return tensors[int(node["tensor"])]
    if "array" in node:
        array = tensors[int(node["array"])].numpy()
        return cast(Any, array[()] if node["scalar"] else array)
    if "map" in node:
        return {_key(unflatten(key, tensors)): unflatten(entry, tensors) for key, entry in node["map"]}
    if "tuple" in node:
        return tuple(unflatten(entry, tensors) for entry in node["tuple"])
    if "list" in node:
        return [unflatten(entry, tensors) for entry in node["list"]]
    if "set" in node:
        return {unflatten(entry, tensors) for entry in node["set"]}
    if "bytes" in node:
        return base64.b64decode(node["bytes"])
    raise Refused(f"a state's skeleton has an unknown entry {sorted(node)}")


def _key(key: object) -> object:
    return tuple(cast("list[object]", key)) if isinstance(key, list) else key


def _is_numpy(value: object) -> TypeGuard[npt.NDArray[Any] | np.generic]:
    return isinstance(value, np.ndarray | np.generic)


def _is_set(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, set | frozenset)


def spec(tensor: torch.Tensor) -> TensorSpec:
    """The dtype and shape of a tensor."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def empty(described: TensorSpec, device: torch.device | None = None) -> torch.Tensor:
    """A tensor of a described dtype and shape."""
    name, shape = described
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Refused(f"a state names the dtype {name!r}, which this version of torch does not have")
    return torch.empty(shape, dtype=dtype, device=device)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view of a contiguous tensor's memory (a copy where it is not contiguous)."""
    flat = tensor.contiguous().reshape(-1)
    if flat.numel() == 1:  # contiguous whatever its stride is, but a view of its bytes needs a stride of 1
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def digest(skeleton: object, tensors: list[torch.Tensor]) -> str:
    """SHA-256 of everything: skeleton, dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    sha.update(json.dumps([skeleton, [spec(t) for t in tensors]], sort_keys=True).encode())
    for tensor in tensors:
        sha.update(as_bytes(tensor.cpu()).numpy().data)
    return sha.hexdigest()


def load(target: Stateful, state: dict[str, Any]) -> None:
    """Loads an object's state. Optimizer states keep their own dtypes, whatever the parameters' are."""
    target.load_state_dict(state)
    if not isinstance(target, torch.optim.Optimizer):
        return
    parameters = [p for group in target.param_groups for p in group["params"]]
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor) and target.state[parameters[index]][name].dtype != value.dtype:
                target.state[parameters[index]][name] = value.to(target.state[parameters[index]][name].device)
