"""The one place where a job's state follows from its events.

`fold` is pure. Everything that the server knows about a job's life is what this function made of the job's events;
whoever wants to change something appends an event and looks at the result. Progress inside a run is not here: it is
read from the run's journal (`run_progress.py`) and may be lost without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from stretto.core.errors import StrettoError
from stretto.server.models import ACTIVE, ENDED, JobState
from stretto.server.spec import JobSpec

EventData = Mapping[str, object]
"""What an event says besides its sentence: JSON that this server wrote."""


class Conflict(StrettoError):
    """The event is not possible in the state that the job is in."""


class Changed(Conflict):
    """The job was changed in between: its version is not the expected one."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that has not been written yet."""

    kind: str
    text: str
    data: EventData = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The state of a job, as it follows from its events."""

    id: str
    tenant: str
    spec: JobSpec
    state: JobState
    submitted_at: float
    version: int = 1
    started_at: float | None = None
    ended_at: float | None = None
    turn_at: float | None = None
    """When the current life began to train: turns count from here."""
    wanted: int = 0
    nodes: dict[str, int] = field(default_factory=dict[str, int])
    wish: int | None = None
    pinned: bool = False
    workers: int = 0
    life: int = 0
    """How often its processes were started; the name of the folder of the present ones."""
    run: str = ""
    """The name of the present life's run folder."""
    resume: bool = False
    """This life goes on from the last checkpoint of that run."""
    restarts: int = 0
    resizes: int = 0
    pause_ms: float = 0.0
    changed_at: float | None = None
    """When its allocation changed last: cool-downs count from here."""
    paused_by: str | None = None
    """`user`, `price` or `policy`."""
    paused_at: float | None = None
    paused_who: str = ""
    """The name of the token that requested it."""
    digest: str | None = None
    error: str | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pause(self) -> str:
        """Who paused it, and when; empty if nobody did."""
        if self.state not in (JobState.PAUSING, JobState.PAUSED) or self.paused_by is None:
            return ""
        when = f" at {datetime.fromtimestamp(self.paused_at, UTC):%Y-%m-%d %H:%M} UTC" if self.paused_at is not None else ""
        if self.paused_by == "policy":
            return f"set back to the queue{when}: others go first"
        if self.paused_by == "price":
            return f"paused{when}: it has cost what price_limit allows"
        return f"paused by {repr(self.paused_who) if self.paused_who else 'its user'}{when}"

    def document(self) -> dict[str, object]:
        fields: dict[str, object] = {name: getattr(self, name) for name in self.__slots__ if name not in ("spec", "state")}
        return {**fields, "state": str(self.state), "spec": self.spec.model_dump(mode="json")}

    @staticmethod
    def read(document: Mapping[str, Any]) -> JobRecord:
        """The record that `document` wrote."""
        spec, state = JobSpec.model_validate(document["spec"]), JobState(document["state"])
        fields: dict[str, Any] = {**document, "spec": spec, "state": state}
        return JobRecord(**fields)


Fold = Callable[[JobRecord, EventData, float], JobRecord]


def fold(record: JobRecord | None, kind: str, data: EventData, t: float) -> JobRecord:
    """The record after one more event. Raises `Conflict` where the event makes no sense."""
    if record is None:
        if kind != "submitted":
            raise Conflict(f"the first event of a job is 'submitted', not {kind!r}")
        spec = JobSpec.model_validate(data["spec"])
        return JobRecord(id=str(data["id"]), tenant=str(data["tenant"]), spec=spec, state=JobState.QUEUED, submitted_at=t)
    step = FOLDS.get(kind)
    if step is None:
        raise Conflict(f"{kind!r} is not a kind of event")
    return replace(step(record, data, t), version=record.version + 1)


def _need(record: JobRecord, states: frozenset[JobState], what: str) -> None:
    if record.state not in states:
        wanted = " or ".join(sorted(states))
        raise Conflict(f"job '{record.name}' is {record.state}: only a {wanted} job can be {what}")


def _int(data: EventData, key: str) -> int:
    return int(cast("int", data[key]))


def _same(record: JobRecord, _data: EventData, _t: float) -> JobRecord:
    return record


def _allocated(record: JobRecord, data: EventData, t: float) -> JobRecord:
    """A decision has given it another size. From the queue, this starts its next life."""
    _need(record, frozenset({JobState.QUEUED, JobState.STARTING, JobState.RUNNING}), "given workers")
    nodes = dict(cast("Mapping[str, int]", data["nodes"]))
    after = replace(record, wanted=sum(nodes.values()), nodes=nodes, reason=str(data.get("reason", "")), changed_at=t)
    if record.state is JobState.QUEUED:
        run = str(data.get("run") or record.id)
        after = replace(after, resume=run == record.run)
        return replace(after, state=JobState.STARTING, life=record.life + 1, workers=0, paused_by=None, run=run)
    return after


def _ready(record: JobRecord, data: EventData, t: float) -> JobRecord:
    _need(record, ACTIVE - {JobState.RUNNING}, "ready")
    begun = record.started_at or t
    state = JobState.RUNNING if record.state is JobState.STARTING else record.state
    return replace(record, state=state, workers=_int(data, "workers"), started_at=begun, turn_at=t)


def _resized(record: JobRecord, data: EventData, _t: float) -> JobRecord:
    pause = cast("float | None", data.get("pause_ms")) or 0.0
    return replace(record, workers=_int(data, "workers"), resizes=record.resizes + 1, pause_ms=record.pause_ms + pause)


def _wished(record: JobRecord, data: EventData, _t: float) -> JobRecord:
    if record.state in ENDED:
        raise Conflict(f"job '{record.name}' has ended ({record.state}): it cannot be scaled any more")
    return replace(record, wish=_int(data, "workers"), pinned=bool(data["pin"]))


def _changed(record: JobRecord, data: EventData, _t: float) -> JobRecord:
    if record.state in ENDED:
        raise Conflict(f"job '{record.name}' has ended ({record.state}): it cannot be changed any more")
    document = record.spec.model_dump(mode="json")
    for key in ("priority", "deadline", "price_limit"):
        if key in data:
            document[key] = data[key]
    if "plan" in data:
        document["elastic"]["plan"] = data["plan"]
    after = replace(record, spec=JobSpec.model_validate(document))
    return replace(after, wish=None, pinned=False) if "wish" in data else after


def _pausing(record: JobRecord, data: EventData, t: float) -> JobRecord:
    _need(record, frozenset({JobState.STARTING, JobState.RUNNING}), "paused")
    return replace(
        record, state=JobState.PAUSING, paused_by=str(data["by"]), paused_at=t, paused_who=str(data.get("who", "")), reason=""
    )


def _paused(record: JobRecord, data: EventData, t: float) -> JobRecord:
    """All processes are gone. By its user: until it is resumed; by the policy: back in the queue."""
    _need(record, frozenset({JobState.PAUSING, JobState.QUEUED}), "set aside")
    if record.state is not JobState.PAUSING:
        record = replace(record, paused_by="user", paused_at=t, paused_who=str(data.get("who", "")))
    state = JobState.QUEUED if record.paused_by == "policy" else JobState.PAUSED
    return replace(record, state=state, workers=0, wanted=0, nodes={}, changed_at=t, reason="")


def _resumed(record: JobRecord, _data: EventData, _t: float) -> JobRecord:
    _need(record, frozenset({JobState.PAUSED}), "resumed")
    return replace(record, state=JobState.QUEUED, paused_by=None)


def _cancelling(record: JobRecord, _data: EventData, _t: float) -> JobRecord:
    _need(record, ACTIVE - {JobState.CANCELLING}, "cancelled")
    return replace(record, state=JobState.CANCELLING)


def _restarting(record: JobRecord, data: EventData, _t: float) -> JobRecord:
    _need(record, frozenset({JobState.STARTING, JobState.RUNNING}), "restarted")
    return replace(
        record,
        state=JobState.STARTING,
        life=record.life + 1,
        restarts=record.restarts + 1,
        workers=0,
        run=str(data["run"]),
        resume=str(data["run"]) == record.run,
    )


def _end(state: JobState) -> Fold:
    def step(record: JobRecord, data: EventData, t: float) -> JobRecord:
        if record.state in ENDED:
            raise Conflict(f"job '{record.name}' has already ended ({record.state})")
        digest, error = data.get("digest"), data.get("error")
        return replace(
            record,
            state=state,
            ended_at=t,
            workers=0,
            wanted=0,
            nodes={},
            digest=str(digest) if digest else record.digest,
            error=str(error) if error else None,
            reason="",
        )

    return step


FOLDS: dict[str, Fold] = {
    "allocated": _allocated,
    "started": _same,
    "adopted": _same,
    "worker": _same,
    "ready": _ready,
    "resized": _resized,
    "wished": _wished,
    "changed": _changed,
    "pausing": _pausing,
    "paused": _paused,
    "resumed": _resumed,
    "cancelling": _cancelling,
    "restarting": _restarting,
    "finished": _end(JobState.FINISHED),
    "failed": _end(JobState.FAILED),
    "cancelled": _end(JobState.CANCELLED),
}
