"""Clusters from a short text: `16x4` is 16 nodes of 4 slots; `8x4:t4@0.53,2x8:a100@27.2*3.5,4x4:t4@0.16~0.05` is a mixed one.

For each part, after COUNTxSLOTS: `:KIND`, `@PRICE` for a node-hour, `*SPEED` relative to the profiles, `~RATE` for spot nodes that
are taken away RATE times an hour each. All are optional, in this order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stretto.core.errors import UsageError
from stretto.scheduling.types import DEFAULT_KIND, ClusterNode

PART = re.compile(
    r"(?P<count>\d+)x(?P<slots>\d+)(?::(?P<kind>[A-Za-z][\w-]*))?(?:@(?P<price>\d+(?:\.\d*)?))?"
    r"(?:\*(?P<speed>\d+(?:\.\d*)?))?(?:~(?P<rate>\d+(?:\.\d*)?))?"
)
MOST_NODES = 65536


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster as `--nodes` describes it: its nodes, the relative speed of each kind, and how often spot nodes are reclaimed."""

    nodes: tuple[ClusterNode, ...]
    speeds: tuple[tuple[str, float], ...]
    reclaims_per_hour: float


def read_cluster(text: str) -> ClusterSpec:
    """The nodes that a text describes. Spot parts share one rate: the highest of them."""
    nodes: list[ClusterNode] = []
    speeds: dict[str, float] = {}
    rate = 0.0
    for number, part in enumerate(text.split(","), start=1):
        fields = PART.fullmatch(part.strip())
        if fields is None or int(fields["count"]) < 1 or int(fields["slots"]) < 1:
            raise UsageError(
                f"--nodes {text}: part {number}, {part.strip()!r}, is not COUNTxSLOTS[:KIND][@PRICE][*SPEED][~RECLAIMS]: "
                "write for instance 16x4 or 8x4:t4@0.53,2x8:a100@27.2*3.5"
            )
        if len(nodes) + int(fields["count"]) > MOST_NODES:
            raise UsageError(f"--nodes {text}: more than {MOST_NODES} nodes: simulate a smaller cluster")
        kind = fields["kind"] or DEFAULT_KIND
        speed = float(fields["speed"] or 1.0)
        if speed <= 0 or speeds.setdefault(kind, speed) != speed:
            raise UsageError(
                f"--nodes {text}: kind {kind} has the speeds {speeds[kind]:g} and {speed:g}: give one kind one speed above 0"
            )
        spot = fields["rate"] is not None
        rate = max(rate, float(fields["rate"] or 0.0))
        start = len(nodes)
        nodes += [
            ClusterNode(
                f"{kind}-{start + place:04d}" if kind != DEFAULT_KIND else f"node-{start + place:04d}",
                int(fields["slots"]),
                kind,
                float(fields["price"] or 0.0),
                spot,
            )
            for place in range(int(fields["count"]))
        ]
    return ClusterSpec(tuple(nodes), tuple(sorted(speeds.items())), rate)
