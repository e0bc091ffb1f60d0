"""Policies by name. A policy is a file of `policies/` with a function of the same name in it, and its traits in `TRAITS`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import partial
from typing import cast

from stretto.core.errors import UsageError
from stretto.scheduling import policies
from stretto.scheduling.types import Allocation, LoadedPolicy, PolicyTraits

DEFAULT = "goodput"


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(policies.__path__) if not module.name.startswith("_"))


def load(name: str, *, seed: int = 0) -> LoadedPolicy:
    """The policy with its traits; a random one gets the seed."""
    if name not in names():
        raise UsageError(f"there is no policy {name}: use one of {', '.join(names())}")
    module = importlib.import_module(f"{policies.__name__}.{name}")
    function = cast("Callable[..., Allocation]", getattr(module, name))
    if "seed" in inspect.signature(function).parameters:
        function = partial(function, seed=seed)
    traits = getattr(module, "TRAITS", PolicyTraits())
    if not isinstance(traits, PolicyTraits):
        raise UsageError(f"TRAITS of policy {name} is a {type(traits).__name__}: make it a PolicyTraits of scheduling/types.py")
    return LoadedPolicy(name, function, traits, summary(name))


def summary(name: str) -> str:
    """The first line of what the policy's file says about it."""
    module = importlib.import_module(f"{policies.__name__}.{name}")
    return (module.__doc__ or name).strip().splitlines()[0]
