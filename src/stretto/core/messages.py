"""The messages between a worker and its agent, one JSON object per line, in both directions.

A worker's first message is `hello`, with the version of this schema. What workers report about their training are lines of the
journal (`core/journal.py`), without a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from stretto.core.journal import (
    Checkpoint,
    Commit,
    Digests,
    EpochEnd,
    Evaluation,
    JournalEvent,
    JournalReport,
    LoaderLine,
    Plan,
)
from stretto.core.roster import Roster
from stretto.core.schema import VERSION, Schema

# ---- from a worker to its agent


@dataclass(frozen=True, slots=True)
class HelloMessage:
    """The script has called `stretto.join`."""

    address: tuple[str, int]
    """Where the worker's rendezvous store listens."""
    fingerprint: Mapping[str, str] | None = None
    """What decides the bits that this machine computes."""
    pid: int = 0
    version: str = ""
    """Of stretto."""
    python: str = ""
    """Version of Python."""
    schema: int = VERSION
    """Version of this schema."""


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """The script has made its model and its loaders, and the worker waits to be admitted."""

    shape: str
    """Hash of what must be alike on all workers."""
    slices: int
    """Slices per step: the most workers that the job can use."""
    settings: Mapping[str, str]
    """What decides the bits, as the script has set it."""
    contract: Mapping[str, str]
    """Samples, model and code of the script, by name."""


@dataclass(frozen=True, slots=True)
class BarrierMessage:
    """The script waits at a barrier before the first step."""

    count: int
    """Number of the barrier, from 1."""


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """The worker's process group for a planned roster stands."""

    number: int
    """Number of the roster."""


@dataclass(frozen=True, slots=True)
class SwitchedMessage:
    """The worker has changed over to a roster."""

    number: int
    """Number of the roster."""
    tick: int
    """Exchanges that the worker has finished."""
    step: int = 0
    """The next step: the first one on the new roster."""
    switch_ms: float = 0.0
    """Milliseconds that the change itself took: at the step boundary, or from the broken exchange to the new roster."""
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    cause: str = ""
    """`start`, `join`, `leave`, `balance` or `rescue`."""
    workers: int = 0
    """Workers on the new roster."""


@dataclass(frozen=True, slots=True)
class ResumedMessage:
    """The worker has finished its first step after a change."""

    number: int
    """Number of the roster."""
    pause_ms: float
    """Milliseconds since the end of its last step before the change."""


@dataclass(frozen=True, slots=True)
class HaltedMessage:
    """The worker has given up all rosters up to a number."""

    number: int
    tick: int | None
    """Exchanges that the worker has finished; None if it has no state yet."""


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """The order of samples that a worker has computed for an epoch, from those that do not report commits."""

    loader: int
    epoch: int
    order: str
    """Id of the order (`core/sample_order.py`)."""


@dataclass(frozen=True, slots=True)
class CrashMessage:
    """The script has raised an exception."""

    type: str
    """Name of the exception's class."""
    text: str
    traceback: str = ""
    usage: bool = False
    """Whether it is a wrong use of stretto: the traceback is not shown then."""
    tick: int | None = None
    """Exchanges that the worker has finished; None if it never joined."""


@dataclass(frozen=True, slots=True)
class MisplacedMessage:
    """The worker's script stands elsewhere than the job: it leaves."""

    text: str


@dataclass(frozen=True, slots=True)
class FinishedMessage:
    """The script has ended, or closed its job."""

    tick: int | None = None
    """Exchanges that the worker has finished."""
    step: int = 0
    """How many steps are finished."""
    digest: str | None = None
    """SHA-256 of its state."""
    stopped: bool = True
    """Whether it ended because a stop was asked for."""
    closed: bool = False
    """Whether `job.close()` ended the job: the script goes on, and sends `ended` at its own end."""
    hint: str = ""
    """Which variable probably made it end on this worker alone."""


@dataclass(frozen=True, slots=True)
class EndedMessage:
    """The script of a closed job has ended."""


@dataclass(frozen=True, slots=True)
class LeftMessage:
    """The worker has left the job in order."""


ToAgent: TypeAlias = (
    HelloMessage
    | ReadyMessage
    | BarrierMessage
    | PreparedMessage
    | SwitchedMessage
    | ResumedMessage
    | HaltedMessage
    | OrderMessage
    | CrashMessage
    | MisplacedMessage
    | FinishedMessage
    | EndedMessage
    | LeftMessage
    | LoaderLine
    | Commit
    | Plan
    | EpochEnd
    | Evaluation
    | Digests
    | JournalReport
    | JournalEvent
    | Checkpoint
)

TO_AGENT: Schema[ToAgent] = Schema(
    {
        "hello": HelloMessage,
        "ready": ReadyMessage,
        "barrier": BarrierMessage,
        "prepared": PreparedMessage,
        "switched": SwitchedMessage,
        "resumed": ResumedMessage,
        "halted": HaltedMessage,
        "order": OrderMessage,
        "crash": CrashMessage,
        "misplaced": MisplacedMessage,
        "finished": FinishedMessage,
        "ended": EndedMessage,
        "left": LeftMessage,
        "loader": LoaderLine,
        "commit": Commit,
        "plan": Plan,
        "epoch": EpochEnd,
        "eval": Evaluation,
        "digest": Digests,
        "report": JournalReport,
        "event": JournalEvent,
        "checkpoint": Checkpoint,
    }
)

# ---- from an agent to its workers


@dataclass(frozen=True, slots=True)
class RankMessage:
    """What the worker is before the first roster."""

    chief: bool
    rank: int
    workers: int
    """How many are wanted."""


@dataclass(frozen=True, slots=True)
class PassedMessage:
    """Barriers up to a number are passed."""

    count: int


@dataclass(frozen=True, slots=True)
class RosterMessage:
    """The leader has published a roster with this worker, or one that lets it go."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class HaltMessage:
    """Every roster up to a number is broken."""

    number: int


@dataclass(frozen=True, slots=True)
class StopMessage:
    """The job is to end in order at the next step boundary."""


ToWorker: TypeAlias = RankMessage | PassedMessage | RosterMessage | HaltMessage | StopMessage

TO_WORKER: Schema[ToWorker] = Schema(
    {
        "rank": RankMessage,
        "passed": PassedMessage,
        "roster": RosterMessage,
        "halt": HaltMessage,
        "stop": StopMessage,
    }
)
