"""The API, one file per subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from stretto.server.api.routes import cluster, health, job_data, jobs, stream, tokens

if TYPE_CHECKING:
    from stretto.server.app import Server


ROUTERS = (
    jobs.router,
    job_data.router,
    cluster.router,
    cluster.policies_router,
    tokens.router,
    stream.router,
    health.router,
)


def api(app: FastAPI, server: Server) -> None:
    """Adds every route."""
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.extend(server.pages.routes())
    _prepare(app)
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


def _prepare(app: FastAPI) -> None:
    """Matches every route once: the framework prepares routes at their first request, which would slow that request down."""
    scope: dict[str, object] = {
        "type": "http",
        "method": "GET",
        "path": "/-/none",
        "root_path": "",
        "headers": [],
        "query_string": b"",
    }
    for route in app.router.routes:
        route.matches(scope)
