"""Allocates memory for a state before it arrives: page faults are slow, so they happen while the others still train."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import torch

from stretto.core.roster import Roster
from stretto.core.schema import Json
from stretto.train.reduce.accumulation import sum_schedule
from stretto.train.reduce.process_group import ProcessGroup
from stretto.train.reduce.reducer import Reducer
from stretto.train.sharing import transfer
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.state_codec import TensorSpec, empty, spec
from stretto.train.sharing.transfer import TransferTopology

LARGE_BYTES = 1 << 18
"""Smaller tensors are allocated when they arrive."""
NICE = 10

T = TypeVar("T")


class Handover(Generic[T]):
    """A value that one thread requests and the training thread provides at its next boundary."""

    def __init__(self) -> None:
        self.requested = False
        self._value: T | None = None
        self._changed = threading.Condition()

    def request(self, wanted: Callable[[], bool]) -> T | None:
        """Waits for the value; None once it is not `wanted` any more."""
        with self._changed:
            self._value, self.requested = None, True
            while self._value is None and wanted():
                self._changed.wait(0.1)
            self.requested = False
            return self._value

    def provide(self, value: T) -> None:
        """Hands the value to the thread that waits for it."""
        with self._changed:
            self._value, self.requested = value, False
            self._changed.notify_all()


class StateAnnouncement:
    """Announces the sizes of the state to newcomers, which allocate memory for it while the others train."""

    def __init__(self, shared: SharedObjects) -> None:
        self._shared = shared
        self._specs: Handover[list[TensorSpec]] = Handover()
        self._buffers: list[torch.Tensor] = []
        """Memory for the state, allocated before it arrives."""
        self._sum_buffers: list[list[torch.Tensor]] = []
        """Likewise for the sums of the gradients."""
        self._reducer: Reducer | None = None

    def start(self, reducer: Reducer) -> None:
        """The script has made everything: the sizes of the gradients' sums are known."""
        self._reducer = reducer

    def release(self) -> None:
        """Called when the script starts again in this process: forgets its gradients."""
        self._reducer = None

    def introduce(self, group: ProcessGroup, roster: Roster, wanted: Callable[[], bool]) -> None:
        """Runs on the thread that has built the group. Whatever is different when the state comes is made then."""
        if not roster.base or not roster.joined:
            return
        routes = TransferTopology.of(roster)
        if group.rank == routes.holders[0]:
            specs = self._specs.request(wanted)
            if specs is not None:
                transfer.announce(group, specs, newcomers=routes.newcomers)
        elif group.rank in routes.newcomers:
            specs = transfer.receive_announcement(group, holder=routes.holders[0])
            self._buffers = allocate(specs, existing=self._shared.tensors())
            reducer = self._reducer
            if reducer is not None and reducer.gradients is not None:
                share = roster.members[group.rank].share
                self._sum_buffers = reducer.gradients.allocate(sum_schedule(reducer.slices, share))

    def at_boundary(self, place: Callable[[], Mapping[str, object]]) -> None:
        """Describes the state for newcomers, if requested. Only the training thread may read the state."""
        if self._specs.requested:
            _, tensors = self._shared.flatten(place())
            self._specs.provide([spec(tensor) for tensor in tensors])

    def member(self) -> None:
        """Called once this worker has the state: the sums of its gradients use the memory allocated for them."""
        if self._reducer is not None and self._reducer.gradients is not None:
            self._reducer.gradients.adopt(self._sum_buffers)
        self._sum_buffers = []

    def receive_buffers(self, skeleton: Json, specs: list[TensorSpec]) -> Targets:
        """Tensors to fill with a state that arrives: the modules' own, and those allocated before."""
        buffers, self._buffers = self._buffers, []
        return assign(self._shared.in_place(skeleton, specs), specs, buffers)


def allocate(specs: Sequence[TensorSpec], *, existing: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Buffers for the large tensors of a state that have no counterpart among the `existing` ones. Touches every page."""
    with contextlib.suppress(OSError):  # of the thread that calls this: the others train meanwhile
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    unused = _by_spec(existing)
    buffers: list[torch.Tensor] = []
    for described in specs:
        if unused[_key(described)]:
            unused[_key(described)].pop()
        elif empty([described[0], [0]]).element_size() * _elements(described) > LARGE_BYTES:
            buffers.append(empty(described).zero_())
    return buffers


Targets = list[torch.Tensor | None]
"""The tensor to fill for each tensor of a state; None where one is still to be allocated."""


def assign(targets: Targets, specs: Sequence[TensorSpec], buffers: Sequence[torch.Tensor]) -> Targets:
    """The targets, with a buffer of the right dtype and shape where there was none."""
    left = _by_spec(buffers)
    return [
        left[_key(described)].pop() if target is None and left[_key(described)] else target
        for target, described in zip(targets, specs, strict=True)
    ]


def _by_spec(tensors: Iterable[torch.Tensor]) -> defaultdict[str, list[torch.Tensor]]:
    by_spec: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_spec[_key(spec(tensor))].append(tensor)
    return by_spec


def _key(described: TensorSpec) -> str:
    return f"{described[0]} {described[1]}"


def _elements(described: TensorSpec) -> int:
    count = 1
    for size in described[1]:
        count *= size
    return count
