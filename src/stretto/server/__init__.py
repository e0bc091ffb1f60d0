"""The job server: queue, scheduler, API, dashboard."""

from stretto.core.version import VERSION

__all__ = ["VERSION"]
