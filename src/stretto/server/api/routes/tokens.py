"""Tokens: for administrators, and everybody's own."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path

from stretto.server import models
from stretto.server.api.routes.auth import ADMIN, PROBLEMS, VIEW, Guarded, Who
from stretto.server.jobs.state import NewEvent

router = APIRouter(prefix="/v1/tokens", route_class=Guarded, tags=["tokens"], responses=PROBLEMS)


@router.get("", response_model=models.Tokens, openapi_extra=ADMIN)
async def list_tokens(who: Who) -> models.Tokens:
    return models.Tokens(items=sorted(who.server.tokens.items(), key=lambda token: token.created_at))


@router.post("", response_model=models.NewToken, status_code=201, openapi_extra=ADMIN)
async def create(who: Who, body: models.TokenRequest) -> models.NewToken:
    """The secret is in this answer and nowhere else."""
    try:
        token = await asyncio.to_thread(who.server.tokens.create, body, now=time.time())
    except ValueError as error:
        raise HTTPException(409, str(error)) from None
    text = f"token '{body.name}' ({body.scope}) was made for tenant '{body.tenant}'"
    await who.server.book.note(NewEvent("token", text, {"token": token.id}), tenant=body.tenant)
    return token


@router.get("/me", response_model=models.Token, openapi_extra=VIEW)
async def me(who: Who) -> models.Token:
    return who.token


@router.delete("/{token}", status_code=204, openapi_extra=ADMIN)
async def revoke(who: Who, token: Annotated[models.TokenId, Path()]) -> None:
    if token == who.token.id:
        raise HTTPException(409, "this is the token of this very request: revoke it with another administrator's")
    if not await asyncio.to_thread(who.server.tokens.revoke, token, now=time.time()):
        raise HTTPException(404, f"there is no token {token}")
    await who.server.book.note(NewEvent("token", f"token {token} was revoked", {"token": token}), tenant=who.token.tenant)
