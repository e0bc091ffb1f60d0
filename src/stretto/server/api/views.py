"""What leaves the server: records as the API's shapes, secrets masked, other tenants' jobs hidden."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from stretto.clusters.base import NodeInfo
from stretto.server import models
from stretto.server.jobs.command import note
from stretto.server.jobs.run_progress import RunProgress
from stretto.server.jobs.state import Record
from stretto.server.models import JobState
from stretto.server.spec import JobSpec, scrub
from stretto.server.storage.repository import Stored

OTHER = "other"


def summary(record: Record, known: RunProgress, *, reason: str) -> dict[str, Any]:
    """A line of the list of jobs, as plain values: this is the hot path of lists and streams."""
    progress = known.progress(steps=record.spec.steps)
    elastic = record.spec.elastic
    left = progress["remaining_s"]
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
        "progress": progress,
        "spark": known.spark.line(),
        "resizes": record.resizes,
        "restarts": record.restarts,
        "pause_ms": record.pause_ms,
        "reason": "" if record.state.ended else reason,
        "note": f"stalled: {known.stalled}"
        if known.stalled and not record.state.ended
        else note(record.spec, state=record.state, steps=known.step),
        "error": scrub(record.error, record.spec.secrets()) if record.error else None,
    }


def job(record: Record, known: RunProgress, *, reason: str, cost: float) -> models.Job:
    return models.Job(
        **summary(record, known, reason=reason),
        spec=record.spec.masked(),
        digest=record.digest,
        samples_lost=known.lost,
        worker_seconds=known.worker_seconds,
        cost=cost,
        run=record.run or None,
    )


def event(stored: Stored) -> dict[str, object]:
    """An event without secrets: the first one of a job carries its whole spec."""
    data = stored.data
    if stored.kind == "submitted" and "spec" in data:
        data = {**data, "spec": JobSpec.model_validate(data["spec"]).masked().model_dump(mode="json")}
    return {"id": stored.id, "job": stored.job, "t": stored.t, "kind": stored.kind, "text": stored.text, "data": data}


def seen(record: Record, tenant: str | None) -> bool:
    return tenant is None or record.tenant == tenant


def shares(records: Sequence[Record], *, reasons: dict[str, str], tenant: str | None) -> list[models.Share]:
    """Who has what. Other tenants' jobs are one line: how much they hold is everybody's business, what they are is not."""
    lines = [
        models.Share(job=one.id, name=one.name, workers=one.wanted, nodes=one.nodes, reason=reasons.get(one.id, one.reason))
        for one in records
        if one.nodes and seen(one, tenant)
    ]
    hidden = [one for one in records if one.nodes and not seen(one, tenant)]
    if hidden:
        nodes: dict[str, int] = {}
        for one in hidden:
            for name, count in one.nodes.items():
                nodes[name] = nodes.get(name, 0) + count
        lines.append(models.Share(job=OTHER, name=OTHER, workers=sum(nodes.values()), nodes=nodes, reason=""))
    return lines


def node(info: NodeInfo, records: Sequence[Record], *, cordoned: frozenset[str], tenant: str | None) -> models.Node:
    jobs: dict[str, int] = {}
    for one in records:
        count = one.nodes.get(info.name, 0)
        if count:
            key = one.id if seen(one, tenant) else OTHER
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
