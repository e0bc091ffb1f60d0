"""The journal's lines as types, and their parsing; no files here.

A journal is read while it is written and after crashes, so a torn line is never an error: it is counted and skipped,
and what it said is missed by `audit`, not by the parser. Lines of unknown kinds are skipped too: an older reader can
read a newer journal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, cast

Metrics = Mapping[str, float]
LINE_BYTES = 4 << 20
"""No line is longer; what is gets dropped."""


def _none() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Start:
    t: float
    script: str
    args: list[str] = field(default_factory=lambda: [])
    workers: Mapping[str, int] = field(default_factory=_none)
    """`least`, `most`, `wanted`."""
    life: int = 1
    version: str = ""


@dataclass(frozen=True, slots=True)
class LoaderLine:
    t: float
    loader: int
    samples: int
    batch: int
    slices: int
    tail: str = "drop"
    train: bool = True
    seed: int = 0
    shuffle: bool = True


@dataclass(frozen=True, slots=True)
class RosterLine:
    t: float
    number: int
    members: list[dict[str, Any]]
    base: int = 0
    rescue: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    t: float
    number: int
    step: int
    workers: int
    joined: list[str]
    left: list[str]
    cause: str
    pause_ms: float | None
    """From the end of the last step before the change to the end of the first one after it, on the worker that stayed for which
    it was longest. None where nobody came to the end of a step any more, or where steps are not known."""
    switch_ms: float = 0.0
    """What the change itself took: at the step boundary, or from the broken exchange to the new roster."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed step: places [first, first + count) of its epoch's permutation."""

    t: float
    step: int
    epoch: int
    loader: int
    first: int
    count: int
    batch: int
    roster: int
    workers: int
    tick: int = 0
    metrics: Metrics = field(default_factory=_none)
    step_s: float = 0.0
    parts: int = 1
    """Pieces that each slice was accumulated from."""
    order: str = ""
    """Of its epoch's samples, as the worker that tells of the step has computed it (see `core/order.py`); empty in old journals."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Workers do not read the samples of an epoch in the same order."""

    t: float
    loader: int
    epoch: int
    orders: Mapping[str, str]
    """By worker."""


@dataclass(frozen=True, slots=True)
class Plan:
    """From this step on, the loader has this batch."""

    t: float
    step: int
    loader: int
    batch: int
    reason: str
    parts: int = 1
    factor: float = 1.0
    """On the learning rate, once it is reached."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    t: float
    epoch: int
    loader: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    t: float
    loader: int
    epoch: int
    step: int
    samples: int = 0
    metrics: Metrics = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class Digests:
    t: float
    step: int
    digests: Mapping[str, str]
    equal: bool


@dataclass(frozen=True, slots=True)
class JournalReport:
    t: float
    step: int
    metrics: Mapping[str, Any]
    of: str = "script"
    """`script` for what it reported, `job` for what the library measured (docs/reference/metrics.md)."""


@dataclass(frozen=True, slots=True)
class JournalEvent:
    t: float
    what: str
    text: str = ""
    worker: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    t: float
    step: int
    path: str
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Resume:
    """Steps from here on replace what the journal has above `step`."""

    t: float
    step: int
    life: int = 2
    path: str = ""


@dataclass(frozen=True, slots=True)
class End:
    t: float
    state: str
    digest: str | None = None
    steps: int = 0
    error: str | None = None


Record = (
    Start
    | LoaderLine
    | RosterLine
    | Switch
    | Commit
    | Orders
    | Plan
    | EpochEnd
    | Evaluation
    | Digests
    | JournalReport
    | JournalEvent
    | Checkpoint
    | Resume
    | End
)

KINDS: Mapping[str, type[Record]] = {
    "start": Start,
    "loader": LoaderLine,
    "roster": RosterLine,
    "switch": Switch,
    "commit": Commit,
    "orders": Orders,
    "plan": Plan,
    "epoch": EpochEnd,
    "eval": Evaluation,
    "digest": Digests,
    "report": JournalReport,
    "event": JournalEvent,
    "checkpoint": Checkpoint,
    "resume": Resume,
    "end": End,
}


def record(document: Mapping[str, Any]) -> Record | None:
    """The typed line, or None for an unknown kind or one that lacks a field."""
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        return None
    values: dict[str, Any] = {}
    for one in fields(kind):
        if one.name in document:
            values[one.name] = document[one.name]
        elif one.default is MISSING and one.default_factory is MISSING:
            return None
    return kind(**values)


class Parser:
    """Bytes in, records out, however they are cut. Remembers how many whole lines it could not use."""

    __slots__ = ("_rest", "skipped")

    def __init__(self) -> None:
        self._rest = b""
        self.skipped = 0

    @property
    def torn(self) -> bool:
        """There are bytes after the last end of line: a line being written, or one that a crash cut off."""
        return bool(self._rest)

    def feed(self, data: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            self._rest = b""
            self.skipped += 1
        for line in lines:
            found = self._line(line)
            if found is not None:
                yield found
            elif line.strip():
                self.skipped += 1

    def _line(self, line: bytes) -> Record | None:
        try:
            document: Any = json.loads(line)
        except ValueError:
            return None
        return record(cast("dict[str, Any]", document)) if isinstance(document, dict) else None


def parse(data: bytes) -> list[Record]:
    """A whole journal; a torn last line is left out."""
    return list(Parser().feed(data))


def lives(records: Iterable[Record]) -> list[Record]:
    """The records that hold in the end: after each `resume`, what it replaces is taken out."""
    kept: list[Record] = []
    for one in records:
        if isinstance(one, Resume):
            kept = list(_until(kept, one.step))
        kept.append(one)
    return kept


def _until(records: list[Record], step: int) -> Iterator[Record]:
    """Without the commits above the step, nor the epochs, evaluations and digests that came after one of them."""
    beyond = False
    for one in records:
        if isinstance(one, Commit):
            beyond = one.step > step
        if isinstance(one, Resume):
            beyond = False
        if beyond and isinstance(one, Commit | Orders | EpochEnd | Evaluation | Digests | JournalReport):
            continue
        yield one
