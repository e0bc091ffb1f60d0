"""The API, one file a subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Response

from stretto.server.routes import cluster, health, jobs, policies, runs, stream, tokens

if TYPE_CHECKING:
    from stretto.server.app import Server


def api(app: FastAPI, server: Server) -> None:
    """Adds every route."""
    for part in (jobs, runs, cluster, policies, tokens, stream, health):
        app.include_router(part.router)
    for path, (content, kind, unchanging) in server.page.files.items():
        _file(app, path, content, kind, unchanging)
    original = app.openapi

    def described() -> dict[str, object]:
        document = original()
        components = document.setdefault("components", {})
        components.setdefault("securitySchemes", {})["bearer"] = {"type": "http", "scheme": "bearer"}
        document["security"] = [{"bearer": []}]
        for path in ("/healthz", "/readyz"):
            document["paths"][path]["get"]["security"] = []
        return document

    app.openapi = described  # type: ignore[method-assign]


def _file(app: FastAPI, path: str, content: bytes, kind: str, unchanging: bool) -> None:
    headers = {"cache-control": "public, max-age=31536000, immutable" if unchanging else "no-cache"}

    async def give() -> Response:
        return Response(content, media_type=kind, headers=headers)

    app.add_api_route(path, give, methods=["GET", "HEAD"], include_in_schema=False)
