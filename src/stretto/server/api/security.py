"""Checks before every route: host names, origins, sizes, rates and tokens, in this order, before any body is parsed.

- Host: only the configured names of this server, so that a foreign page whose name resolves to loopback
  (DNS rebinding) is refused. Origin: a browser says where a script comes from; only this server's own pages may call
  it.
- A bearer header and no cookies: a browser adds nothing by itself, so there is nothing to forge across sites.
- Bodies are at most `MOST_BODY` bytes, whatever Content-Length says.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.server.models import Token

MOST_BODY = 1 << 20
OPEN = frozenset({"/healthz", "/readyz"})
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; manifest-src 'self'"
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", CSP.encode()),
]


@dataclass(slots=True)
class Buckets:
    """Token buckets; the least recently used ones are evicted first."""

    rate: float
    burst: float
    most: int = 10_000
    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict[str, tuple[float, float]])

    def take(self, key: str, *, now: float) -> float:
        """0 if there is room, else the seconds until there will be."""
        level, at = self._levels.pop(key, (self.burst, now))
        level = min(self.burst, level + max(0.0, now - at) * self.rate)
        wait = 0.0 if level >= 1 else (1 - level) / self.rate
        self._levels[key] = (level - 1 if wait == 0 else level, now)
        while len(self._levels) > self.most:
            self._levels.popitem(last=False)
        return wait


def problem(status: int, title: str, detail: str, **more: object) -> dict[str, object]:
    return {"status": status, "title": title, "detail": detail, "errors": [], **more}


class TooLarge(Exception):
    """The body exceeded the bound while it was read."""


@dataclass(slots=True)
class SecurityMiddleware:
    """The ASGI middleware."""

    app: ASGIApp
    check: Callable[[str], Token | None]
    hosts: frozenset[str]
    """Names with and without port, in small letters."""
    origins: frozenset[str]
    page: Callable[[str], bool]
    """Whether a path is a file of the page: those hold no data and need no token."""
    requests: Buckets = field(default_factory=lambda: Buckets(rate=200, burst=400))
    failures: Buckets = field(default_factory=lambda: Buckets(rate=2, burst=50))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
        refusal = self._refuse(scope, headers)
        if refusal is not None:
            await answer(send, *refusal)
            return
        await self._pass(scope, receive, send)

    def _refuse(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str, str, float] | None:
        host = headers.get(b"host", "").lower()
        if host not in self.hosts and host.rsplit(":", 1)[0] not in self.hosts:
            return 421, "wrong host", f"this server is not called {host[:100]!r}: add --allowed-host if it should be", 0
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() not in self.origins:
            return 403, "wrong origin", f"pages of {origin[:100]!r} may not call this server", 0
        length = headers.get(b"content-length", "0")
        if not length.isdigit() or int(length) > MOST_BODY:
            return 413, "too large", f"a body of {length[:20]} bytes, at most {MOST_BODY} are read", 0
        path = scope["path"]
        if path in OPEN or (scope["method"] in ("GET", "HEAD") and self.page(path)):
            return None
        return self._refuse_token(scope, headers.get(b"authorization", ""))

    def _refuse_token(self, scope: Scope, authorization: str) -> tuple[int, str, str, float] | None:
        now = time.monotonic()
        kind, _, secret = authorization.partition(" ")
        token = self.check(secret.strip()) if kind.lower() == "bearer" and len(secret) < 512 else None
        if token is None:
            client = scope.get("client")
            wait = self.failures.take(client[0] if client else "?", now=now)
            if wait:
                return 429, "too many failures", f"too many requests without a valid token: wait {wait:.1f} s", wait
            return (
                401,
                "no valid token",
                "send 'Authorization: Bearer st_…' with a token that is not expired or revoked",
                0,
            )
        wait = self.requests.take(token.id, now=now)
        if wait:
            detail = f"more than {self.requests.rate:g} requests a second with this token: wait {wait:.2f} s"
            return 429, "too many requests", detail, wait
        scope.setdefault("state", {})["token"] = token
        return None

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = 0
        begun = over = False

        async def counted() -> Message:
            nonlocal seen, over
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > MOST_BODY:
                    over = True
                    raise TooLarge
            return message

        async def dressed(message: Message) -> None:
            nonlocal begun
            if over:
                # Frameworks turn an error while a body is read into an answer of their own: this one is said instead.
                if not begun:
                    begun = True
                    await answer(send, 413, "too large", f"a body of more than {MOST_BODY} bytes", 0)
                return
            if message["type"] == "http.response.start":
                begun = True
                present = {key.lower() for key, _ in message["headers"]}
                extra = [pair for pair in HEADERS if pair[0] not in present]
                if b"cache-control" not in present:
                    extra.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            await self.app(scope, counted, dressed)
        except TooLarge:
            if not begun:
                await answer(send, 413, "too large", f"a body of more than {MOST_BODY} bytes", 0)


async def answer(send: Send, status: int, title: str, detail: str, wait: float) -> None:
    body = json.dumps(problem(status, title, detail)).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode()), *HEADERS]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if wait:
        headers.append((b"retry-after", str(max(1, round(wait + 0.5))).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
