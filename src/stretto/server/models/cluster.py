"""Nodes, who has which slots now and had them before, and the head of the page."""

from __future__ import annotations

from pydantic import BaseModel, Field

from stretto.server.models.jobs import JobState
from stretto.server.spec import Strict


class Node(BaseModel):
    name: str
    type: str = "cpu"
    slots: int
    used: int = 0
    alive: bool = True
    cordoned: bool = Field(default=False, description="gets no new workers, and loses those it has")
    price: float = Field(default=0, description="of one slot and hour")
    jobs: dict[str, int] = Field(
        default_factory=dict[str, int], description="workers of each job; jobs of other tenants together as `other`"
    )


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
