"""The clusters that `stretto serve --cluster NAME` can choose from.

A package adds one by an entry point of the group `stretto.clusters`; for a module that is not installed, `module:attribute` works
as a name too. `local` is built in: it needs no metadata of an installed package.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from stretto.clusters.base import Cluster, ClusterContext, ClusterFactory
from stretto.core.errors import UsageError

GROUP = "stretto.clusters"
DEFAULT = "local"
BUILT_IN = {"local": "stretto.clusters.local:open_cluster"}


def known_clusters() -> dict[str, str]:
    """Names of clusters and the `module:attribute` of their factories."""
    return {**{entry.name: entry.value for entry in entry_points(group=GROUP)}, **BUILT_IN}


def open_cluster(name: str, context: ClusterContext, options: Mapping[str, str]) -> Cluster:
    """Makes the cluster of this name, which may be a `module:attribute`. `UsageError` if there is none."""
    known = known_clusters()
    target = name if ":" in name else known.get(name)
    if target is None:
        choices = ", ".join(sorted(known))
        raise UsageError(f"--cluster {name!r} does not exist: choose one of {choices}, or name a factory as module:attribute")
    return load_factory(name, target)(context, options)


def load_factory(name: str, target: str) -> ClusterFactory:
    """Imports a factory. `UsageError` says what is missing, for instance a package of an extra."""
    module, _, attribute = target.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--cluster {name}: {target} cannot be loaded: {error}") from error
    if not callable(factory):
        raise UsageError(f"--cluster {name}: {target} is not callable: name a function that makes a cluster")
    return cast(ClusterFactory, factory)


def parse_options(texts: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts of `--cluster-option`. `UsageError` for one without a `=`, and for a key that comes twice."""
    options: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--cluster-option {text!r} is not KEY=VALUE")
        if key in options:
            raise UsageError(f"--cluster-option {key} is given twice: give it once")
        options[key] = value
    return options
