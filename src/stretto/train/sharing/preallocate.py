"""Memory for a state that is about to come: fresh pages are slow, so they are made while the others still train."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from stretto.core.roster import Roster
from stretto.train.reduce.accumulation import sum_schedule
from stretto.train.reduce.process_group import ProcessGroup
from stretto.train.reduce.reducer import Reducer
from stretto.train.sharing import transfer
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.state_codec import empty, spec
from stretto.train.sharing.transfer import TransferTopology

LARGE_BYTES = 1 << 18
"""Smaller tensors are made when they come."""
NICE = 10


class Handover:
    """Something that one thread asks for and the training thread gives at its next boundary."""

    def __init__(self) -> None:
        self.asked = False
        self._given: Any = None
        self._changed = threading.Condition()

    def ask(self, wanted: Callable[[], bool]) -> Any:
        """What was given; None if nobody wants it any more."""
        with self._changed:
            self._given, self.asked = None, True
            while self._given is None and wanted():
                self._changed.wait(0.1)
            self.asked = False
            return self._given

    def give(self, value: Any) -> None:
        with self._changed:
            self._given, self.asked = value, False
            self._changed.notify_all()


class StateAnnouncement:
    """Newcomers hear how large the state is and make room for it while the others train: fresh memory is slow."""

    def __init__(self, shared: SharedObjects) -> None:
        self._shared = shared
        self._outline = Handover()
        self._room: list[torch.Tensor] = []
        """Memory that was made ready for the state before it comes."""
        self._sum_buffers: list[list[torch.Tensor]] = []
        """Likewise for the sums of the gradients."""
        self._reducer: Reducer | None = None

    def start(self, reducer: Reducer) -> None:
        """The script has made everything: the sizes of the gradients' sums are known."""
        self._reducer = reducer

    def release(self) -> None:
        """The script starts again in this process: its gradients are not needed any more."""
        self._reducer = None

    def introduce(self, group: ProcessGroup, roster: Roster, wanted: Callable[[], bool]) -> None:
        """Runs on the thread that has built the group. Whatever is different when the state comes is made then."""
        if not roster.base or not roster.joined:
            return
        routes = TransferTopology.of(roster)
        if group.rank == routes.holders[0]:
            outline = self._outline.ask(wanted)
            if outline is not None:
                transfer.announce(group, outline, newcomers=routes.newcomers)
        elif group.rank in routes.newcomers:
            specs = transfer.hear(group, holder=routes.holders[0])
            self._room = touched(specs, given=self._shared.tensors())
            reducer = self._reducer
            if reducer is not None and reducer.gradients is not None:
                share = roster.members[group.rank].share
                self._sum_buffers = reducer.gradients.allocate(sum_schedule(reducer.slices, share))

    def at_boundary(self, place: Callable[[], dict[str, Any]]) -> None:
        """Describes the state for newcomers, if any have asked. Only the training thread may look at it."""
        if self._outline.asked:
            _, tensors = self._shared.flatten(place())
            self._outline.give([spec(tensor) for tensor in tensors])

    def member(self) -> None:
        """This worker has the state: the sums of its gradients get the memory that was made ready."""
        if self._reducer is not None and self._reducer.gradients is not None:
            self._reducer.gradients.adopt(self._sum_buffers)
        self._sum_buffers = []

    def take_room(self, skeleton: Any, specs: list[list[Any]]) -> list[torch.Tensor | None]:
        """Tensors for a state that arrives: the modules' own, and what was made ready."""
        room, self._room = self._room, []
        return spread(self._shared.room(skeleton, specs), specs, room)


def touched(specs: Sequence[list[Any]], *, given: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Room for what a state needs beyond the tensors that this worker's script has made already."""
    with contextlib.suppress(OSError):  # of the thread that calls this: the others train meanwhile
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    had = _by_spec(given)
    room: list[torch.Tensor] = []
    for described in specs:
        if had[_key(described)]:
            had[_key(described)].pop()
        elif empty([described[0], [0]]).element_size() * _elements(described) > LARGE_BYTES:
            room.append(empty(described).zero_())
    return room


Places = list[torch.Tensor | None]


def spread(places: Places, specs: Sequence[list[Any]], room: Sequence[torch.Tensor]) -> Places:
    """The places with room where there was none and some fits."""
    left = _by_spec(room)
    return [
        left[_key(described)].pop() if place is None and left[_key(described)] else place
        for place, described in zip(places, specs, strict=True)
    ]


def _by_spec(tensors: Iterable[torch.Tensor]) -> defaultdict[str, list[torch.Tensor]]:
    by_spec: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_spec[_key(spec(tensor))].append(tensor)
    return by_spec


def _key(described: list[Any]) -> str:
    return f"{described[0]} {described[1]}"


def _elements(described: list[Any]) -> int:
    count = 1
    for size in described[1]:
        count *= size
    return count
