"""Converts records to the API's shapes: masks secrets and hides other tenants' jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stretto.clusters.base import NodeInfo
from stretto.server import VERSION, models
from stretto.server.api.sse import dump
from stretto.server.jobs.command import note
from stretto.server.jobs.job_store import JobStore
from stretto.server.jobs.run_progress import RunProgress, finite
from stretto.server.jobs.state import JobRecord
from stretto.server.models import ACTIVE, JobState
from stretto.server.spec import JobSpec, scrub
from stretto.server.storage.repository import Stored

if TYPE_CHECKING:
    from stretto.server.app import Server


OTHER = "other"


def summary(record: JobRecord, progress: RunProgress, *, reason: str) -> dict[str, Any]:
    """A line of the list of jobs, as plain values: this is the hot path of lists and streams."""
    fields = progress.summary(steps=record.spec.steps)
    elastic = record.spec.elastic
    left = fields["remaining_s"]
    eta = time.time() + left if record.state is JobState.RUNNING and left is not None else None
    return {
        "id": record.id,
        "name": record.name,
        "tenant": record.tenant,
        "state": str(record.state),
        "version": record.version,
        "workers": record.workers,
        "wanted": record.wanted,
        "min": elastic.min,
        "max": elastic.max,
        "wish": record.wish,
        "pinned": record.pinned,
        "priority": record.spec.priority,
        "nodes": record.nodes,
        "submitted_at": record.submitted_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "eta": eta,
        "progress": fields,
        "spark": progress.spark.line(),
        "resizes": record.resizes,
        "restarts": record.restarts,
        "pause_ms": record.pause_ms,
        "reason": "" if record.state.ended else reason,
        "note": f"stalled: {progress.stalled}"
        if progress.stalled and not record.state.ended
        else note(record.spec, state=record.state, steps=progress.step),
        "error": scrub(record.error, record.spec.secrets()) if record.error else None,
    }


def job(record: JobRecord, progress: RunProgress, *, reason: str, cost: float) -> models.JobDetails:
    return models.JobDetails(
        **summary(record, progress, reason=reason),
        spec=record.spec.masked(),
        digest=record.digest,
        samples_lost=progress.lost,
        worker_seconds=progress.worker_seconds,
        cost=cost,
        run=record.run or None,
    )


def event(stored: Stored) -> dict[str, object]:
    """An event without secrets: the first one of a job carries its whole spec."""
    data = stored.data
    if stored.kind == "submitted" and "spec" in data:
        data = {**data, "spec": JobSpec.model_validate(data["spec"]).masked().model_dump(mode="json")}
    return {"id": stored.id, "job": stored.job, "t": stored.t, "kind": stored.kind, "text": stored.text, "data": data}


def seen(record: JobRecord, tenant: str | None) -> bool:
    return tenant is None or record.tenant == tenant


def shares(records: Sequence[JobRecord], *, reasons: dict[str, str], tenant: str | None) -> list[models.Share]:
    """The slots of each job. Other tenants' jobs are one line: how much they hold is public, what they are is not."""
    lines = [
        models.Share(
            job=record.id, name=record.name, workers=record.wanted, nodes=record.nodes, reason=reasons.get(record.id, record.reason)
        )
        for record in records
        if record.nodes and seen(record, tenant)
    ]
    hidden = [record for record in records if record.nodes and not seen(record, tenant)]
    if hidden:
        nodes: dict[str, int] = {}
        for record in hidden:
            for name, count in record.nodes.items():
                nodes[name] = nodes.get(name, 0) + count
        lines.append(models.Share(job=OTHER, name=OTHER, workers=sum(nodes.values()), nodes=nodes, reason=""))
    return lines


def node(info: NodeInfo, records: Sequence[JobRecord], *, cordoned: frozenset[str], tenant: str | None) -> models.Node:
    jobs: dict[str, int] = {}
    for record in records:
        count = record.nodes.get(info.name, 0)
        if count:
            key = record.id if seen(record, tenant) else OTHER
            jobs[key] = jobs.get(key, 0) + count
    return models.Node(
        name=info.name,
        type=info.kind,
        slots=info.slots,
        used=sum(jobs.values()),
        cordoned=info.name in cordoned or bool(info.draining),
        price=info.price,
        jobs=jobs,
    )


def slots(server: Server) -> int:
    return sum(node.slots for node in server.cluster.nodes())


def allocation(server: Server, tenant: str | None) -> models.ClusterAllocation:
    records = server.book.with_state(*ACTIVE)
    total = slots(server)
    return models.ClusterAllocation(
        decision=server.decider.last,
        t=server.decider.last_at,
        policy=server.decider.policy,
        slots=total,
        free=max(0, total - sum(record.wanted for record in records)),
        items=shares(records, reasons={record.id: server.reason(record) for record in records}, tenant=tenant),
    )


def nodes(server: Server, tenant: str | None) -> models.Nodes:
    records = server.book.with_state(*ACTIVE)
    items = [node(info, records, cordoned=server.decider.cordoned, tenant=tenant) for info in server.cluster.nodes()]
    return models.Nodes(items=items, slots=sum(item.slots for item in items), used=sum(item.used for item in items))


def counts(server: Server, tenant: str | None) -> dict[JobState, int]:
    counts = dict.fromkeys(JobState, 0)
    for record in server.book.records.values():
        if seen(record, tenant):
            counts[record.state] += 1
    return counts


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
            models.Alarm(name=alarm.name, text=alarm.text, since=alarm.since, count=alarm.count)
            for alarm in server.conductor.alarms.raised.values()
            if tenant is None or not alarm.name.startswith("job ")
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
    running_progress = [server.book.progress[record.id] for record in running]
    measures.goodput.set(
        sum(finite(progress.report.get("goodput")) or progress.samples_per_s or 0.0 for progress in running_progress)
    )
    return measures.text()


MOST_LINES = 10_000
"""About a kilobyte each; with more jobs than this they are written again."""


@dataclass(slots=True)
class JobLines:
    """The list of jobs as it is sent: one line of JSON per job, written once for all clients.

    Fifty open pages and their streams show the same two hundred jobs several times a second. A line changes when its job has an
    event, commits a step, reports something, or gets another reason; until then it is handed out as it is.
    """

    book: JobStore
    reason: Callable[[JobRecord], str]
    _written: dict[str, tuple[tuple[object, ...], str]] = field(default_factory=dict[str, tuple[tuple[object, ...], str]])

    def of(self, job: str, tenant: str | None) -> str | None:
        """The line of a job; None if the job is gone or this tenant must not see it."""
        record = self.book.records.get(job)
        if record is None or not seen(record, tenant):
            return None
        progress, reason = self.book.progress[job], self.reason(record)
        state = _state(record, progress, reason)
        written = self._written.get(job)
        if written is None or written[0] != state:
            if len(self._written) >= MOST_LINES:
                self._written.clear()
            written = self._written[job] = state, dump(summary(record, progress, reason=reason))
        return written[1]


def _state(record: JobRecord, progress: RunProgress, reason: str) -> tuple[object, ...]:
    """The values of a line that change."""
    return record.version, progress.life, progress.step, progress.at, progress.loss, progress.report, reason
