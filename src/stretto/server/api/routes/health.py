"""Health for load balancers, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from stretto.server.api.routes.auth import OPEN, PROBLEMS, VIEW, Guarded, Who
from stretto.server.api.views import measure, ready

router = APIRouter(route_class=Guarded, tags=["health"], responses=PROBLEMS)


class Health(BaseModel):
    """The answer of both health checks."""

    status: Literal["ok", "unavailable"]


@router.get("/healthz", response_model=Health, openapi_extra=OPEN)
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health, openapi_extra=OPEN)
async def readyz(request: Request) -> Response:
    """The database answers and all loops run."""
    server = request.app.state.server
    try:
        alive = await asyncio.wait_for(asyncio.to_thread(server.storage.alive), 3.0)
    except TimeoutError:
        alive = False
    good = alive and ready(server)
    return JSONResponse({"status": "ok" if good else "unavailable"}, status_code=200 if good else 503)


@router.get("/metrics", response_class=PlainTextResponse, openapi_extra=VIEW)
async def metrics(who: Who) -> Response:
    return Response(measure(who.server), headers={"content-type": CONTENT_TYPE_LATEST})
