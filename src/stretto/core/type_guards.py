"""Type guards for values of unknown origin. `isinstance` alone leaves the types of their contents unknown to the type checker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard


def is_dict(value: object) -> TypeGuard[dict[object, object]]:
    """Whether this is a dict."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    """Whether this is a mapping, such as a dict."""
    return isinstance(value, Mapping)


def is_sequence(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """Whether this is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether this is a list."""
    return isinstance(value, list)
