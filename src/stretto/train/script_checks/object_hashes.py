"""Describes objects of a script in short texts that workers can compare: tensors, modules, arrays, generators.

Of large objects a sample of the elements is hashed: the purpose is to find mistakes.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sized
from typing import Protocol, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import torch

from stretto.core.type_guards import is_dict

AnyGenerator = torch.Generator | random.Random | np.random.Generator | np.random.RandomState

ELEMENTS = 1 << 14
"""Elements of a tensor that are hashed at most, about."""
ENTRIES = 256
"""Entries of a list that are hashed at most, about."""
DEPTH = 3
_PLAIN = (bool, int, float, str, bytes, type(None))
MODULE = "a module"
GENERATOR = "a random generator"


def describe(value: object, *, shared: frozenset[int] = frozenset()) -> str:
    """A text that is equal for equal values; empty for what cannot be compared. Tensors in `shared` memory are left out."""
    content = hashlib.blake2b(digest_size=4)
    if isinstance(value, _PLAIN) or not _add(value, content, shared, DEPTH):
        return ""
    return f"{_kind(value)} ({content.hexdigest()})"


def storages(tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    """The addresses of these tensors' memory."""
    return frozenset(_storage(tensor) for tensor in tensors if tensor.layout is torch.strided and tensor.numel())


def is_generator(value: object) -> TypeGuard[AnyGenerator]:
    """A random generator of the script's own."""
    if isinstance(value, torch.Generator):
        return value is not torch.default_generator
    if type(value) is random.Random:
        return True
    return isinstance(value, np.random.Generator | np.random.RandomState)


def drawn(generator: AnyGenerator) -> object:
    """The generator's state: it changes with every number that is drawn."""
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().cpu().numpy())
    if isinstance(generator, random.Random):
        return generator.getstate()
    if _is_legacy(generator):
        return repr(generator.get_state(legacy=False))
    return repr(cast(np.random.Generator, generator).bit_generator.state)


def _is_legacy(generator: object) -> TypeGuard[np.random.RandomState]:
    return hasattr(generator, "get_state")


def is_array(value: object) -> TypeGuard[npt.NDArray[np.generic]]:
    """A numpy array that may be written to: others, such as files mapped for reading, cannot have changed."""
    return _is_ndarray(value) and value.flags.writeable and not value.dtype.hasobject


def _is_ndarray(value: object) -> TypeGuard[npt.NDArray[np.generic]]:
    return isinstance(value, np.ndarray)


def _kind(value: object) -> str:
    if isinstance(value, torch.nn.Module):
        return f"{MODULE} {type(value).__name__}"
    if isinstance(value, torch.Tensor) or is_array(value):
        return f"{'a tensor' if isinstance(value, torch.Tensor) else 'an array'} of shape {tuple(value.shape)}"
    return GENERATOR if is_generator(value) else f"a {type(value).__name__} of {len(value) if isinstance(value, Sized) else 0}"


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def _add(value: object, content: _Hash, shared: frozenset[int], depth: int) -> bool:
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
    if _is_container(value) and depth:
        added = [_add(inner, content, shared, depth - 1) for inner in _inside(value)]
        return any(added)
    return False


def _is_container(value: object) -> TypeGuard[torch.nn.Module | Collection[object]]:
    return isinstance(value, torch.nn.Module | list | tuple | deque | set | frozenset | dict)


def _inside(value: torch.nn.Module | Collection[object]) -> Iterator[object]:
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif is_dict(value):
        yield from (part for key in sorted(value, key=str)[:ENTRIES] for part in (str(key), value[key]))
    elif isinstance(value, set | frozenset):
        yield from sorted(map(str, value))
    else:
        entries = list(value)
        yield len(entries)
        yield from entries[:: 1 + len(entries) // ENTRIES]


def _add_tensor(tensor: torch.Tensor, content: _Hash, shared: frozenset[int]) -> bool:
    if tensor.layout is not torch.strided or not tensor.numel() or _storage(tensor) in shared:
        return False
    flat = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // ELEMENTS].cpu().contiguous()
    content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + bytes(flat.view(torch.uint8).numpy()))
    return True


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
