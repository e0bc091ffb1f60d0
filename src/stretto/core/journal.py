"""The journal: what its lines mean, and how they are read. No files here.

A line is a JSON object with its `kind`, its time `t` and the fields of the class below. Workers send the lines that are about their
training as messages, without a time; the agent adds it when it writes them.

A journal is read while it is written and after crashes, so a torn line is never an error: it is counted and skipped, and `audit`
misses what it said. A line of an unknown kind is passed through, so that this version can read the journals of later ones.

Steps are numbered from 0 by the number of training steps before them. Where a step is "the next one", as many steps are finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from stretto.core.errors import SchemaError
from stretto.core.json_types import JsonValue
from stretto.core.schema import VERSION, KindDescription, Schema, Unknown, omitted

Metrics = Mapping[str, float]
LINE_BYTES = 4 << 20
"""No line is longer; what is gets dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What every line has."""

    t: float = omitted(0.0)
    """When the agent wrote the line, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Start(Line):
    """A run begins. The first line."""

    script: str
    """Path of the training script, as it was given."""
    args: tuple[str, ...] = ()
    """The script's arguments."""
    workers: Mapping[str, int] = field(default_factory=dict[str, int])
    """Numbers of workers: `least`, `most`, and `wanted` at the beginning."""
    life: int = 1
    """Number of the attempt, from 1."""
    version: str = ""
    """The version of stretto that wrote the line."""
    mode: str = omitted("")
    """`restart` where the script runs under `stretto run --restart-mode`: there are no commits then."""
    schema: int = VERSION
    """The version of this schema. Journals of 0.1.0 and 0.2.0 do not say it: they have version 1."""


@dataclass(frozen=True, slots=True)
class LoaderLine(Line):
    """A loader of the job. Once per loader and attempt."""

    loader: int
    """Number of the loader, from 0 in the order in which the script makes them."""
    samples: int
    """Samples in its dataset."""
    batch: int
    """Samples per step at the beginning."""
    slices: int
    """Slices per step: the most workers that it can use."""
    tail: str = "drop"
    """`drop` leaves out an incomplete last batch of an epoch, `keep` trains on it."""
    train: bool = True
    """False for a loader that only evaluates."""
    seed: int = 0
    """Seed of the order of samples."""
    shuffle: bool = True
    """Whether each epoch has an order of its own."""


@dataclass(frozen=True, slots=True)
class RosterMember:
    """A worker in a `roster` line."""

    worker: str
    agent: str
    slices: tuple[int, int]
    """The slices that it computes: the first one, and the one after the last."""


@dataclass(frozen=True, slots=True)
class RosterLine(Line):
    """The leader has published a roster."""

    number: int
    """Number of the roster; each is greater than those before it."""
    members: tuple[RosterMember, ...]
    """The workers, in the order of their ranks."""
    base: int = 0
    """The roster that this one replaces; 0 for the first one and after a failure."""
    rescue: bool = False
    """Whether it follows a failure."""
    cause: str = ""
    """Why there is a new one."""


@dataclass(frozen=True, slots=True)
class Switch(Line):
    """The workers have changed over to a roster."""

    number: int
    """Number of the roster."""
    step: int
    """The next step: the first one on the new roster. 0 in restart mode, where steps are not known."""
    workers: int
    """Workers on the new roster."""
    joined: tuple[str, ...]
    """Workers that are new."""
    left: tuple[str, ...]
    """Workers that are gone."""
    cause: str
    """`start`, `join`, `leave`, `balance` or `rescue`."""
    pause_ms: float | None
    """Milliseconds from the end of the last step before the change to the end of the first one after it, on the worker for which it
    was longest, among those that stayed. None where nobody finished another step, or where steps are not known."""
    switch_ms: float = 0.0
    """Milliseconds that the change itself took: at the step boundary, or from the broken exchange to the new roster."""


@dataclass(frozen=True, slots=True)
class Commit(Line):
    """A committed step: places [first, first + count) of its epoch's order."""

    step: int
    """The step that was committed: the last finished one. `step + 1` steps are finished."""
    epoch: int
    """Its epoch, from 0."""
    loader: int
    """Number of its loader."""
    first: int
    """Place of its first sample in its epoch's order, from 0."""
    count: int
    """Samples in the step."""
    batch: int
    """The loader's batch; `count` is less at the tail of an epoch."""
    roster: int
    """Number of the roster that computed it."""
    workers: int
    """Workers on that roster."""
    tick: int | None = 0
    """Number of the exchange that ended it; counts evaluations too."""
    metrics: Metrics = field(default_factory=dict[str, float])
    """Logged by the script in this step, by name."""
    step_s: float = 0.0
    """Seconds since the end of the step before, on the worker that reports it."""
    parts: int = 1
    """Pieces that each slice was accumulated from."""
    order: str = ""
    """Id of the order of its epoch's samples, as the reporting worker computed it (`core/sample_order.py`); empty in journals of
    0.1.0."""
    left: int | None = None
    """Samples until the end of the last epoch, where the script has said which one that is."""
    slice_s: Mapping[str, float] | None = omitted(None)
    """Seconds per slice, by worker, where they were measured."""


@dataclass(frozen=True, slots=True)
class Orders(Line):
    """Workers do not read the samples of an epoch in the same order: a fault."""

    loader: int
    """Number of the loader."""
    epoch: int
    """The epoch, from 0."""
    orders: Mapping[str, str]
    """Id of the order, by worker."""
    worker: str = omitted("")
    """The worker that differs from the first one that reported."""


@dataclass(frozen=True, slots=True)
class Plan(Line):
    """From this step on, a loader has this batch."""

    step: int
    """The next step: the first one with the batch."""
    loader: int
    """Number of the loader."""
    batch: int
    """Samples per step."""
    reason: str
    """Why, in words."""
    parts: int = 1
    """Pieces that each slice is accumulated from."""
    factor: float = 1.0
    """On the learning rate, once it is reached."""


@dataclass(frozen=True, slots=True)
class EpochEnd(Line):
    """A loader has finished an epoch."""

    epoch: int
    """The finished epoch, from 0."""
    loader: int
    """Number of the loader."""


@dataclass(frozen=True, slots=True)
class Evaluation(Line):
    """A loader with `train=False` was read to its end."""

    loader: int
    """Number of the loader."""
    epoch: int
    """The job's epoch at that time."""
    step: int
    """The next training step: as many are finished."""
    samples: int = 0
    """Samples that were evaluated."""
    metrics: Metrics = field(default_factory=dict[str, float])
    """Logged by the script, by name."""


@dataclass(frozen=True, slots=True)
class Digests(Line):
    """Digests of the workers' states at a step boundary."""

    step: int
    """The next step: as many are finished."""
    digests: Mapping[str, str]
    """SHA-256 of the state, by worker."""
    equal: bool
    """Whether all are the same."""


@dataclass(frozen=True, slots=True)
class JournalReport(Line):
    """Metrics of the job (docs/reference/metrics.md)."""

    step: int
    """For `job`, the last finished step; for `script`, the next one."""
    metrics: Mapping[str, JsonValue]
    """By name."""
    of: str = omitted("script")
    """`script` for what the script reported with `job.report`, `job` for what the library measured."""


@dataclass(frozen=True, slots=True)
class JournalEvent(Line):
    """Something happened to a worker, an agent or the job."""

    what: str
    """The event, in one word."""
    text: str = ""
    """Details, in words."""
    worker: str | None = None
    """The worker, if it is about one."""
    agent: str | None = None
    """The agent, if it is about one."""


@dataclass(frozen=True, slots=True)
class Checkpoint(Line):
    """A checkpoint is complete."""

    step: int
    """The next step: as many are in the checkpoint."""
    path: str
    """Path or address of its folder."""
    bytes: int = 0
    """Its size."""
    seconds: float = 0.0
    """Seconds from its begin to its manifest."""
    blocked_s: float = 0.0
    """Seconds of these during which training stood still."""
    roster: int = 0
    """Number of the roster that wrote it."""
    final: bool = False
    """Whether it is the one after the last step."""


@dataclass(frozen=True, slots=True)
class Resume(Line):
    """Another attempt begins, from a checkpoint or anew. The steps that follow replace those above `step`."""

    step: int
    """The last step that is kept, so one less than the checkpoint's; -1 where the attempt begins anew."""
    life: int = 2
    """Number of the attempt, from 1."""
    path: str = ""
    """The checkpoint; empty where the attempt begins anew."""

    @property
    def finished(self) -> int:
        """How many steps are kept. The next one has this number."""
        return self.step + 1

    @staticmethod
    def after(finished: int, *, life: int, path: str) -> Resume:
        """The line of an attempt that has this many steps behind it."""
        return Resume(step=finished - 1, life=life, path=path)


@dataclass(frozen=True, slots=True)
class End(Line):
    """The run is over. The last line, unless the run is resumed later."""

    state: str
    """`finished`, `stopped`, `failed` or `left`."""
    digest: str | None = None
    """SHA-256 of the final state, where all workers have the same."""
    steps: int = 0
    """How many steps are finished, those of earlier attempts included."""
    error: str | None = None
    """Why it failed."""


KnownRecord: TypeAlias = (
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
Record: TypeAlias = KnownRecord | Unknown

JOURNAL: Schema[KnownRecord] = Schema(
    {
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
)


def describe() -> tuple[KindDescription, ...]:
    """The kinds of lines with their keys, types and docstrings, for docs/reference/journal.md."""
    return JOURNAL.describe()


class Parser:
    """Bytes in, records out, however they are cut. Counts the whole lines that it could not use."""

    __slots__ = ("_rest", "skipped", "unknown")

    def __init__(self) -> None:
        self._rest = b""
        self.skipped = 0
        """Lines that were cut off or do not fit their kind."""
        self.unknown = 0
        """Lines of kinds that this version does not know; they are passed through."""

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
            if not line.strip():
                continue
            try:
                record = JOURNAL.decode(line)
            except SchemaError:
                self.skipped += 1
                continue
            self.unknown += isinstance(record, Unknown)
            yield record


def parse(data: bytes) -> list[Record]:
    """A whole journal; a torn last line is left out."""
    return list(Parser().feed(data))


def lives(records: Iterable[Record]) -> list[Record]:
    """The records that hold in the end: after each `resume`, what it replaces is taken out."""
    kept: list[Record] = []
    for record in records:
        if isinstance(record, Resume):
            kept = list(_until(kept, record.step))
        kept.append(record)
    return kept


def _until(records: list[Record], step: int) -> Iterator[Record]:
    """Without the commits above the step, nor the epochs, evaluations and digests that came after one of them."""
    beyond = False
    for record in records:
        if isinstance(record, Commit):
            beyond = record.step > step
        if isinstance(record, Resume):
            beyond = False
        if beyond and isinstance(record, Commit | Orders | EpochEnd | Evaluation | Digests | JournalReport):
            continue
        yield record
