"""Decisions, policies, what-if replays and their traces."""

from __future__ import annotations

from pydantic import BaseModel, Field

from stretto.server.models.jobs import JobState
from stretto.server.spec import Name, Strict


class Change(BaseModel):
    """A job whose number of workers a decision has changed, and why."""

    job: str
    name: str
    before: int
    after: int
    reason: str


class PolicyDecision(BaseModel):
    """A decision: its cause, its policy, and what it changed."""

    id: int
    t: float
    trigger: str
    policy: str
    seconds: float
    kept: bool = Field(description="the policy failed, and the old allocation was kept")
    alarm: str | None = None
    changes: list[Change] = Field(default_factory=list[Change])


class DecisionPage(BaseModel):
    """Decisions, newest first."""

    items: list[PolicyDecision]
    next: int | None = None


class Policy(BaseModel):
    """A policy that can decide."""

    name: str
    text: str
    active: bool


class Policies(BaseModel):
    """All policies, and the one that decides now."""

    items: list[Policy]
    active: str
    interval_s: float


class PolicyChoice(Strict):
    """The policy that decides from now on."""

    name: Name


class WhatIfRequest(Strict):
    """A replay of the last hours under another policy."""

    policy: Name
    hours: float = Field(default=6, gt=0, le=168)
    baseline: Name | None = Field(default=None, description="what to compare with; the active policy if absent")


class Outcome(BaseModel):
    """The results of a replay under one policy."""

    policy: str
    average_s: float
    median_s: float
    p99_s: float
    makespan_s: float
    utilisation: float
    jobs: dict[str, float] = Field(default_factory=dict[str, float], description="completion seconds of each job")


class WhatIf(BaseModel):
    """Two policies on the same recorded jobs."""

    hours: float
    jobs: int
    baseline: Outcome
    other: Outcome
    ratio: float = Field(description="average completion of `other` over `baseline`: below 1 is better")
    sentence: str


class TraceRow(BaseModel):
    """A job as it was recorded, for the simulator."""

    name: str
    time: float = Field(description="submission, seconds after the first")
    tenant: Name
    min_workers: int
    max_workers: int
    priority: int
    node_type: Name | None = Field(default=None, description="only on nodes of this type")
    preemptible: bool = True
    state: JobState
    duration_s: float | None
    worker_seconds: float
    batch: int | None = None
    steps: int = Field(description="committed, or declared where more")
    throughput: dict[str, float] = Field(
        default_factory=dict[str, float], description="samples a second measured at each number of workers"
    )
    model: dict[str, float] = Field(
        default_factory=dict[str, float], description="the fitted throughput model that the job reported"
    )
    noise_scale: float | None = Field(default=None, description="in samples, as last reported")


class Trace(BaseModel):
    """The jobs of the last hours, for the simulator."""

    since: float
    until: float
    slots: int
    nodes: dict[str, int]
    kinds: dict[str, str] = Field(default_factory=dict, description="the type of each node")
    items: list[TraceRow]
