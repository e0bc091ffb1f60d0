"""Nodes, the present and past allocations, and the head of the page."""

from __future__ import annotations

from pydantic import BaseModel, Field

from stretto.server.models.jobs import JobState
from stretto.server.spec import Strict


class Node(BaseModel):
    """A node, its slots, and the jobs on it."""

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
    """All nodes, and the sum of their slots."""

    items: list[Node]
    slots: int
    used: int


class NodeChange(Strict):
    """Takes a node out of use, or back into it."""

    cordoned: bool


class Share(BaseModel):
    """The slots of a job."""

    job: str = Field(description="the id, or `other` for another tenant's job")
    name: str
    workers: int
    nodes: dict[str, int]
    reason: str


class ClusterAllocation(BaseModel):
    """Which job has which slots since the last decision, and why."""

    decision: int | None
    t: float | None
    policy: str
    slots: int
    free: int
    items: list[Share]


class Bar(BaseModel):
    """An interval in which a job held this number of a node's slots."""

    job: str
    name: str
    node: str
    slots: int
    start: float
    end: float | None = None


class History(BaseModel):
    """Slots over time, between two times."""

    since: float
    until: float
    slots: int
    items: list[Bar]


class Alarm(BaseModel):
    """A problem that needs attention."""

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
