"""The job server: queue, scheduler, API, dashboard."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("stretto")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0"
