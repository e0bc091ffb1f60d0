"""The workers that a job finds worth having (`elastic.autoscale`), from its measured speeds: pure.

The rule is that of a run which sizes itself (batching/autoscale.py): grow while each added worker brings at least `efficiency` of
what a worker without them brings. Here it bounds what a policy may give, so that jobs that size themselves never hold more slots
than there are. A size beyond the largest measured one is tried by doubling.
"""

from __future__ import annotations

from collections.abc import Mapping

MARGIN = 0.1
"""A size that the job has is given up only when it is below the bar by more than this: measurements flicker."""


def paying(speeds: Mapping[int, float], *, efficiency: float, least: int, most: int, have: int) -> int:
    """The most workers to have now. `speeds` are samples a second at each number of workers that was measured."""
    sizes = sorted(size for size, speed in speeds.items() if size > 0 and speed > 0)
    if not sizes:
        return least
    best = sizes[0]
    for size in sizes[1:]:
        brings = (speeds[size] - speeds[best]) / (size - best) / (speeds[best] / best)
        if brings < efficiency - (MARGIN if have >= size else 0.0):
            return max(least, min(most, best))
        best = size
    return max(least, min(most, 2 * best))
