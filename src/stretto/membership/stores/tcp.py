"""The embedded store for other hosts: JSON lines over TCP, authenticated with the job's token, optionally under TLS.

Both sides prove that they know the token before anything else is said: each answers the other's random challenge with
an HMAC of it, so the token itself never crosses the network. Requests carry a number and are answered out of order; a
watch is a request with many answers. A client that does not read has its watch ended (it resumes by revision), so it
holds nobody up.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import cast

from stretto.core.errors import Refused
from stretto.core.json_types import JsonObject, JsonValue, to_int, to_list, to_object
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.store import Compacted, Guard, Put, StoreChange, StoreEntry, StoreError

LINE = 1 << 22
"""Bytes in one message; a roster of a thousand workers is about a tenth of that."""
BACKLOG = 1 << 20
"""Bytes that may wait for a client that does not read, before its watches are ended."""
AHEAD = 4096
"""Changes that may wait in a client for the reader of a watch."""
GREETING_S = 5.0


def proof(token: str, *, challenge: str, role: str) -> str:
    """What only somebody who knows the token can say; the role keeps an answer from being sent back to its author."""
    return hmac.new(token.encode(), f"stretto {role} {challenge}".encode(), hashlib.sha256).hexdigest()


def _line(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


async def _read(reader: asyncio.StreamReader) -> JsonObject:
    try:
        line = await reader.readline()
        document: object = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError, asyncio.LimitOverrunError) as error:
        raise StoreError(f"the connection to the store broke: {error}") from error
    if not isinstance(document, dict):
        raise StoreError("the connection to the store was closed")
    return cast("JsonObject", document)


class StoreServer:
    """Serves an embedded store to the agents of a job."""

    def __init__(self, store: EmbeddedStore, *, token: str) -> None:
        self._store = store
        self._token = token
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Begins to listen; the address, with the port that was given where 0 was asked for."""
        self._server = await asyncio.start_server(self._accept, host, port, ssl=tls, limit=LINE)
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            async with asyncio.timeout(GREETING_S):
                welcome = await self._greet(reader, writer)
            if welcome:
                await _Session(self._store, reader, writer).run()
        except (StoreError, OSError, TimeoutError):
            pass
        finally:
            self._clients.discard(task)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        challenge = secrets.token_hex(16)
        writer.write(_line({"stretto": 1, "challenge": challenge}))
        hello = await _read(reader)
        expected = proof(self._token, challenge=challenge, role="client")
        if not hmac.compare_digest(str(hello.get("proof", "")), expected):
            writer.write(_line({"ok": False, "error": "wrong token"}))
            await writer.drain()
            return False
        answer = proof(self._token, challenge=str(hello.get("challenge", "")), role="server")
        writer.write(_line({"ok": True, "proof": answer}))
        return True


class _Session:
    """One client: its requests in order, its watches beside them."""

    def __init__(self, store: EmbeddedStore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._watches: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                await self._answer(await _read(self._reader))
                await self._writer.drain()
        finally:
            for watch in self._watches.values():
                watch.cancel()
            await asyncio.gather(*self._watches.values(), return_exceptions=True)

    async def _answer(self, request: JsonObject) -> None:
        number = to_int(request.get("n"))
        try:
            self._writer.write(_line({"n": number, "ok": await self._do(request)}))
        except Compacted as error:
            self._writer.write(_line({"n": number, "compacted": str(error)}))
        except (StoreError, KeyError, TypeError, ValueError) as error:
            self._writer.write(_line({"n": number, "error": f"{type(error).__name__}: {error}"}))

    async def _do(self, request: JsonObject) -> object:
        match request["do"]:
            case "read":
                entries, revision = await self._store.read(str(request["prefix"]))
                return [[asdict(entry) for entry in entries], revision]
            case "commit":
                puts = [_put(put) for put in to_list(request["puts"])]
                return await self._store.commit(puts, guards=[_guard(guard) for guard in to_list(request["guards"])])
            case "grant":
                return await self._store.grant(float(str(request["ttl_s"])))
            case "renew":
                return await self._store.renew(to_int(request["lease"]))
            case "revoke":
                return await self._store.revoke(to_int(request["lease"]))
            case "watch":
                watch = self._watch(to_int(request["n"]), str(request["prefix"]), after=to_int(request["after"]))
                self._watches[to_int(request["n"])] = asyncio.create_task(watch)
                return None
            case "unwatch":
                ended = self._watches.pop(to_int(request["watch"]), None)
                return ended.cancel() if ended is not None else False
            case other:
                raise ValueError(f"unknown request {other!r}")

    async def _watch(self, number: int, prefix: str, *, after: int) -> None:
        try:
            async for change in self._store.watch(prefix, after=after):
                if self._writer.transport.get_write_buffer_size() > BACKLOG:
                    raise StoreError("the watch was ended because its client does not read")
                self._writer.write(_line({"n": number, "change": [change.key, change.value, change.revision]}))
        except Compacted as error:
            self._writer.write(_line({"n": number, "compacted": str(error)}))
        except StoreError as error:
            self._writer.write(_line({"n": number, "error": str(error)}))


class TcpStore:
    """A `Store` on another host. It connects when it is needed and again after every break."""

    def __init__(self, host: str, port: int, *, token: str, answer_s: float = 0.6, tls: ssl.SSLContext | None = None) -> None:
        self._address = (host, port)
        self._token = token
        self._answer_s = answer_s
        self._received = 0
        """Messages that have come, to tell a server that is slow from one that is gone."""
        self._tls = tls
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[JsonObject]] = {}
        self._streams: dict[int, asyncio.Queue[JsonObject]] = {}

    async def read(self, prefix: str) -> tuple[list[StoreEntry], int]:
        entries, revision = to_list(await self._request("read", prefix=prefix))
        return [_entry(to_object(entry)) for entry in to_list(entries)], to_int(revision)

    async def commit(self, puts: Sequence[Put], *, guards: Sequence[Guard] = ()) -> int | None:
        revision = await self._request(
            "commit",
            puts=[[put.key, put.value, put.lease] for put in puts],
            guards=[[guard.key, guard.revision] for guard in guards],
        )
        return None if revision is None else to_int(revision)

    async def grant(self, ttl_s: float) -> int:
        return to_int(await self._request("grant", ttl_s=ttl_s))

    async def renew(self, lease: int) -> bool:
        return bool(await self._request("renew", lease=lease))

    async def revoke(self, lease: int) -> None:
        await self._request("revoke", lease=lease)

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[StoreChange]:
        number = next(self._numbers)
        stream = self._streams[number] = asyncio.Queue[JsonObject](AHEAD)
        try:
            await self._request("watch", number=number, prefix=prefix, after=after)
            while True:
                message = await stream.get()
                if "change" not in message:
                    _value(message)
                key, value, revision = to_list(message["change"])
                yield StoreChange(str(key), None if value is None else str(value), to_int(revision))
        finally:
            del self._streams[number]
            if self._writer is not None:
                self._writer.write(_line({"n": 0, "do": "unwatch", "watch": number}))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # ---- the connection

    async def _request(self, do: str, *, number: int | None = None, **fields: object) -> JsonValue:
        number = next(self._numbers) if number is None else number
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        received = self._received
        try:
            async with asyncio.timeout(self._answer_s):
                writer = await self._connect()
                writer.write(_line({"n": number, "do": do, **fields}))
                await writer.drain()
                return _value(await answer)
        except TimeoutError as error:
            if self._received == received:
                self._hang_up()
            raise StoreError(f"no answer from the store at {self._place} within {self._answer_s:g} s") from error
        except OSError as error:
            raise StoreError(f"the store at {self._place} cannot be reached: {error}") from error
        finally:
            self._waiting.pop(number, None)

    def _hang_up(self) -> None:
        """A host that lost its power closes no connection: without this a watch would wait for it until the kernel gives up."""
        if self._writer is not None:
            self._writer.transport.abort()

    @property
    def _place(self) -> str:
        return "{}:{}".format(*self._address)

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                reader, writer = await asyncio.open_connection(*self._address, ssl=self._tls, limit=LINE)
                try:
                    await self._greet(reader, writer)
                except BaseException:
                    writer.close()
                    raise
                self._writer = writer
                self._reading = asyncio.create_task(self._listen(reader, writer))
            return self._writer

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = secrets.token_hex(16)
        theirs = str((await _read(reader)).get("challenge", ""))
        writer.write(_line({"proof": proof(self._token, challenge=theirs, role="client"), "challenge": challenge}))
        answer = await _read(reader)
        expected = proof(self._token, challenge=challenge, role="server")
        if not answer.get("ok") or not hmac.compare_digest(str(answer.get("proof", "")), expected):
            raise Refused(
                f"the store at {self._place} does not know this job's token: start all agents of a job with the same token"
            )

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broken = StoreError(f"the connection to the store at {self._place} was lost")
        try:
            while True:
                message = await _read(reader)
                self._received += 1
                number = to_int(message.get("n"))
                if number in self._waiting and not self._waiting[number].done():
                    self._waiting[number].set_result(message)
                elif number in self._streams:
                    _push(self._streams[number], message)
        except StoreError as error:
            broken = error
        finally:
            self._writer = None
            writer.close()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(broken)
            for stream in self._streams.values():
                _push(stream, {"error": str(broken)})


def _push(stream: asyncio.Queue[JsonObject], message: JsonObject) -> None:
    """A watch whose reader is too slow is ended: it resumes after the last revision that it has read."""
    if stream.full():
        while not stream.empty():
            stream.get_nowait()
        message = {"error": f"the watch was ended: its reader was {AHEAD} changes behind"}
    stream.put_nowait(message)


def _value(message: JsonObject) -> JsonValue:
    if "compacted" in message:
        raise Compacted(str(message["compacted"]))
    if "error" in message:
        raise StoreError(str(message["error"]))
    return message["ok"]


def _put(value: JsonValue) -> Put:
    key, text, lease = to_list(value)
    return Put(str(key), None if text is None else str(text), to_int(lease))


def _guard(value: JsonValue) -> Guard:
    key, revision = to_list(value)
    return Guard(str(key), to_int(revision))


def _entry(document: JsonObject) -> StoreEntry:
    return StoreEntry(str(document["key"]), str(document["value"]), to_int(document["revision"]), to_int(document["created"]))
