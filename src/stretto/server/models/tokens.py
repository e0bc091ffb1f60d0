"""Tokens and their scopes, and the one shape of every error."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from stretto.server.spec import Name, Strict

TokenId = Annotated[str, StringConstraints(pattern=r"^t-[a-z2-7]{12}$")]


class Scope(StrEnum):
    """What a token allows; each scope covers those before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"

    def covers(self, other: Scope) -> bool:
        order = (Scope.VIEWER, Scope.SUBMITTER, Scope.ADMIN)
        return order.index(self) >= order.index(other)


class TokenRequest(Strict):
    """A request for a token."""

    name: Name
    scope: Scope
    tenant: Name = "default"
    expires_s: float | None = Field(default=None, gt=0, le=10 * 365 * 86400, description="seconds from now; never if absent")


class Token(BaseModel):
    """A token without its secret."""

    id: TokenId
    name: str
    scope: Scope
    tenant: Name
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None


class NewToken(Token):
    """A new token: the only answer with its secret."""

    secret: str = Field(description="shown once: only its hash is kept")


class Tokens(BaseModel):
    """All tokens, oldest first."""

    items: list[Token]


class Problem(BaseModel):
    """Every error has this shape. `detail` says what, the value, the bound and the fix."""

    status: int
    title: str
    detail: str
    errors: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]], description="the places in a body that were wrong: `at`, `text`"
    )
