"""Policies: which there are, which decides, and what another one would have done."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, HTTPException

from stretto.server import models
from stretto.server.api.routes.auth import ADMIN, PROBLEMS, VIEW, Guarded
from stretto.server.api.routes.jobs import Who
from stretto.server.decisions.policy_runner import names
from stretto.server.decisions.whatif import what_if
from stretto.server.jobs.state import NewEvent

router = APIRouter(prefix="/v1/policies", route_class=Guarded, tags=["policies"], responses=PROBLEMS)


@router.get("", response_model=models.Policies, openapi_extra=VIEW)
async def list_policies(who: Who) -> models.Policies:
    decider = who.server.decider
    items = [models.Policy(name=name, text=text, active=name == decider.policy) for name, text in sorted(names().items())]
    return models.Policies(items=items, active=decider.policy, interval_s=who.server.settings.interval_s)


@router.put("/active", response_model=models.Policies, openapi_extra=ADMIN)
async def choose(who: Who, body: models.PolicyChoice) -> models.Policies:
    server = who.server
    _known(body.name)
    if body.name != server.decider.policy:
        await asyncio.to_thread(server.storage.set, "policy", body.name)
        before, server.decider.policy = server.decider.policy, body.name
        await server.book.note(NewEvent("policy", f"policy {before} → {body.name}", {"before": before, "after": body.name}))
        server.conductor.trigger(f"policy {body.name}")
    return await list_policies(who)


@router.post("/what-if", response_model=models.WhatIf, openapi_extra=VIEW)
async def ask_what_if(who: Who, body: models.WhatIfRequest) -> models.WhatIf:
    """Replays the last hours under another policy, on virtual time."""
    _known(body.policy)
    baseline = body.baseline or who.server.decider.policy
    _known(baseline)
    return await what_if(who.server, tenant=who.tenant, policy=body.policy, baseline=baseline, hours=body.hours)


def _known(name: str) -> None:
    if name not in names():
        raise HTTPException(404, f"there is no policy '{name}': choose one of {', '.join(sorted(names()))}")
