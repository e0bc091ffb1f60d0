"""The control port: one JSON line in, one out, on loopback, behind a token that only the run folder's owner can read."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping

from stretto.agent.records.run_folder import RunFolder, write_json
from stretto.core.errors import StrettoError, UsageError
from stretto.core.json_types import JsonObject, to_int, to_object

LINE_BYTES = 65536
IDLE_S = 10.0
"""How long a connection may take to ask."""
CONNECTIONS = 64

Answer = JsonObject
Handler = Callable[[JsonObject], Awaitable[Mapping[str, object]]]


class ControlServer:
    """Serves a run's verbs while its agent lives."""

    def __init__(self, folder: RunFolder, *, handle: Handler) -> None:
        self._folder = folder
        self._handle = handle
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LINE_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        write_json(self._folder.control, {"pid": os.getpid(), "port": port, "token": self._token}, mode=0o600)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(OSError):
            self._folder.control.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > CONNECTIONS:
                answer: Mapping[str, object] = {"ok": False, "error": f"more than {CONNECTIONS} connections at once: try again"}
            else:
                answer = await self._answer(await asyncio.wait_for(reader.readline(), IDLE_S))
            writer.write(json.dumps(answer, default=str).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), IDLE_S)
        except (TimeoutError, ValueError, ConnectionError):
            pass
        except asyncio.CancelledError:  # the agent ends: asyncio would print a traceback for a handler that was cancelled
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, line: bytes) -> Mapping[str, object]:
        try:
            request = to_object(json.loads(line))
            if not hmac.compare_digest(str(request["token"]), self._token):
                return {"ok": False, "error": "the token is not this run's"}
            return {"ok": True, **await self._handle(request)}
        except StrettoError as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, KeyError, TypeError) as error:
            return {"ok": False, "error": f"the request cannot be read: {error!r}"}


def ask(folder: RunFolder, verb: str, *, timeout_s: float = 10.0, **arguments: object) -> Answer:
    """Asks a run's agent. `UsageError` if it does not run, or says no."""
    control = folder.read(folder.control)
    if control is None:
        raise UsageError(_not_running(folder))
    request = json.dumps({"token": control["token"], "verb": verb, **arguments}).encode() + b"\n"
    try:
        with socket.create_connection(("127.0.0.1", to_int(control["port"])), timeout=timeout_s) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as file:
                line = file.readline(64 * LINE_BYTES)
    except TimeoutError as error:
        raise UsageError(
            f"the agent of run {folder.name!r} (pid {control['pid']}) has not answered for {timeout_s:g} s: is it stopped?"
        ) from error
    except OSError as error:
        raise UsageError(_not_running(folder)) from error
    if not line:
        raise UsageError(f"the agent of run {folder.name!r} ended before it answered")
    answer = to_object(json.loads(line))
    if not answer.pop("ok"):
        raise UsageError(str(answer["error"]))
    return answer


def _not_running(folder: RunFolder) -> str:
    result = folder.read(folder.result)
    if result is not None:
        return f"run {folder.name!r} does not run any more: it is {result['state']} (see `stretto show {folder.name}`)"
    return (
        f"run {folder.name!r} does not run: its agent is gone and left no result (killed, or the machine went down); "
        f"its journal is {folder.journal}"
    )


def alive(folder: RunFolder) -> bool:
    """Whether somebody listens at the run's control port."""
    control = folder.read(folder.control)
    if control is None:
        return False
    try:
        with socket.create_connection(("127.0.0.1", to_int(control["port"])), timeout=2.0):
            return True
    except OSError:
        return False
