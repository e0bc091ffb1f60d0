"""Converts the server's records to what a policy sees: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stretto.batching.goodput import BatchRange, GoodputModel
from stretto.batching.throughput import Observation, ThroughputModel, fit
from stretto.clusters.base import NodeInfo
from stretto.core.json_types import JsonValue, to_int, to_object
from stretto.core.text import quantity
from stretto.scheduling.types import ClusterNode, Placement, SchedulableJob
from stretto.server.decisions.efficiency_cap import paying
from stretto.server.jobs.command import scales
from stretto.server.jobs.run_progress import RunProgress, finite
from stretto.server.jobs.state import JobRecord
from stretto.server.models import JobState

SCHEDULED = frozenset({JobState.QUEUED, JobState.STARTING, JobState.RUNNING})
"""States of jobs that decisions are about. Jobs that are being paused or cancelled hold their slots until they are gone."""
START_PAUSE_S = 0.5
"""The assumed pause of a resize until one was measured."""


def limits(record: JobRecord, progress: RunProgress) -> tuple[int, int, str]:
    """(least, most, why) for the policy: the job's own limits, narrowed by a plan, a pin, a wish, efficiency, or what the job's
    agent has refused. A plain process has its minimum only."""
    elastic = record.spec.elastic
    if not scales(record.spec):
        return elastic.min, elastic.min, "plain"
    staged = [stage.workers for stage in elastic.plan if stage.step <= progress.step]
    if staged:
        return staged[-1], staged[-1], "plan"
    if record.wish is not None and record.pinned:
        return record.wish, record.wish, "pinned"
    if record.wish is not None:
        return elastic.min, max(elastic.min, min(elastic.max, record.wish)), "wish"
    if progress.refused_above is not None and progress.refused_above < elastic.max:
        return elastic.min, max(elastic.min, progress.refused_above), "refused"
    if elastic.autoscale is not None and elastic.autoscale.efficiency is not None:
        speeds = {int(size): speed for size, speed in progress.speeds.items()}
        bar = elastic.autoscale.efficiency
        most = paying(speeds, efficiency=bar, least=elastic.min, most=elastic.max, have=record.wanted)
        return elastic.min, most, "autoscale" if most < elastic.max else ""
    return elastic.min, elastic.max, ""


def never(record: JobRecord, progress: RunProgress, *, nodes: Iterable[NodeInfo], quota: int | None) -> str:
    """Why this job can never run as things are; empty if it can."""
    least, _, why = limits(record, progress)
    slots = sum(node.slots for node in usable_nodes(record, nodes))
    needs = f"{'is pinned to' if why == 'pinned' else 'needs'} {quantity(least, 'slot')}"
    if least > slots:
        kind = record.spec.resources.node_type
        where = f" on nodes of type '{kind}'" if kind is not None else ""
        return f"can never run here: it {needs}{where}, the cluster has {slots or ('none' if kind is not None else 0)}"
    if quota is not None and least > quota:
        return f"can never run here: it {needs}, tenant '{record.tenant}' may hold {quota} (--quota)"
    return ""


def usable_nodes(record: JobRecord, nodes: Iterable[NodeInfo]) -> list[NodeInfo]:
    """The nodes of the type that the job asks for (`resources.node_type`); all if it asks for none."""
    kind = record.spec.resources.node_type
    return [node for node in nodes if kind is None or node.kind == kind]


def job_view(
    record: JobRecord,
    progress: RunProgress,
    *,
    quota: int | None,
    now: float,
    finished: tuple[float, ...] = (),
    batch: int | None = None,
) -> SchedulableJob:
    """A job as far as a policy may know it. `finished`: what jobs of its family took that have ended well; `batch`: that of its
    family, for a job that has not begun."""
    least, most, why = limits(record, progress)
    steps = progress.steps_in_all(record.spec.steps)
    left = max(0, steps - progress.step) if steps else None
    batch = progress.batch or batch
    model = fitted(progress.report)
    return SchedulableJob(
        name=record.id,
        arrival_s=record.submitted_at,
        least=least,
        declared_least=record.spec.elastic.min,
        most=most,
        wanted=record.wish if record.wish is not None else most,
        profiled=max((int(size) for size in progress.speeds), default=0),
        priority=2.0 ** (record.spec.priority / 10.0),
        deadline_s=record.spec.deadline,
        pinned=why == "pinned" and record.wanted == record.wish and record.state is not JobState.QUEUED,
        # A job that is starting has no checkpoint of this attempt yet.
        preemptible=record.spec.preemptible and record.state is not JobState.STARTING,
        owner=record.tenant,
        quota=quota,
        node_kind=record.spec.resources.node_type,
        attained_s=progress.worker_seconds,
        restarts=record.resizes,
        changed_s=past(record.changed_at, now=now),
        turn_began_s=turn_began(record, now=now),
        pause_s=record.pause_ms / record.resizes / 1000.0 if record.resizes else START_PAUSE_S,
        remaining=float(left * batch) if left is not None and batch else None,
        done=float(progress.samples),
        finished=finished,
        steps_left=float(left) if left is not None else None,
        losses=losses(progress),
        models={"default": model} if model is not None else {},
        utilisation=finite(progress.report.get("utilisation")),
    )


def turn_began(record: JobRecord, *, now: float) -> float | None:
    """When its turn began. One that began in the future is over: else the job would keep the cluster until then."""
    if record.turn_at is None or record.turn_at <= now:
        return record.turn_at
    return float("-inf")


def past(at: float | None, *, now: float) -> float | None:
    """The time if it has come. Else None: the clock was set back since, and no job may have to wait until it has caught up."""
    return at if at is not None and at <= now else None


def losses(progress: RunProgress) -> tuple[tuple[float, float], ...]:
    """The loss curve with times, evenly spread back from the last commit at the present speed."""
    each = 1.0 / progress.steps_per_s if progress.steps_per_s else 1.0
    spark = progress.spark
    return tuple((progress.at - ago * each, loss) for ago, loss in zip(spark.steps_ago(), spark.means, strict=True))


def fitted(report: Mapping[str, JsonValue]) -> GoodputModel | None:
    """The goodput model that a job has reported (docs/reference/metrics.md), or None where it is absent or makes no sense."""
    model = report.get("model")
    if not isinstance(model, dict):
        return None
    try:
        throughput = ThroughputModel(**{key: _number(value) for key, value in to_object(model["throughput"]).items()})
        batch = BatchRange(**{key: to_int(value) for key, value in to_object(model["batch"]).items() if value is not None})
        goodput = GoodputModel(throughput, _number(model["grad_sqr"]), _number(model["grad_var"]), batch)
        return goodput if goodput.sane else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _number(value: JsonValue) -> float:
    if value is None or isinstance(value, list | dict):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def from_speeds(batch: int, speeds: Sequence[tuple[int, float]]) -> GoodputModel | None:
    """A model for a fixed batch from measured speeds alone. Limits are not in it: a pin comes and goes, what was measured stays."""
    alone = dict(speeds).get(1)
    measured = [
        Observation(1, workers, max(1, batch // workers), batch / (alone * workers) if alone else batch / speed, batch / speed)
        for workers, speed in speeds
        if speed > 0 and workers > 0
    ]
    if not measured:
        return None
    model = GoodputModel(fit(measured), 1.0, 0.0, BatchRange(batch, batch, fixed=batch))
    return model if model.sane else None


def nodes_view(nodes: Iterable[NodeInfo], *, cordoned: frozenset[str]) -> tuple[ClusterNode, ...]:
    usable = [node for node in nodes if node.name not in cordoned and not node.draining]
    return tuple(ClusterNode(node.name, node.slots, node.kind, node.price * node.slots, node.spot) for node in usable)


def places_view(records: Iterable[JobRecord]) -> dict[str, Placement]:
    return {record.id: tuple(record.nodes.items()) for record in records if record.nodes}


def without_held(nodes: Sequence[ClusterNode], leaving: Iterable[JobRecord]) -> tuple[ClusterNode, ...]:
    """The nodes without the slots of jobs that are being paused or cancelled."""
    taken: dict[str, int] = {}
    for record in leaving:
        for node, count in record.nodes.items():
            taken[node] = taken.get(node, 0) + count
    return tuple(
        ClusterNode(node.name, max(0, node.slots - taken.get(node.name, 0)), node.kind, node.price, node.spot) for node in nodes
    )
