"""The version, readable without importing anything else."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("stretto")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0.3.0"


VERSION = _installed()
