"""Memory for a state that is about to come: fresh pages are slow, so they are made while the others still train."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from stretto.train.sharing.state_codec import empty, spec

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


def touched(specs: Sequence[list[Any]], *, given: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Room for what a state needs beyond the tensors that this worker's script has made already."""
    with contextlib.suppress(OSError):  # of the thread that calls this: the others train meanwhile
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    had = _by_spec(given)
    room: list[torch.Tensor] = []
    for one in specs:
        if had[_key(one)]:
            had[_key(one)].pop()
        elif empty([one[0], [0]]).element_size() * _elements(one) > LARGE_BYTES:
            room.append(empty(one).zero_())
    return room


Places = list[torch.Tensor | None]


def spread(places: Places, specs: Sequence[list[Any]], room: Sequence[torch.Tensor]) -> Places:
    """The places with room where there was none and some fits."""
    left = _by_spec(room)
    return [left[_key(one)].pop() if place is None and left[_key(one)] else place for place, one in zip(places, specs, strict=True)]


def _by_spec(tensors: Iterable[torch.Tensor]) -> defaultdict[str, list[torch.Tensor]]:
    found: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        found[_key(spec(tensor))].append(tensor)
    return found


def _key(described: list[Any]) -> str:
    return f"{described[0]} {described[1]}"


def _elements(described: list[Any]) -> int:
    count = 1
    for size in described[1]:
        count *= size
    return count
