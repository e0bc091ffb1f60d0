"""What every worker holds alike, as a JSON skeleton and flat tensors. No pickle: a state can carry no code."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stretto.core.errors import Refused, ScriptError


def flatten(value: Any, *, where: str = "state") -> tuple[Any, list[torch.Tensor]]:
    """A skeleton of plain JSON with places for tensors, and these tensors."""
    tensors: list[torch.Tensor] = []

    def walk(node: Any, path: str) -> Any:
        if node is None or isinstance(node, bool | str):
            return node
        if isinstance(node, int | float) and type(node) in (int, float):
            return node
        if isinstance(node, torch.Tensor):
            tensors.append(node.detach())
            return {"tensor": len(tensors) - 1}
        if isinstance(node, np.ndarray | np.generic):
            array = np.asarray(node)
            tensors.append(torch.from_numpy(np.array(array)))
            return {"array": len(tensors) - 1, "scalar": isinstance(node, np.generic)}
        if isinstance(node, Mapping):
            return {"map": [[walk(key, path), walk(entry, f"{path}.{key}")] for key, entry in node.items()]}
        if isinstance(node, tuple | list):
            return {"tuple" if isinstance(node, tuple) else "list": [walk(entry, f"{path}[{k}]") for k, entry in enumerate(node)]}
        if isinstance(node, set | frozenset):
            return {"set": [walk(entry, path) for entry in sorted(node)]}
        if isinstance(node, bytes):
            return {"bytes": base64.b64encode(node).decode()}
        raise ScriptError(
            f"{path} is a {type(node).__name__}: shared state may hold tensors and plain values (numbers, texts, lists, dicts) "
            "only; leave it out of state_dict() or store it as one of these"
        )

    return walk(value, where), tensors


def unflatten(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `flatten`."""
    if isinstance(skeleton, dict):
        if "tensor" in skeleton:
            return tensors[skeleton["tensor"]]
        if "array" in skeleton:
            array = tensors[skeleton["array"]].numpy()
            return array[()] if skeleton["scalar"] else array
        if "map" in skeleton:
            return {_key(unflatten(key, tensors)): unflatten(held, tensors) for key, held in skeleton["map"]}
        if "tuple" in skeleton:
            return tuple(unflatten(held, tensors) for held in skeleton["tuple"])
        if "list" in skeleton:
            return [unflatten(held, tensors) for held in skeleton["list"]]
        if "set" in skeleton:
            return {unflatten(held, tensors) for held in skeleton["set"]}
        if "bytes" in skeleton:
            return base64.b64decode(skeleton["bytes"])
        raise Refused(f"a state's skeleton has an unknown entry {sorted(skeleton)}")
    return skeleton


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def spec(tensor: torch.Tensor) -> list[Any]:
    """Dtype and shape as JSON."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def empty(described: list[Any], device: torch.device | None = None) -> torch.Tensor:
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


def digest(skeleton: Any, tensors: list[torch.Tensor]) -> str:
    """SHA-256 of everything: skeleton, dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    sha.update(json.dumps([skeleton, [spec(t) for t in tensors]], sort_keys=True).encode())
    for tensor in tensors:
        sha.update(as_bytes(tensor.cpu()).numpy().data)
    return sha.hexdigest()


def load(target: Any, held: dict[str, Any]) -> None:
    """Gives an object its state. Optimizer states keep their own dtypes, whatever the parameters' are."""
    target.load_state_dict(held)
    if not isinstance(target, torch.optim.Optimizer):
        return
    parameters = [p for group in target.param_groups for p in group["params"]]
    for index, entries in held["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor) and target.state[parameters[index]][name].dtype != value.dtype:
                target.state[parameters[index]][name] = value.to(target.state[parameters[index]][name].device)
