"""Routes that declare their scope. The scope is checked before a body is parsed, and a route without one is for
administrators."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, HTTPException, Request, Response
from fastapi.routing import APIRoute

from stretto.server import models
from stretto.server.api.views import seen
from stretto.server.jobs.state import JobRecord
from stretto.server.models import Scope, Token

if TYPE_CHECKING:
    from stretto.server.app import Server

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": models.Problem, "content": {"application/problem+json": {}}}
    for status in (400, 401, 403, 404, 409, 412, 413, 422, 429, 503)
}


class Guarded(APIRoute):
    """Reads `x-scope` of the route."""

    @property
    def needs(self) -> Scope | None:
        text = (self.openapi_extra or {}).get("x-scope", Scope.ADMIN)
        return None if text == "none" else Scope(text)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        needs = self.needs

        async def guarded(request: Request) -> Response:
            if needs is not None:
                token: Token | None = getattr(request.state, "token", None)
                if token is None:
                    raise HTTPException(401, "send 'Authorization: Bearer st_…'")
                if not token.scope.covers(needs):
                    raise HTTPException(403, f"this needs the scope '{needs}', the token has '{token.scope}'")
            return await handle(request)

        return guarded


def needs(scope: Scope | None) -> dict[str, str]:
    return {"x-scope": "none" if scope is None else str(scope)}


VIEW, SUBMIT, ADMIN, OPEN = needs(Scope.VIEWER), needs(Scope.SUBMITTER), needs(Scope.ADMIN), needs(None)


@dataclass(frozen=True, slots=True)
class Caller:
    """The token of a request, and the server."""

    server: Server
    token: Token

    @property
    def tenant(self) -> str | None:
        """None for administrators, who see all tenants."""
        return None if self.token.scope is Scope.ADMIN else self.token.tenant

    def record(self, job: str) -> JobRecord:
        """The job, if there is one that this caller may see."""
        record = self.server.book.records.get(job)
        if record is None or not seen(record, self.tenant):
            raise HTTPException(404, f"there is no job {job}")
        return record

    def view(self, record: JobRecord) -> models.JobDetails:
        from stretto.server.api.views import job

        server = self.server
        progress = server.book.progress[record.id]
        return job(record, progress, reason=server.reason(record), cost=server.conductor.cost(record))


async def caller(request: Request) -> Caller:
    # Not a plain function: those are run on a thread, and every request would wait for its turn there.
    return Caller(request.app.state.server, request.state.token)


Who = Annotated[Caller, Depends(caller)]


def version_of(if_match: str | None) -> int | None:
    """The version in an If-Match header."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise HTTPException(400, f"If-Match: {if_match[:40]!r} is not a version: use the ETag of the job")
    return int(text)
