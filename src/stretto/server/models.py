"""The shapes of the API: what every route takes and gives. docs/server.md shows them with examples.

Times are unix seconds (UTC) as numbers; durations have their unit in the name. Ids are made by the server.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from stretto.server.spec import MOST_WORKERS, JobSpec, Name, Stage, Strict

JobId = Annotated[str, StringConstraints(pattern=r"^j-[a-z2-7]{12}$")]
TokenId = Annotated[str, StringConstraints(pattern=r"^t-[a-z2-7]{12}$")]


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
        """Has processes somewhere, or may have."""
        return self in ACTIVE


ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
ACTIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING})


class Scope(StrEnum):
    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"

    def covers(self, other: Scope) -> bool:
        order = (Scope.VIEWER, Scope.SUBMITTER, Scope.ADMIN)
        return order.index(self) >= order.index(other)


class Progress(BaseModel):
    """Where a job stands; None where it has not said."""

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
    nodes: dict[str, int] = Field(default_factory=dict, description="workers on each node")
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    eta: float | None = Field(default=None, description="unix seconds of the expected end")
    progress: Progress = Field(default_factory=Progress)
    spark: list[float] = Field(default_factory=list, description="the loss curve in at most 32 means, oldest first")
    resizes: int = 0
    restarts: int = 0
    pause_ms: float = Field(default=0, description="all pauses of its changes together")
    reason: str = Field(default="", description="why it has this size or waits, in a sentence")
    error: str | None = None


class Job(JobSummary):
    """One job."""

    spec: JobSpec = Field(description="with secrets masked")
    digest: str | None = Field(default=None, description="SHA-256 of the final shared state")
    samples_lost: int = 0
    worker_seconds: float = 0
    cost: float = 0
    run: str | None = Field(default=None, description="the name of its run folder")


class JobPage(BaseModel):
    items: list[JobSummary]
    next: str | None = Field(default=None, description="give it as `cursor` to get the following page")
    total: int


class ScaleWish(Strict):
    workers: int = Field(ge=1, le=MOST_WORKERS)
    pin: bool = Field(default=False, description="exactly this many: the policy does not touch it any more")


class JobChange(Strict):
    """Only the keys that are given change."""

    priority: int | None = Field(default=None, ge=-100, le=100)
    deadline: float | None = Field(default=None, ge=0, le=10**11)
    price_limit: float | None = Field(default=None, ge=0, le=10**9)
    plan: list[Stage] | None = Field(default=None, max_length=256)
    wish: None = Field(default=None, description="`null` gives a wish or a pin back to the policy")


class Event(BaseModel):
    """Append-only. `id` grows over all jobs; it is the `id:` of the stream."""

    id: int
    job: JobId | None = None
    t: float
    kind: str
    text: str = Field(description="a sentence for people")
    data: dict[str, Any] = Field(default_factory=dict)


class EventPage(BaseModel):
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


class Node(BaseModel):
    name: str
    type: str = "cpu"
    slots: int
    used: int = 0
    alive: bool = True
    cordoned: bool = Field(default=False, description="gets no new workers, and loses those it has")
    price: float = Field(default=0, description="of one slot and hour")
    jobs: dict[str, int] = Field(default_factory=dict, description="workers of each job; jobs of other tenants together as `other`")


class Nodes(BaseModel):
    items: list[Node]
    slots: int
    used: int


class NodeChange(Strict):
    cordoned: bool


class Share(BaseModel):
    """What a job has been given."""

    job: str = Field(description="the id, or `other` for another tenant's job")
    name: str
    workers: int
    nodes: dict[str, int]
    reason: str


class Allocation(BaseModel):
    decision: int | None
    t: float | None
    policy: str
    slots: int
    free: int
    items: list[Share]


class Bar(BaseModel):
    """A stretch of the picture of slots over time: this many slots of a node belonged to the job from start to end."""

    job: str
    name: str
    node: str
    slots: int
    start: float
    end: float | None = None


class History(BaseModel):
    since: float
    until: float
    slots: int
    items: list[Bar]


class Change(BaseModel):
    job: str
    name: str
    before: int
    after: int
    reason: str


class Decision(BaseModel):
    id: int
    t: float
    trigger: str
    policy: str
    seconds: float
    kept: bool = Field(description="the policy failed, and the old allocation was kept")
    alarm: str | None = None
    changes: list[Change] = Field(default_factory=list)


class DecisionPage(BaseModel):
    items: list[Decision]
    next: int | None = None


class Competitor(BaseModel):
    job: str
    name: str
    workers: int


class Explanation(BaseModel):
    job: JobId
    sentence: str
    constraint: Literal[
        "none",
        "maximum",
        "minimum",
        "slots",
        "pinned",
        "wish",
        "plan",
        "autoscale",
        "policy",
        "guard",
        "paused",
        "starting",
        "ended",
        "quota",
        "price",
        "alarm",
    ]
    competing: list[Competitor] = Field(default_factory=list)
    expected_start: float | None = None
    expected_finish: float | None = None
    would_change: list[str] = Field(default_factory=list)
    decision: int | None = None
    t: float


class Policy(BaseModel):
    name: str
    text: str
    active: bool


class Policies(BaseModel):
    items: list[Policy]
    active: str
    interval_s: float


class PolicyChoice(Strict):
    name: Name


class WhatIfRequest(Strict):
    policy: Name
    hours: float = Field(default=6, gt=0, le=168)
    baseline: Name | None = Field(default=None, description="what to compare with; the active policy if absent")


class Outcome(BaseModel):
    policy: str
    average_s: float
    median_s: float
    p99_s: float
    makespan_s: float
    utilisation: float
    jobs: dict[str, float] = Field(default_factory=dict, description="completion seconds of each job")


class WhatIf(BaseModel):
    hours: float
    jobs: int
    baseline: Outcome
    other: Outcome
    ratio: float = Field(description="average completion of `other` over `baseline`: below 1 is better")
    sentence: str


class TokenRequest(Strict):
    name: Name
    scope: Scope
    tenant: Name = "default"
    expires_s: float | None = Field(default=None, gt=0, le=10 * 365 * 86400, description="seconds from now; never if absent")


class Token(BaseModel):
    id: TokenId
    name: str
    scope: Scope
    tenant: Name
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None


class NewToken(Token):
    secret: str = Field(description="shown once: only its hash is kept")


class Tokens(BaseModel):
    items: list[Token]


class Alarm(BaseModel):
    name: str
    text: str
    since: float
    count: int


class Overview(BaseModel):
    """The head of the page."""

    version: str
    t: float
    policy: str
    cluster: str
    slots: int
    used: int
    jobs: dict[JobState, int]
    alarms: list[Alarm]
    last_event: int
    ready: bool


class TraceRow(BaseModel):
    name: str
    time: float = Field(description="submission, seconds after the first")
    tenant: Name
    min_workers: int
    max_workers: int
    priority: int
    state: JobState
    duration_s: float | None
    worker_seconds: float
    batch: int | None = None
    steps: int = Field(description="committed, or declared where more")
    throughput: dict[str, float] = Field(default_factory=dict, description="samples a second measured at each number of workers")
    model: dict[str, float] = Field(default_factory=dict, description="the fitted throughput model that the job reported")
    noise_scale: float | None = Field(default=None, description="in samples, as last reported")


class Trace(BaseModel):
    since: float
    until: float
    slots: int
    nodes: dict[str, int]
    items: list[TraceRow]


class Problem(BaseModel):
    """Every error has this shape. `detail` says what, the value, the bound and the fix."""

    status: int
    title: str
    detail: str
    errors: list[dict[str, Any]] = Field(default_factory=list, description="the places in a body that were wrong: `at`, `text`")
