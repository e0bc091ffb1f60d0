"""The cluster: overview, nodes, allocations, decisions, trace; and the policies: their list, and what-if replays."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import Response

from stretto.server import models
from stretto.server.api.routes.auth import ADMIN, PROBLEMS, VIEW, Guarded, Who
from stretto.server.api.sse import dump
from stretto.server.api.views import OTHER, allocation, nodes, overview, slots
from stretto.server.decisions.policy_runner import names
from stretto.server.decisions.traces import trace_of
from stretto.server.decisions.whatif import what_if
from stretto.server.jobs.state import NewEvent

router = APIRouter(prefix="/v1", route_class=Guarded, tags=["cluster"], responses=PROBLEMS)

Time = Annotated[float | None, Query(ge=0, le=10**11, allow_inf_nan=False)]


@router.get("/overview", response_model=models.Overview, openapi_extra=VIEW)
async def show_overview(who: Who) -> models.Overview:
    return overview(who.server, who.tenant)


@router.get("/nodes", response_model=models.Nodes, openapi_extra=VIEW)
async def list_nodes(who: Who) -> models.Nodes:
    return nodes(who.server, who.tenant)


@router.patch("/nodes/{name}", response_model=models.Node, openapi_extra=ADMIN)
async def change_node(
    who: Who, name: Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,64}$")], body: models.NodeChange
) -> models.Node:
    """A cordoned node gets no new workers, and loses those it has at the next decision."""
    server = who.server
    if name not in {info.name for info in server.cluster.nodes()}:
        raise HTTPException(404, f"there is no node {name!r}: see `stretto nodes`")
    after = server.decider.cordoned | {name} if body.cordoned else server.decider.cordoned - {name}
    if after != server.decider.cordoned:
        await asyncio.to_thread(server.storage.set, "cordoned", sorted(after))
        server.decider.cordoned = after
        words = "is cordoned" if body.cordoned else "takes workers again"
        await server.book.note(NewEvent("node", f"{name} {words}", {"node": name, "cordoned": body.cordoned}))
        server.conductor.trigger(f"{name} {words}")
    return next(item for item in nodes(server, who.tenant).items if item.name == name)


@router.get("/allocations", response_model=models.ClusterAllocation, openapi_extra=VIEW)
async def show_allocation(who: Who) -> Response:
    """The slots of each job now, and why."""
    return Response(allocation(who.server, who.tenant).model_dump_json(), media_type="application/json")


@router.get("/allocations/history", response_model=models.History, openapi_extra=VIEW)
async def history(who: Who, since: Time = None, until: Time = None) -> Response:
    """Slots over time; by default of the last hour."""
    end = time.time() if until is None else until
    begin = end - 3600 if since is None else since
    rows = await asyncio.to_thread(who.server.ledger.bars, since=begin, until=end)
    items: list[dict[str, object]] = []
    for row in rows:
        own = who.tenant is None or row["tenant"] == who.tenant
        job, name = (row["job"], row["name"]) if own else (OTHER, OTHER)
        bar: dict[str, object] = {
            "job": job,
            "name": name,
            "node": row["node"],
            "slots": row["slots"],
            "start": row["start"],
            "end": row["end"],
        }
        items.append(bar)
    body = {"since": begin, "until": end, "slots": slots(who.server), "items": items}
    return Response(await asyncio.to_thread(dump, body), media_type="application/json")


@router.get("/decisions", response_model=models.DecisionPage, openapi_extra=VIEW)
async def decisions(
    who: Who,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> models.DecisionPage:
    """Newest first."""
    rows = await asyncio.to_thread(who.server.ledger.decisions, before=before, limit=limit)
    items: list[models.PolicyDecision] = []
    for row in rows:
        own = [change for change in row["changes"] if who.tenant is None or change["tenant"] == who.tenant]
        trigger = row["trigger"] if who.tenant is None else "a change"
        items.append(models.PolicyDecision.model_validate({**row, "trigger": trigger, "changes": own}))
    return models.DecisionPage(items=items, next=items[-1].id if len(items) == limit else None)


@router.get("/trace", response_model=models.Trace, openapi_extra=VIEW)
async def trace(who: Who, hours: Annotated[float, Query(gt=0, le=24 * 365, allow_inf_nan=False)] = 24) -> models.Trace:
    """The recorded jobs of the last hours, for the simulator."""
    return trace_of(who.server, tenant=who.tenant, hours=hours)


policies_router = APIRouter(prefix="/v1/policies", route_class=Guarded, tags=["policies"], responses=PROBLEMS)


@policies_router.get("", response_model=models.Policies, openapi_extra=VIEW)
async def list_policies(who: Who) -> models.Policies:
    decider = who.server.decider
    items = [models.Policy(name=name, text=text, active=name == decider.policy) for name, text in sorted(names().items())]
    return models.Policies(items=items, active=decider.policy, interval_s=who.server.settings.interval_s)


@policies_router.put("/active", response_model=models.Policies, openapi_extra=ADMIN)
async def choose(who: Who, body: models.PolicyChoice) -> models.Policies:
    server = who.server
    _known(body.name)
    if body.name != server.decider.policy:
        await asyncio.to_thread(server.storage.set, "policy", body.name)
        before, server.decider.policy = server.decider.policy, body.name
        await server.book.note(NewEvent("policy", f"policy {before} → {body.name}", {"before": before, "after": body.name}))
        server.conductor.trigger(f"policy {body.name}")
    return await list_policies(who)


@policies_router.post("/what-if", response_model=models.WhatIf, openapi_extra=VIEW)
async def ask_what_if(who: Who, body: models.WhatIfRequest) -> models.WhatIf:
    """Replays the last hours under another policy, on virtual time."""
    _known(body.policy)
    baseline = body.baseline or who.server.decider.policy
    _known(baseline)
    return await what_if(who.server, tenant=who.tenant, policy=body.policy, baseline=baseline, hours=body.hours)


def _known(name: str) -> None:
    if name not in names():
        raise HTTPException(404, f"there is no policy '{name}': choose one of {', '.join(sorted(names()))}")
