"""What the server has recorded, as a workload that the simulator can replay."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from stretto.batching.goodput import GoodputModel
from stretto.server import models
from stretto.server.api.views import seen
from stretto.server.decisions.snapshot import fitted
from stretto.server.jobs.run_progress import finite

if TYPE_CHECKING:
    from stretto.server.app import Server


def trace_of(server: Server, *, tenant: str | None, hours: float) -> models.Trace:
    until = time.time()
    since = until - hours * 3600
    records = [record for record in server.book.records.values() if seen(record, tenant) and (record.ended_at or until) >= since]
    records.sort(key=lambda record: record.submitted_at)
    first = records[0].submitted_at if records else until
    rows: list[models.TraceRow] = []
    for record in records:
        progress = server.book.progress[record.id]
        model = fitted(progress.report)
        rows.append(
            models.TraceRow(
                name=record.name,
                time=record.submitted_at - first,
                tenant=record.tenant,
                min_workers=record.spec.elastic.min,
                max_workers=record.spec.elastic.max,
                priority=record.spec.priority,
                node_type=record.spec.resources.node_type,
                preemptible=record.spec.preemptible,
                state=record.state,
                duration_s=record.ended_at - record.submitted_at if record.ended_at is not None else None,
                worker_seconds=progress.worker_seconds,
                batch=progress.batch,
                steps=max(progress.step, progress.steps_in_all(record.spec.steps) or 0),
                throughput=progress.speeds,
                model=_numbers(model, progress.batch) if model is not None else {},
                noise_scale=finite(progress.report.get("noise_scale")),
            )
        )
    nodes = {node.name: node.slots for node in server.cluster.nodes()}
    kinds = {node.name: node.kind for node in server.cluster.nodes()}
    return models.Trace(since=since, until=until, slots=sum(nodes.values()), nodes=nodes, kinds=kinds, items=rows)


def _numbers(model: GoodputModel, batch: int | None) -> dict[str, float]:
    """As simulators take it: for local batches, whatever the job's slices."""
    speeds, slices = model.throughput, model.batch.slices
    return asdict(speeds.whole(batch=batch or model.batch.initial, slices=slices) if slices else speeds)
