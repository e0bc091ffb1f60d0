"""Policies by name. A policy is a file of `policies/` with a function of the same name in it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import partial
from typing import Any

from stretto.core.errors import UsageError
from stretto.scheduling import policies
from stretto.scheduling.types import Policy

DEFAULT = "goodput"


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(policies.__path__) if not module.name.startswith("_"))


def load(name: str, *, seed: int = 0) -> Policy:
    """The policy's function; a random one gets the seed."""
    if name not in names():
        raise UsageError(f"there is no policy {name}: use one of {', '.join(names())}")
    policy: Any = getattr(importlib.import_module(f"{policies.__name__}.{name}"), name)
    return partial(policy, seed=seed) if "seed" in inspect.signature(policy).parameters else policy
