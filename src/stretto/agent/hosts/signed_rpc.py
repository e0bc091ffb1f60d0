"""Asking an agent on another host: one request and one answer over TCP, both signed with the job's token.

The asked side sends a random challenge first. The request's signature covers it, so a request cannot be replayed, and the
answer's covers the request's, so an answer cannot be moved to another one. Where agents have certificates, all of it is under TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import ssl
from collections.abc import Mapping

from stretto.agent.control_server import Answer, Handler
from stretto.core.errors import StrettoError, UsageError
from stretto.core.json_types import JsonObject, to_object

LINE_BYTES = 4 << 20
IDLE_S = 10.0
CONNECTIONS = 64


def sign(token: str, *, role: str, over: str, body: str) -> str:
    return hmac.new(token.encode(), f"stretto {role} {over} {body}".encode(), hashlib.sha256).hexdigest()


class Listener:
    """Answers signed requests at one address of this host."""

    def __init__(self, handle: Handler, *, token: str) -> None:
        self._handle = handle
        self._token = token
        self._server: asyncio.Server | None = None
        self._open = 0
        self.address = ("", 0)

    async def start(self, host: str, *, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        try:
            self._server = await asyncio.start_server(
                self._serve, host, 0, limit=LINE_BYTES, ssl=tls, ssl_handshake_timeout=None if tls is None else IDLE_S
            )
        except OSError as error:
            raise UsageError(
                f"this host cannot listen at {host}: {error.strerror}; choose one of its own addresses with --interface"
            ) from None
        self.address = (host, int(self._server.sockets[0].getsockname()[1]))
        return self.address

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS:
                async with asyncio.timeout(6 * IDLE_S):
                    await self._converse(reader, writer)
        except (TimeoutError, ValueError, KeyError, TypeError, OSError):
            pass
        except asyncio.CancelledError:  # the agent ends: asyncio would print a traceback for a handler that was cancelled
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = secrets.token_hex(16)
        _write(writer, {"stretto": 1, "challenge": challenge})
        request = await asyncio.wait_for(_read(reader), IDLE_S)
        body, mac = str(request["body"]), str(request["mac"])
        if not hmac.compare_digest(mac, sign(self._token, role="ask", over=challenge, body=body)):
            _write(writer, {"refused": "the request is not signed with this job's token"})
        else:
            answer = json.dumps(await self._answer(json.loads(body)), default=str)
            _write(writer, {"body": answer, "mac": sign(self._token, role="answer", over=mac, body=answer)})
        await asyncio.wait_for(writer.drain(), IDLE_S)

    async def _answer(self, request: JsonObject) -> Mapping[str, object]:
        try:
            return {"ok": True, **await self._handle(request)}
        except StrettoError as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, KeyError, TypeError) as error:
            return {"ok": False, "error": f"the request cannot be read: {error!r}"}


class PeerUnreachable(UsageError):
    """Nobody of the job answers at that address."""


async def ask(
    address: tuple[str, int],
    verb: str,
    *,
    token: str,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 10.0,
    **arguments: object,
) -> Answer:
    """Raises `PeerUnreachable` where nobody answers, `UsageError` where the agent says no."""
    place = f"{address[0]}:{address[1]}"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(*address, limit=LINE_BYTES, ssl=tls)
            try:
                answer = await _exchange(reader, writer, json.dumps({"verb": verb, **arguments}), token=token)
            finally:
                writer.close()
    except TimeoutError:
        raise PeerUnreachable(f"no answer from {place} within {timeout_s:g} s") from None
    except (OSError, ValueError, KeyError) as error:
        raise PeerUnreachable(f"{place} cannot be reached: {error}") from None
    if not answer.pop("ok"):
        raise UsageError(str(answer["error"]))
    return answer


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: str, *, token: str) -> Answer:
    challenge = str((await _read(reader))["challenge"])
    mac = sign(token, role="ask", over=challenge, body=body)
    _write(writer, {"body": body, "mac": mac})
    answer = await _read(reader)
    if "refused" in answer:
        raise ValueError(answer["refused"])
    signed = str(answer["body"])
    if not hmac.compare_digest(str(answer["mac"]), sign(token, role="answer", over=mac, body=signed)):
        raise ValueError("somebody answers there who does not know the job's token")
    return to_object(json.loads(signed))


def _write(writer: asyncio.StreamWriter, document: Mapping[str, object]) -> None:
    writer.write(json.dumps(document, separators=(",", ":")).encode() + b"\n")


async def _read(reader: asyncio.StreamReader) -> JsonObject:
    with contextlib.suppress(asyncio.LimitOverrunError):
        document: object = json.loads(await reader.readline() or b"null")
        if document is not None:
            return to_object(document)
    raise ValueError("the connection was closed")
