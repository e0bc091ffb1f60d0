"""Which slots of which node are whose: pure. A slot is bound to a core where there are enough of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest

from stretto.clusters.base import NodeInfo

Held = dict[str, dict[str, tuple[int, ...]]]
"""job → node → numbers of its slots there."""


def assign(nodes: Sequence[NodeInfo], wanted: Mapping[str, Mapping[str, int]], held: Held) -> Held:
    """Slots for everybody. Who has some keeps as many as it still needs; the rest comes from the lowest free ones.

    A job that asks for more than is free gets what there is: limits are the scheduler's, this only binds to cores.
    """
    result: Held = {job: {} for job in wanted}
    for node in nodes:
        free = set(range(node.slots))
        for job, places in wanted.items():
            kept = held.get(job, {}).get(node.name, ())[: places.get(node.name, 0)]
            kept = tuple(slot for slot in kept if slot in free)
            free -= set(kept)
            if kept:
                result[job][node.name] = kept
        for job, places in wanted.items():
            have = result[job].get(node.name, ())
            missing = places.get(node.name, 0) - len(have)
            more = nsmallest(missing, free) if missing > 0 else []
            free -= set(more)
            if more:
                result[job][node.name] = (*have, *more)
    return result


def cores(nodes: Sequence[NodeInfo], slots: Mapping[str, Sequence[int]], *, available: Sequence[int]) -> set[int]:
    """The cores of these slots; all of them where slots are more than cores, because sharing is then wanted."""
    if sum(node.slots for node in nodes) > len(available):
        return set(available)
    base: dict[str, int] = {}
    at = 0
    for node in nodes:
        base[node.name] = at
        at += node.slots
    found = {available[base[name] + slot] for name, numbers in slots.items() if name in base for slot in numbers}
    return found or set(available)
