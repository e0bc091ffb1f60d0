"""Errors as the API's one shape. Clients see their own mistakes in full; internal errors are logged, not shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stretto.core.errors import StrettoError
from stretto.server.api.security import problem
from stretto.server.api.sse import TooMany
from stretto.server.jobs.state import Changed, Conflict
from stretto.server.storage.repository import StorageDown
from stretto.server.validation_messages import place, words

log = logging.getLogger("stretto.server")

TITLES = {
    400: "bad request",
    403: "not allowed",
    404: "not found",
    405: "wrong method",
    409: "conflict",
    412: "changed meanwhile",
    415: "wrong type",
    422: "not valid",
    429: "too many",
    503: "not available",
}
MOST_ERRORS = 20


class NotValid(HTTPException):
    """An invalid key of a job's spec: the page shows the text beside it."""

    def __init__(self, at: str, text: str) -> None:
        super().__init__(422, f"{at}: {text}")
        self.places = [{"at": at, "text": text}]


def answer(status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: object) -> JSONResponse:
    body = problem(status, TITLES.get(status, "error"), detail, **more)
    return JSONResponse(body, status_code=status, media_type="application/problem+json", headers=headers)


def install(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        places = {"errors": error.places} if isinstance(error, NotValid) else {}
        return answer(error.status_code, str(error.detail), headers=error.headers, **places)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        mistakes = [
            (".".join(str(part) for part in place(details["loc"])), words(details)) for details in error.errors()[:MOST_ERRORS]
        ]
        places = [{"at": at, "text": text} for at, text in dict.fromkeys(mistakes)]
        first = places[0] if places else {"at": "body", "text": "cannot be read"}
        return answer(422, f"{first['at'].removeprefix('body.')}: {first['text']}", errors=places)

    @app.exception_handler(Changed)
    async def _changed(_: Request, error: Changed) -> JSONResponse:
        return answer(412, str(error))

    @app.exception_handler(Conflict)
    async def _conflict(_: Request, error: Conflict) -> JSONResponse:
        return answer(409, str(error))

    @app.exception_handler(StorageDown)
    async def _storage(_: Request, error: StorageDown) -> JSONResponse:
        return answer(503, str(error), headers={"Retry-After": "5"})

    @app.exception_handler(TooMany)
    async def _many(_: Request, error: TooMany) -> JSONResponse:
        return answer(429, str(error), headers={"Retry-After": "5"})

    @app.exception_handler(StrettoError)
    async def _other(_: Request, error: StrettoError) -> JSONResponse:
        return answer(400, str(error))

    @app.exception_handler(Exception)
    async def _inside(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(500, "an error inside the server: its log has the details")
