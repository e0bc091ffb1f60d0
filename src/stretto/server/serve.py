"""`stretto serve`: one process, until SIGTERM or Ctrl-C. Jobs continue without it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from collections.abc import Callable

import uvicorn

from stretto.core.errors import UsageError
from stretto.core.files import replacing
from stretto.server.app import Server, build, create_app
from stretto.server.settings import ServerSettings, read_login
from stretto.server.storage.tokens import first_token

SWITCH_S = 0.0005


def serve(settings: ServerSettings, *, say: Callable[[str, str], None]) -> None:
    """Runs a server. `say(url, token)` is called when it listens."""
    server = build(settings)
    listening = listen(server.settings)
    port = listening.getsockname()[1]
    token = login(server, port=port)
    app = create_app(server, port=port)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
        limit_concurrency=1000,
        h11_max_incomplete_event_size=64 * 1024,
        ssl_certfile=str(settings.tls_cert) if settings.tls_cert else None,
        ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
        server_header=False,
    )
    logging.getLogger("stretto.server").setLevel(logging.INFO)
    # Threads read journals and write the database: requests should not wait five milliseconds for each turn of theirs.
    sys.setswitchinterval(SWITCH_S)
    say(address(server.settings, port), token)
    uvicorn.Server(config).run(sockets=[listening])


def listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named, not 0: asyncio sends at once (TCP_NODELAY) only where it knows that it is TCP. Else answers wait for delayed ACKs.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        fix = "choose another with --port (0: any free one)"
        raise UsageError(f"{settings.host}:{settings.port} cannot be listened on: {error.strerror}: {fix}") from error
    listening.listen(1024)
    return listening


def address(settings: ServerSettings, port: int) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{port}"


def login(server: Server, *, port: int) -> str:
    """The administrator's token for this user: the saved one if it still works, else a new one, saved for this user alone."""
    path = server.settings.folder / "login.json"
    saved = read_login(path)
    token = saved[1] if saved else ""
    if not token or server.tokens.check(token, now=time.time()) is None:
        token = first_token(server.tokens).secret
    with replacing(path, mode=0o600) as file:
        file.write(json.dumps({"url": address(server.settings, port), "token": token}).encode())
    return token
