"""The beat: a small mapped file that says when a worker last lived and what it was doing.

It is shared memory and not a message, because it has to be readable when the worker can no longer speak: dead, stopped,
or inside a kernel that does not return. One process writes (the heartbeat thread its time, the training thread its
place), any may read. The place is kept twice: a writer fills the copy that is not current and then makes it so, so a
writer that dies half-way leaves the last whole place behind.
"""

from __future__ import annotations

import enum
import mmap
import statistics
import struct
import time
from collections import deque
from dataclasses import dataclass

BEAT_S = 0.1
"""How often a living worker beats. A reader's limits are multiples of it (see `agent/workers/watch.py`)."""

SIZE = 256
_BEAT = struct.Struct("@d")
_PLACE = struct.Struct("@qqqqdddqqq")
_SEQUENCE = struct.Struct("@q")
"""Native order and aligned, so that one number is one store: never seen by halves."""
_BEAT_AT, _SEQUENCE_AT, _PLACES_AT = 0, 8, (64, 160)
_RECENT = 64
_READS = 64


class Activity(enum.IntEnum):
    """What the training thread is doing."""

    STARTING = 0
    """Imports, building the model, up to the first boundary."""
    OUTSIDE = 1
    """The user's own code between steps."""
    WAITING = 2
    """At a boundary, for a roster."""
    SLICE = 3
    """Between the yield of a slice and the request for the next."""
    EXCHANGE = 4
    SWITCH = 5
    """Moving to another roster; sending or receiving state."""
    STEPPING = 6
    """After the last exchange of a pass, before the next boundary: the optimizer's part."""
    ENDED = 7


@dataclass(frozen=True, slots=True)
class HeartbeatSample:
    """One reading of a beat. Times are of the machine's monotonic clock."""

    beaten: float
    """0.0 before the first beat."""
    activity: Activity
    step: int
    pass_: int
    slice: int
    since: float
    """When the activity began, or the slice was entered."""
    typical_s: float
    """Median time of this worker's recent slices; 0.0 before the first one."""
    longest_s: float
    slices: int
    """How many slices this process has finished."""
    train: bool = True
    """Whether `step` and `pass_` are of a training loader, or of an evaluation."""
    loader: int = -1
    """The loader of the last pass; -1 before the first one."""


class Heartbeat:
    """The writer. Costs about a microsecond a call: no system call, no lock."""

    __slots__ = ("_entered", "_map", "_place", "_recent", "_sequence")

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._sequence = 0
        self._entered = 0.0
        self._place: list[int | float] = [int(Activity.STARTING), 0, 0, 0, time.monotonic(), 0.0, 0.0, 0, 1, -1]
        self._write()
        self.beat()

    def beat(self) -> None:
        """Says that the process lives. May be called from another thread than the rest."""
        _BEAT.pack_into(self._map, _BEAT_AT, time.monotonic())

    def activity(self, code: Activity) -> None:
        self._place[0] = int(code)
        self._place[4] = time.monotonic()
        self._write()

    def enter_pass(self, *, train: bool, loader: int, step: int, pass_: int) -> None:
        """A pass over a step begins. The activity stays what it is."""
        self._place[1:4] = [step, pass_, 0]
        self._place[8:10] = [int(train), loader]
        self._write()

    def enter_slice(self, step: int, pass_: int, slice: int) -> None:
        self._entered = time.monotonic()
        self._place[:5] = [int(Activity.SLICE), step, pass_, slice, self._entered]
        self._write()

    def leave_slice(self, code: Activity = Activity.STEPPING) -> None:
        """The slice is computed; what comes next is `code`. Calling it outside a slice only sets the activity."""
        now = time.monotonic()
        if self._place[0] == Activity.SLICE:
            seconds = now - self._entered
            self._recent.append(seconds)
            count = int(self._place[7]) + 1
            if count <= 8 or count % 8 == 0:
                self._place[5] = statistics.median(self._recent)
            self._place[6] = max(self._place[6], seconds)
            self._place[7] = count
        self._place[0] = int(code)
        self._place[4] = now
        self._write()

    def close(self) -> None:
        self._map.close()

    def _write(self) -> None:
        self._sequence += 1
        _PLACE.pack_into(self._map, _PLACES_AT[self._sequence % 2], *self._place)
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)


class HeartbeatReader:
    """The agent's side. Never waits for the writer."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)

    def read(self) -> HeartbeatSample:
        place = _PLACE.unpack_from(self._map, _PLACES_AT[0])
        for _ in range(_READS):
            before: int = _SEQUENCE.unpack_from(self._map, _SEQUENCE_AT)[0]
            place = _PLACE.unpack_from(self._map, _PLACES_AT[before % 2])
            (after,) = _SEQUENCE.unpack_from(self._map, _SEQUENCE_AT)
            if after == before:
                break
        (beaten,) = _BEAT.unpack_from(self._map, _BEAT_AT)
        code, step, pass_, slice_, since, typical, longest, slices, train, loader = place
        activity = Activity(code) if code in Activity.__members__.values() else Activity.OUTSIDE
        return HeartbeatSample(
            beaten, activity, step, pass_, slice_, since, typical, longest, slices, train=bool(train), loader=loader
        )

    def close(self) -> None:
        self._map.close()
