"""A job's events, curves, sizes, logs and explanation."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response

from stretto.clusters.base import LogPage, RunRef
from stretto.server import models
from stretto.server.api import views
from stretto.server.api.routes.auth import PROBLEMS, VIEW, Caller, Guarded, Who
from stretto.server.api.routes.jobs import JobId
from stretto.server.api.sse import columns, dump
from stretto.server.api.views import slots
from stretto.server.decisions.explain import explain
from stretto.server.jobs.run_progress import Point
from stretto.server.jobs.state import JobRecord
from stretto.server.models import ACTIVE, JobState
from stretto.server.spec import scrub
from stretto.server.storage.repository import MOST_POINTS

router = APIRouter(prefix="/v1", route_class=Guarded, tags=["runs"], responses=PROBLEMS)

MOST_LOG = 1 << 20
After = Annotated[int, Query(ge=0, le=2**62)]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/events", response_model=models.EventPage, openapi_extra=VIEW)
async def events(who: Who, after: After = 0, limit: Limit = 100) -> Response:
    """The events of all jobs, oldest first."""
    return await _events(who, after=after, limit=limit, job=None)


@router.get("/jobs/{job}/events", response_model=models.EventPage, openapi_extra=VIEW)
async def job_events(who: Who, job: JobId, after: After = 0, limit: Limit = 100) -> Response:
    return await _events(who, after=after, limit=limit, job=who.record(job).id)


async def _events(who: Caller, *, after: int, limit: int, job: str | None) -> Response:
    stored = await asyncio.to_thread(who.server.storage.events, after=after, limit=limit, job=job, tenant=who.tenant)
    items = ",".join(dump(views.event(event)) for event in stored)
    following = stored[-1].id if stored else after
    return Response(f'{{"items":[{items}],"next":{following}}}', media_type="application/json")


@router.get("/jobs/{job}/metrics", response_model=models.Series, openapi_extra=VIEW)
async def metrics(
    who: Who,
    job: JobId,
    names: Annotated[str | None, Query(max_length=2000, description="comma-separated; all if absent")] = None,
    after: Annotated[int, Query(ge=-1, le=2**62, description="only points of later steps")] = -1,
    points: Annotated[int, Query(ge=2, le=10_000)] = 2000,
) -> Response:
    """Curves in columns, downsampled evenly to at most `points`; the first and the last point stay."""
    record = who.record(job)
    stored = await asyncio.to_thread(who.server.storage.points, record.id, after=after)
    fresh = [point for point in who.server.book.buffered.get(record.id, []) if point.step > after]
    all_points = sorted({point.step: point for point in [*stored, *fresh]}.values(), key=lambda point: point.step)
    chosen = spread(all_points, points)
    if names is not None:
        keep = set(names.split(","))
        chosen = [
            Point(point.step, point.t, point.workers, {k: v for k, v in point.values.items() if k in keep}) for point in chosen
        ]
    body = {**columns(record.id, chosen), "thinned": len(stored) > MOST_POINTS // 2 or len(chosen) < len(all_points)}
    body["next"] = all_points[-1].step if all_points else (after if after >= 0 else None)
    return Response(dump(body), media_type="application/json")


def spread(points: list[Point], most: int) -> list[Point]:
    if len(points) <= most:
        return points
    return [points[(len(points) - 1) * place // (most - 1)] for place in range(most)]


@router.get("/jobs/{job}/sizes", response_model=models.Sizes, openapi_extra=VIEW)
async def sizes(who: Who, job: JobId) -> models.Sizes:
    """The number of workers over time, with the pause of every change."""
    record = who.record(job)
    items: list[models.Size] = []
    for event in await asyncio.to_thread(who.server.storage.resizes, record.id):
        workers = int(event.data.get("workers") or 0)
        step = int(event.data.get("step") or event.data.get("steps") or (items[-1].step if items else 0))
        cause = str(event.data.get("cause") or event.kind)
        items.append(models.Size(t=event.t, step=step, workers=workers, cause=cause, pause_ms=event.data.get("pause_ms")))
    return models.Sizes(job=record.id, items=items)


@router.get("/jobs/{job}/logs", response_model=models.LogPart, openapi_extra=VIEW)
async def logs(
    who: Who,
    job: JobId,
    source: Annotated[str, Query(pattern=r"^[a-z0-9-]{1,40}$")] = "console",
    offset: After = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_LOG)] = 256 * 1024,
    tail: Annotated[int | None, Query(ge=1, le=MOST_LOG, description="the last so many bytes, instead of an offset")] = None,
) -> models.LogPart:
    """A part of a log. `source` is one of `sources`: it names a log that the cluster has listed, it is not a path."""
    record = who.record(job)
    after, most = (None, tail) if tail is not None else (offset, limit)
    page = await who.server.cluster.logs(RunRef(record.id, record.life, record.run), source, after=after, limit=most)
    if source not in page.sources:
        raise HTTPException(404, f"job {job} has no log '{source}': it has {', '.join(page.sources) or 'none yet'}")
    return _log_part(record, source, page)


def _log_part(record: JobRecord, source: str, page: LogPage) -> models.LogPart:
    ended = record.state not in ACTIVE
    data = _whole(page.data, page.begin + len(page.data) >= page.size and ended)
    text = scrub(data.decode("utf-8", "replace"), record.spec.secrets())
    following = page.begin + len(data)
    return models.LogPart(
        source=source,
        sources=list(page.sources),
        offset=page.begin,
        next=following,
        text=text,
        end=ended and following >= page.size,
        cut="[stretto] the log is full" in text,
    )


def _whole(data: bytes, last: bool) -> bytes:
    """Cuts off an incomplete last line, so that no secret is split between two parts. At the end of the log, keeps it."""
    if last:
        return data
    end = data.rfind(b"\n") + 1
    return data[:end] if end else (data if len(data) > 4096 else b"")


@router.get("/jobs/{job}/explanation", response_model=models.Explanation, openapi_extra=VIEW)
async def explanation(who: Who, job: JobId) -> models.Explanation:
    """Why it has this size or waits."""
    record, server = who.record(job), who.server
    return explain(
        record,
        server.book.progress[record.id],
        others=server.book.with_state(JobState.QUEUED, *ACTIVE),
        all_progress=server.book.progress,
        slots=slots(server),
        nodes=server.cluster.nodes(),
        now=time.time(),
        reason=server.reason(record),
        decision=server.decider.last,
        alarm=server.decider.alarm,
        tenant=who.tenant,
        resizes=server.decider.resizes,
        quota=server.settings.quota,
        lasted=server.book.families.lasted,
    )
