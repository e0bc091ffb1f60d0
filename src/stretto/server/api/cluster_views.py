"""Views that need more than one job: the allocation, the nodes, the overview."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stretto.server import VERSION, models
from stretto.server.api import views
from stretto.server.jobs.run_progress import finite
from stretto.server.models import ACTIVE, JobState

if TYPE_CHECKING:
    from stretto.server.app import Server


def slots(server: Server) -> int:
    return sum(node.slots for node in server.cluster.nodes())


def allocation(server: Server, tenant: str | None) -> models.Allocation:
    records = server.book.with_state(*ACTIVE)
    total = slots(server)
    return models.Allocation(
        decision=server.decider.last,
        t=server.decider.last_at,
        policy=server.decider.policy,
        slots=total,
        free=max(0, total - sum(record.wanted for record in records)),
        items=views.shares(records, reasons={one.id: server.reason(one) for one in records}, tenant=tenant),
    )


def nodes(server: Server, tenant: str | None) -> models.Nodes:
    records = server.book.with_state(*ACTIVE)
    items = [views.node(info, records, cordoned=server.decider.cordoned, tenant=tenant) for info in server.cluster.nodes()]
    return models.Nodes(items=items, slots=sum(one.slots for one in items), used=sum(one.used for one in items))


def counts(server: Server, tenant: str | None) -> dict[JobState, int]:
    found = dict.fromkeys(JobState, 0)
    for record in server.book.records.values():
        if views.seen(record, tenant):
            found[record.state] += 1
    return found


def overview(server: Server, tenant: str | None) -> models.Overview:
    return models.Overview(
        version=VERSION,
        t=time.time(),
        policy=server.decider.policy,
        cluster=server.cluster.name,
        slots=slots(server),
        used=sum(record.wanted for record in server.book.with_state(*ACTIVE)),
        jobs=counts(server, tenant),
        alarms=[
            models.Alarm(name=one.name, text=one.text, since=one.since, count=one.count)
            for one in server.conductor.alarms.raised.values()
            if tenant is None or not one.name.startswith("job ")
        ],
        last_event=server.hub.last,
        ready=ready(server),
    )


def ready(server: Server) -> bool:
    return (
        not server.stopping.is_set()
        and all(not task.done() for task in server.tasks)
        and "database" not in server.conductor.alarms.raised
    )


def measure(server: Server) -> bytes:
    """Brings the gauges up to date and gives all of them as text."""
    measures = server.conductor.measures
    for state, count in counts(server, None).items():
        measures.jobs.labels(state=str(state)).set(count)
    running = server.book.with_state(*ACTIVE)
    measures.slots.set(slots(server))
    measures.used.set(sum(record.wanted for record in running))
    measures.streams.set(len(server.hub.readers))
    measures.alarms.set(len(server.conductor.alarms.raised))
    knowns = [server.book.known[record.id] for record in running]
    measures.goodput.set(sum(finite(one.report.get("goodput")) or one.samples_per_s or 0.0 for one in knowns))
    return measures.text()
