"""The nodes of this machine, and which slots are bound to which cores.

Nodes come from options (so many nodes of so many slots), from a file that is read again when it changes, or from the machine
itself: without a number of slots, a node has as many as there are GPUs or usable cores, which a cpuset or `taskset` may change
while the server runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path

from stretto.clusters.base import NodeInfo
from stretto.core.errors import UsageError

MAX_NODES = 1024
MAX_SLOTS = 4096
OPTIONS = ("nodes", "slots", "price", "nodes-file")
NODE_KEYS = frozenset({"name", "slots", "kind", "price", "spot", "draining"})

Bindings = dict[str, dict[str, tuple[int, ...]]]
"""job → node → numbers of its slots there."""


def default_slots() -> int:
    """GPUs if there are any, else usable cores."""
    gpus = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    return len(gpus) or len(os.sched_getaffinity(0))


@dataclass(slots=True)
class NodeSource:
    """Where the local cluster's nodes come from. `read` returns the present ones."""

    count: int = 1
    slots: int | None = None
    """Slots per node; None: what the machine has."""
    price: float = 0.0
    file: Path | None = None
    _read_at: tuple[int, int] | None = field(default=None, init=False)
    _last: tuple[NodeInfo, ...] = field(default=(), init=False)

    def read(self) -> tuple[NodeInfo, ...]:
        """The nodes now. `UsageError` if the nodes file is not valid; `OSError` if it cannot be read."""
        if self.file is None:
            slots = self.slots or default_slots()
            return tuple(NodeInfo(f"node{number}", slots, price=self.price) for number in range(self.count))
        status = self.file.stat()
        if self._read_at != (status.st_mtime_ns, status.st_size):
            self._last = parse_nodes(self.file.read_text(), file=self.file)
            self._read_at = (status.st_mtime_ns, status.st_size)
        return self._last


def node_source(options: Mapping[str, str]) -> NodeSource:
    """Validates the options of the local cluster. The flags `--nodes`, `--slots` and `--price` are short for them."""
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise UsageError(f"--cluster-option {unknown[0]}: the local cluster does not have it: it has {', '.join(OPTIONS)}")
    if "nodes-file" in options:
        if len(options) > 1:
            raise UsageError("--cluster-option nodes-file says everything about nodes: leave out --nodes, --slots and --price")
        file = Path(options["nodes-file"]).expanduser().absolute()
        if not file.is_file():
            raise UsageError(f"--cluster-option nodes-file={file} does not exist: name a JSON file with a list of nodes")
        return NodeSource(file=file)
    count = _number("nodes", options.get("nodes", "1"), int, 1, MAX_NODES)
    slots = _number("slots", options["slots"], int, 1, MAX_SLOTS) if "slots" in options else None
    price = _number("price", options.get("price", "0"), float, 0, None)
    return NodeSource(int(count), None if slots is None else int(slots), price)


def _number(key: str, text: str, kind: type[int] | type[float], low: int, high: int | None) -> float:
    try:
        value = kind(text)
    except ValueError:
        raise UsageError(f"--{key} {text!r} is not a number") from None
    if high is None and value < low:
        raise UsageError(f"--{key} {value:g} is below {low}: give {low} or more")
    if high is not None and not low <= value <= high:
        raise UsageError(f"--{key} {value} is out of range: {low} to {high}")
    return value


def parse_nodes(text: str, *, file: Path) -> tuple[NodeInfo, ...]:
    """Nodes of a nodes file: a JSON list of objects with `name` and `slots`, and `kind`, `price`, `spot`, `draining` if wanted."""
    try:
        entries = json.loads(text)
        nodes = tuple(_node(entry) for entry in entries)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f'{file} is not a list of nodes: {error}: write [{{"name": "a", "slots": 4}}]') from error
    if len({node.name for node in nodes}) != len(nodes) or len(nodes) > MAX_NODES:
        raise UsageError(f"{file}: node names have to differ, and there may be at most {MAX_NODES}")
    return nodes


def _node(entry: Mapping[str, object]) -> NodeInfo:
    if unknown := sorted(set(entry) - NODE_KEYS):
        raise ValueError(f"unknown key {unknown[0]!r}")
    name, slots = str(entry["name"]), int(str(entry["slots"]))
    if not name or not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"node {name!r} with {slots} slots: a name and 1 to {MAX_SLOTS} slots are needed")
    return NodeInfo(
        name,
        slots,
        kind=str(entry.get("kind", "cpu")),
        price=float(str(entry.get("price", 0.0))),
        spot=bool(entry.get("spot", False)),
        draining=str(entry.get("draining", "")),
    )


def describe_change(before: Sequence[NodeInfo], after: Sequence[NodeInfo]) -> str:
    """What is different, for people; empty if nothing is."""
    old, new = {node.name: node for node in before}, {node.name: node for node in after}
    parts = [f"{name} is gone" for name in old if name not in new]
    for name, node in new.items():
        if name not in old:
            parts.append(f"{name} has come with {node.slots} slots")
        elif node.slots != old[name].slots:
            parts.append(f"{name} has {node.slots} slots, it had {old[name].slots}")
        elif node.draining and not old[name].draining:
            parts.append(f"{name} is draining: {node.draining}")
        elif node != old[name]:
            parts.append(f"{name} has changed")
    return "; ".join(parts)


def bind_slots(nodes: Sequence[NodeInfo], wanted: Mapping[str, Mapping[str, int]], bindings: Bindings) -> Bindings:
    """Slots for every job. A job keeps as many of its slots as it still needs; the rest comes from the lowest free ones.

    A job that asks for more than is free gets what there is: limits are the scheduler's, this only binds to cores.
    """
    result: Bindings = {job: {} for job in wanted}
    for node in nodes:
        free = set(range(node.slots))
        for job, places in wanted.items():
            kept = bindings.get(job, {}).get(node.name, ())[: places.get(node.name, 0)]
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
    first_core: dict[str, int] = {}
    total = 0
    for node in nodes:
        first_core[node.name] = total
        total += node.slots
    bound = {available[first_core[name] + slot] for name, numbers in slots.items() if name in first_core for slot in numbers}
    return bound or set(available)
