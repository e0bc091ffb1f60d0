"""The stream of server-sent events."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from stretto.server import models
from stretto.server.api import views
from stretto.server.api.routes.auth import PROBLEMS, VIEW, Caller, Guarded, Who
from stretto.server.api.sse import MOST_RESUMED, dump, frame, visible
from stretto.server.api.views import allocation

router = APIRouter(prefix="/v1", route_class=Guarded, tags=["stream"], responses=PROBLEMS)


@router.get(
    "/stream",
    openapi_extra=VIEW,
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream(
    who: Who,
    job: Annotated[models.JobId | None, Query(description="also the points of this job's curves")] = None,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
    last: Annotated[int | None, Query(alias="last_event_id", ge=0, le=2**62)] = None,
) -> StreamingResponse:
    """`hello`, then what was missed, then what happens."""
    if job is not None:
        who.record(job)
    hub = who.server.hub
    # First listen, then look back: nothing can fall between. What the look back has is not in the reader's frames yet,
    # because frames are handed out by the hub's own tick, and those of before `now` are dropped there.
    hub.tick(now=asyncio.get_running_loop().time())
    reader = hub.reader(tenant=who.tenant, job=job)
    now = hub.last
    try:
        opening = await _opening(who, _resume(last_event_id, last), now)
    except BaseException:
        hub.readers.discard(reader)
        raise
    body = hub.stream(reader, opening=opening, stop=who.server.stopping)
    return StreamingResponse(body, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _resume(header: str | None, query: int | None) -> int | None:
    if header is not None and header.isascii() and header.isdigit():
        return min(int(header), 2**62)
    return query


async def _opening(who: Caller, after: int | None, now: int) -> list[bytes]:
    frames = [frame("hello", dump({"last_event": now, "t": time.time()}), number=now if after is None else None)]
    if after is not None and after < now:
        hub = who.server.hub
        missed = hub.since(after)
        if missed is None:
            missed = await asyncio.to_thread(who.server.storage.events, after=after, limit=MOST_RESUMED + 1, tenant=who.tenant)
        missed = [event for event in missed if event.id <= now and visible(event, who.tenant)]
        if len(missed) > MOST_RESUMED:
            frames.append(frame("reset", dump({"reason": f"more than {MOST_RESUMED} events were missed"}), number=now))
        else:
            frames += [frame("event", dump(views.event(event)), number=event.id) for event in missed]
    frames.append(frame("allocation", allocation(who.server, who.tenant).model_dump_json()))
    return frames
