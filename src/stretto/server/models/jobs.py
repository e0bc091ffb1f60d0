"""A job in the API: its states, progress, events, curves, logs and explanation."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from stretto.server.spec import MOST_WORKERS, JobSpec, Name, Stage, Strict

JobId = Annotated[str, StringConstraints(pattern=r"^j-[a-z2-7]{12}$")]


class JobState(StrEnum):
    """One state at a time; `server/jobs/state.py` has the only transitions."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in ENDED

    @property
    def active(self) -> bool:
        """States in which a job has processes, or may have."""
        return self in ACTIVE


ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
ACTIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING})


class Progress(BaseModel):
    """The progress of a job; None for values that it has not reported."""

    step: int = 0
    steps: int | None = None
    epoch: int | None = None
    fraction: float | None = Field(default=None, description="0 to 1, if the length is known")
    loss: float | None = None
    batch: int | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    goodput: float | None = Field(default=None, description="useful samples a second: throughput times statistical efficiency")
    noise_scale: float | None = None
    remaining_s: float | None = None


class JobSummary(BaseModel):
    """A line of the list of jobs."""

    id: JobId
    name: Name
    tenant: Name
    state: JobState
    version: int = Field(description="grows with every change; use it as If-Match")
    workers: int = Field(description="training now")
    wanted: int = Field(description="what the last decision gave it")
    min: int
    max: int
    wish: int | None = None
    pinned: bool = False
    priority: int = 0
    nodes: dict[str, int] = Field(default_factory=dict[str, int], description="workers on each node")
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    eta: float | None = Field(default=None, description="unix seconds of the expected end")
    progress: Progress = Field(default_factory=Progress)
    spark: list[float] = Field(default_factory=list[float], description="the loss curve in at most 32 means, oldest first")
    resizes: int = 0
    restarts: int = 0
    pause_ms: float = Field(default=0, description="all pauses of its changes together")
    reason: str = Field(default="", description="why it has this size or waits, in a sentence")
    note: str = Field(default="", description="what to know of it, in a sentence: that its command is no stretto script")
    error: str | None = None


class JobDetails(JobSummary):
    """One job."""

    spec: JobSpec = Field(description="with secrets masked")
    digest: str | None = Field(default=None, description="SHA-256 of the final shared state")
    samples_lost: int = 0
    worker_seconds: float = 0
    cost: float = 0
    run: str | None = Field(default=None, description="the name of its run folder")


class JobPage(BaseModel):
    """A part of the list of jobs, newest first."""

    items: list[JobSummary]
    next: str | None = Field(default=None, description="give it as `cursor` to get the following page")
    total: int


class ScaleWish(Strict):
    """The wanted number of workers, within the job's limits."""

    workers: int = Field(ge=1, le=MOST_WORKERS)
    pin: bool = Field(default=False, description="exactly this many: the policy does not touch it any more")


class JobChange(Strict):
    """Changes of a job; keys that are left out stay as they are."""

    priority: int | None = Field(default=None, ge=-100, le=100)
    deadline: float | None = Field(default=None, ge=0, le=10**11)
    price_limit: float | None = Field(default=None, ge=0, le=10**9)
    plan: list[Stage] | None = Field(default=None, max_length=256)
    wish: None = Field(default=None, description="`null` gives a wish or a pin back to the policy")


class Event(BaseModel):
    """An event; events are append-only. `id` grows over all jobs and is the `id:` of the stream."""

    id: int
    job: JobId | None = None
    t: float
    kind: str
    text: str = Field(description="a sentence for people")
    data: dict[str, Any] = Field(default_factory=dict)


class EventPage(BaseModel):
    """Events, oldest first."""

    items: list[Event]
    next: int | None = Field(default=None, description="give it as `after` to get what follows")


class Series(BaseModel):
    """Curves in columns, oldest first, as plotting libraries want them; None where a name has no value at that step."""

    job: JobId
    step: list[int]
    t: list[float]
    workers: list[int]
    series: dict[str, list[float | None]]
    thinned: bool = Field(description="older points were thinned: the curve is complete, but coarser")
    next: int | None = Field(default=None, description="give it as `after` to get the points that follow")


class Size(BaseModel):
    """A change of the number of workers."""

    t: float
    step: int
    workers: int
    cause: str
    pause_ms: float | None = None


class Sizes(BaseModel):
    """Every number of workers that a job has had."""

    job: JobId
    items: list[Size]


class LogPart(BaseModel):
    """A part of a log. `console` is what the job's agent printed; workers have numbers."""

    source: str
    sources: list[str]
    offset: int
    next: int = Field(description="give it as `offset` to go on")
    text: str
    end: bool = Field(description="the job has ended and nothing follows")
    cut: bool = Field(default=False, description="the log was longer than the bound: its middle is missing")


class Competitor(BaseModel):
    """A job that holds slots another one could use."""

    job: str
    name: str
    workers: int


Constraint = Literal[
    "none",
    "maximum",
    "minimum",
    "slots",
    "pinned",
    "wish",
    "plan",
    "autoscale",
    "refused",
    "policy",
    "guard",
    "paused",
    "starting",
    "ended",
    "quota",
    "price",
    "alarm",
    "plain",
]
"""What binds the size of a job."""


class Explanation(BaseModel):
    """Why a job has its size or waits, which limit binds, and what would change it."""

    job: JobId
    sentence: str
    constraint: Constraint
    competing: list[Competitor] = Field(default_factory=list[Competitor])
    expected_start: float | None = None
    expected_finish: float | None = None
    would_change: list[str] = Field(default_factory=list[str])
    decision: int | None = None
    t: float
