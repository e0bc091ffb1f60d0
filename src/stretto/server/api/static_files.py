"""The page's files, as web/build.py left them in static/.

They are read once, when the server starts: a request only picks an entry of a dictionary, so no path from a request
is ever opened. They hold no data and need no token; everything that they show comes through the API with one. The
content security policy of `security.py` allows scripts and styles from this server alone and none inside the page.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC = Path(__file__).parents[1] / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
UNBUILT = b"The page has not been built: run 'make web', then start the server again. The API under /v1 works without it.\n"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page, ready to send."""

    body: bytes
    packed: bytes
    """The same, gzipped once instead of for every request."""
    kind: str
    etag: str

    @staticmethod
    def of(body: bytes, *, kind: str) -> File:
        return File(body, gzip.compress(body, mtime=0), kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


class Pages:
    """`holds` is for the gate in front of all routes, `routes` for the application."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._files = read(folder)

    def holds(self, path: str) -> bool:
        """Whether a path is a file of the page."""
        return path in self._files

    def routes(self) -> list[Route]:
        return [Route(path, self.answer, methods=["GET", "HEAD"], include_in_schema=False) for path in self._files]

    async def answer(self, request: Request) -> Response:
        """The file; 304 if the browser has it; asked again every time, so that a new version is seen at once."""
        file = self._files[request.url.path]
        headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, media_type=file.kind, headers={**headers, "Content-Encoding": "gzip"})
        return Response(file.body, media_type=file.kind, headers=headers)


def read(folder: Path) -> Mapping[str, File]:
    """Paths of requests to files. Only kinds that a page needs: whatever else lies there is not served."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in TYPES) if folder.is_dir() else []
    files = {f"/{path.relative_to(folder).as_posix()}": File.of(path.read_bytes(), kind=TYPES[path.suffix]) for path in paths}
    index = files.pop("/index.html", None)
    return {"/": index or File.of(UNBUILT, kind=TYPES[".txt"]), **files}
