"""What a script holds beside its shared state, as short texts that workers can compare: tensors, modules, arrays, generators.

Large ones by a sample of their elements: it is made for finding mistakes.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

ELEMENTS = 1 << 14
"""Of a larger tensor so many are looked at."""
ENTRIES = 256
"""Of a longer list so many are looked at."""
DEPTH = 3
_PLAIN = (bool, int, float, str, bytes, type(None))
MODULE = "a module"
GENERATOR = "a random generator"


def describe(value: Any, *, shared: frozenset[int] = frozenset()) -> str:
    """A text that is equal for equal values; empty for what cannot be compared. Tensors whose memory is `shared` do not count."""
    content = hashlib.blake2b(digest_size=4)
    if isinstance(value, _PLAIN) or not _add(value, content, shared, DEPTH):
        return ""
    return f"{_kind(value)} ({content.hexdigest()})"


def storages(tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    return frozenset(_storage(tensor) for tensor in tensors if tensor.layout is torch.strided and tensor.numel())


def is_generator(value: Any) -> bool:
    """A random generator of the script's own."""
    if isinstance(value, torch.Generator):
        return value is not torch.default_generator
    if type(value) is random.Random:
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState)


def drawn(generator: Any) -> Any:
    """Something that changes with every number that is drawn."""
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().cpu().numpy())
    if isinstance(generator, random.Random):
        return generator.getstate()
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return repr(state)


def is_array(value: Any) -> bool:
    """A numpy array that may be written to: others, such as files that are mapped to be read, cannot have changed."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.flags.writeable and not value.dtype.hasobject


def _kind(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        return f"{MODULE} {type(value).__name__}"
    if isinstance(value, torch.Tensor) or is_array(value):
        return f"{'a tensor' if isinstance(value, torch.Tensor) else 'an array'} of shape {tuple(value.shape)}"
    return GENERATOR if is_generator(value) else f"a {type(value).__name__} of {len(value)}"


def _add(value: Any, content: Any, shared: frozenset[int], depth: int) -> bool:
    """Adds a value to the hash; whether there was something to add."""
    if type(value) in _PLAIN:
        content.update(repr(value).encode())
        return True
    if isinstance(value, torch.Tensor):
        return _add_tensor(value, content, shared)
    if is_array(value):
        flat = value.reshape(-1)
        content.update(f"{value.dtype} {value.shape}".encode() + flat[:: 1 + flat.size // ELEMENTS].tobytes())
        return True
    if is_generator(value):
        content.update(repr(drawn(value)).encode())
        return True
    if isinstance(value, torch.nn.Module | list | tuple | deque | set | frozenset | dict) and depth:
        added = [_add(inner, content, shared, depth - 1) for inner in _inside(value)]
        return any(added)
    return False


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, dict):
        yield from (part for key in sorted(value, key=str)[:ENTRIES] for part in (str(key), value[key]))
    elif isinstance(value, set | frozenset):
        yield from sorted(map(str, value))
    else:
        entries = list(value)
        yield len(entries)
        yield from entries[:: 1 + len(entries) // ENTRIES]


def _add_tensor(tensor: torch.Tensor, content: Any, shared: frozenset[int]) -> bool:
    if tensor.layout is not torch.strided or not tensor.numel() or _storage(tensor) in shared:
        return False
    flat = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // ELEMENTS].cpu().contiguous()
    content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + bytes(flat.view(torch.uint8).numpy()))
    return True


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
