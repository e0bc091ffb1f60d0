"""Train PyTorch models on a number of workers that may change at any step: nobody stops, and the model comes out the same."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.batching.batch_policies import Adaptive as Adaptive
    from stretto.batching.batch_policies import PerWorker as PerWorker
    from stretto.batching.lr_rules import LEGW as LEGW
    from stretto.batching.lr_rules import AdaScale as AdaScale
    from stretto.batching.lr_rules import LinearScale as LinearScale
    from stretto.batching.lr_rules import SqrtScale as SqrtScale
    from stretto.core.errors import StrettoError as StrettoError
    from stretto.server.client import Client as Client
    from stretto.train.entry.join import join as join
    from stretto.train.entry.restart_hooks import on_load as on_load
    from stretto.train.entry.restart_hooks import on_save as on_save
    from stretto.train.entry.restart_hooks import should_stop as should_stop
    from stretto.train.job import Job as Job

_HOMES = {
    "join": "stretto.train.entry.join",
    "Job": "stretto.train.job",
    "StrettoError": "stretto.core.errors",
    "should_stop": "stretto.train.entry.restart_hooks",
    "on_save": "stretto.train.entry.restart_hooks",
    "on_load": "stretto.train.entry.restart_hooks",
    "PerWorker": "stretto.batching.batch_policies",
    "Adaptive": "stretto.batching.batch_policies",
    "AdaScale": "stretto.batching.lr_rules",
    "LinearScale": "stretto.batching.lr_rules",
    "SqrtScale": "stretto.batching.lr_rules",
    "LEGW": "stretto.batching.lr_rules",
    "Client": "stretto.server.client",
}
"""Where the public names live. They are loaded on first use, so that the command line's help loads no torch."""

__all__ = [
    "LEGW",
    "AdaScale",
    "Adaptive",
    "Client",
    "Job",
    "LinearScale",
    "PerWorker",
    "SqrtScale",
    "StrettoError",
    "join",
    "on_load",
    "on_save",
    "should_stop",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stretto' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
