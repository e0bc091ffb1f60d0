"""etcd v3 as the store, for many hosts without a central one.

The messages and stubs are aetcd's; channels are made here, because several endpoints, TLS client certificates and a
bounded watch are needed. A call goes to the endpoint that answered last and moves on to the next one when that fails;
a write is never sent twice, since whether the first was done is not known.

gRPC's handlers around `fork` abort the children of a process that has used it, and agents fork workers: they are
switched off while it is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from stretto.core.errors import UsageError
from stretto.membership.stores.store import Compacted, Guard, Put, StoreChange, StoreEntry, StoreError

IDLE_S = 2.0
"""A watch on which nothing came asks for progress, so that a dead connection is found out."""
LED = ("hasleader", "true")
"""A member that has lost touch with the others of its cluster says so instead of showing what it last knew."""


QUIETLY = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
"""While gRPC is imported. What it would print about failed calls is in the errors that it raises."""


def _import_rpc() -> Any:
    before = {name: os.environ.get(name) for name in QUIETLY}
    os.environ.update(QUIETLY)
    try:
        import grpc  # noqa: F401  # pyright: ignore
        from aetcd import rpc  # pyright: ignore
    except ImportError as error:
        raise UsageError("--store etcd://… needs the package aetcd: pip install 'stretto[etcd]'") from error
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return rpc  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """Where etcd is, how to log in, and which part of its keys to use."""

    endpoints: tuple[str, ...]
    prefix: str = ""
    """Of all keys; one job has one prefix, and all jobs together have the one above."""
    user: str = ""
    password: str = field(default="", repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    answer_s: float = 0.6

    @staticmethod
    def read(
        url: str,
        *,
        job: str,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        answer_s: float = 0.6,
    ) -> EtcdOptions:
        """From `etcd://user:password@h1:2379,h2:2379/prefix`; `etcds://` for TLS without further files."""
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        endpoints = tuple(host if ":" in host.rpartition("]")[2] else f"{host}:2379" for host in hosts.split(",") if host)
        if parts.scheme not in ("etcd", "etcds") or not endpoints:
            raise UsageError(f"--store {url!r}: expected etcd://HOST:PORT[,HOST:PORT…][/PREFIX]")
        if (certificate is None) != (key is None):
            raise UsageError("a TLS client certificate and its key belong together: give both or none")
        prefix = "/".join([parts.path.strip("/") or "stretto", *([job] if job else []), ""])
        return EtcdOptions(endpoints, prefix, unquote(user), unquote(password), ca, certificate, key, answer_s)


class EtcdStore:
    """A `Store`. Leases are whole seconds in etcd: a time to live is rounded up."""

    def __init__(self, options: EtcdOptions, *, tls: bool = False) -> None:
        self._rpc = _import_rpc()
        self._options = options
        self._tls = tls or options.ca is not None or options.certificate is not None
        self._current = 0
        self._channels: dict[int, Any] = {}
        self._tokens: dict[int, str] = {}

    # ---- calls

    async def read(self, prefix: str) -> tuple[list[StoreEntry], int]:
        rpc, low = self._rpc, self._key(prefix)
        request = rpc.RangeRequest(key=low, range_end=_end(low))
        answer = await self._request(rpc.KVStub, "Range", request, repeat=True)
        entries = [StoreEntry(self._name(kv.key), kv.value.decode(), kv.mod_revision, kv.create_revision) for kv in answer.kvs]
        return sorted(entries, key=lambda entry: entry.key), int(answer.header.revision)

    async def commit(self, puts: Sequence[Put], *, guards: Sequence[Guard] = ()) -> int | None:
        rpc = self._rpc
        compare = [
            rpc.Compare(key=self._key(guard.key), target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=guard.revision)
            for guard in guards
        ]
        request = rpc.TxnRequest(compare=compare, success=[self._operation(put) for put in puts])
        try:
            answer = await self._request(rpc.KVStub, "Txn", request)
        except StoreError as error:
            if "lease not found" in str(error):
                return None
            raise
        return int(answer.header.revision) if answer.succeeded else None

    async def grant(self, ttl_s: float) -> int:
        rpc = self._rpc
        request = rpc.LeaseGrantRequest(TTL=max(1, -int(-ttl_s // 1)))
        answer = await self._request(rpc.LeaseStub, "LeaseGrant", request)
        return int(answer.ID)

    async def renew(self, lease: int) -> bool:
        rpc = self._rpc

        async def keep(channel: Any, **how: Any) -> Any:
            stream = rpc.LeaseStub(channel).LeaseKeepAlive(iter([rpc.LeaseKeepAliveRequest(ID=lease)]), **how)
            return await stream.read()

        answer = await self._call(keep, repeat=True)
        return int(answer.TTL) > 0

    async def revoke(self, lease: int) -> None:
        rpc = self._rpc
        request = rpc.LeaseRevokeRequest(ID=lease)
        try:
            await self._request(rpc.LeaseStub, "LeaseRevoke", request)
        except StoreError as error:
            if "lease not found" not in str(error):
                raise

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[StoreChange]:
        """Ends with `StoreError` when the connection is lost: begin again after the last revision that was seen."""
        rpc, low = self._rpc, self._key(prefix)
        create = rpc.WatchCreateRequest(key=low, range_end=_end(low), start_revision=after + 1)
        requests: asyncio.Queue[Any] = asyncio.Queue()
        requests.put_nowait(rpc.WatchRequest(create_request=create))
        index = self._current
        try:
            call = rpc.WatchStub(self._channel(index)).Watch(_drain(requests), metadata=await self._metadata(index))
        except Exception as error:
            raise self._moved_on(index, error) from error
        try:
            while True:
                for change in await self._next_changes(call, requests):
                    yield change
        except (StoreError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            raise self._moved_on(index, error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    # ---- watching

    async def _next_changes(self, call: Any, requests: asyncio.Queue[Any]) -> list[StoreChange]:
        rpc = self._rpc
        response = asyncio.ensure_future(call.read())
        try:
            done, _ = await asyncio.wait({response}, timeout=IDLE_S)
            if not done:
                requests.put_nowait(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
                done, _ = await asyncio.wait({response}, timeout=max(IDLE_S, self._options.answer_s))
            if not done:
                raise StoreError(f"the watch at {self._options.endpoints[self._current]} is silent")
        finally:
            response.cancel()
        return self._changes(response.result())

    def _changes(self, response: Any) -> list[StoreChange]:
        if not hasattr(response, "events"):
            raise StoreError("etcd has ended the watch")
        if response.compact_revision:
            raise Compacted(f"etcd has compacted its history up to revision {response.compact_revision}")
        if response.canceled:
            raise StoreError(f"etcd has cancelled the watch: {response.cancel_reason}")
        return [
            StoreChange(
                self._name(event.kv.key), None if event.type == event.DELETE else event.kv.value.decode(), event.kv.mod_revision
            )
            for event in response.events
        ]

    # ---- keys

    def _key(self, key: str) -> bytes:
        return (self._options.prefix + key).encode()

    def _name(self, key: bytes) -> str:
        return key.decode().removeprefix(self._options.prefix)

    def _operation(self, put: Put) -> Any:
        rpc = self._rpc
        if put.value is None:
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._key(put.key)))
        return rpc.RequestOp(request_put=rpc.PutRequest(key=self._key(put.key), value=put.value.encode(), lease=put.lease))

    # ---- endpoints

    async def _request(self, stub: Any, method: str, request: Any, *, repeat: bool = False) -> Any:
        def call(channel: Any, **how: Any) -> Awaitable[Any]:
            return getattr(stub(channel), method)(request, **how)

        return await self._call(call, repeat=repeat)

    async def _call(self, call: Callable[..., Awaitable[Any]], *, repeat: bool = False) -> Any:
        """Asks the current endpoint; what may be repeated is asked of the others too."""
        tries = len(self._options.endpoints) if repeat else 1
        for left in reversed(range(tries)):
            index = self._current
            try:
                async with asyncio.timeout(self._options.answer_s):
                    metadata = await self._metadata(index)
                    return await call(self._channel(index), metadata=metadata, timeout=self._options.answer_s)
            except UsageError:
                raise
            except Exception as error:
                failure = self._moved_on(index, error)
                if not left or "lease not found" in str(failure):
                    raise failure from error
        raise AssertionError("unreachable")

    def _moved_on(self, index: int, error: Exception) -> StoreError:
        """The next call goes to another endpoint; what went wrong, as our own error."""
        endpoint = self._options.endpoints[index]
        details = getattr(error, "details", None)
        text = str(details() if callable(details) else error) or type(error).__name__
        if "lease not found" in text:
            return StoreError(text)
        if "invalid auth token" in text:
            self._tokens.pop(index, None)
        elif self._current == index:
            self._current = (index + 1) % len(self._options.endpoints)
        return StoreError(f"etcd at {endpoint}: {text}")

    def _channel(self, index: int) -> Any:
        if index not in self._channels:
            endpoint = self._options.endpoints[index]
            options = [
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 2_000),
                ("grpc.max_reconnect_backoff_ms", 500),
                ("grpc.initial_reconnect_backoff_ms", 100),
            ]
            rpc = self._rpc
            self._channels[index] = (
                rpc.secure_channel(endpoint, self._credentials(), options=options)
                if self._tls
                else rpc.insecure_channel(endpoint, options=options)
            )
        return self._channels[index]

    def _credentials(self) -> Any:
        import grpc  # pyright: ignore

        def content(path: Path | None, what: str) -> bytes | None:
            try:
                return path.read_bytes() if path is not None else None
            except OSError as error:
                raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from error

        options = self._options
        return grpc.ssl_channel_credentials(
            content(options.ca, "CA certificate"),
            content(options.key, "client key"),  # pyright: ignore
            content(options.certificate, "client certificate"),
        )

    async def _metadata(self, index: int) -> tuple[tuple[str, str], ...]:
        options, rpc = self._options, self._rpc
        if not options.user:
            return (LED,)
        if index not in self._tokens:
            request = rpc.AuthenticateRequest(name=options.user, password=options.password)
            answer = await rpc.AuthStub(self._channel(index)).Authenticate(request, timeout=options.answer_s)
            self._tokens[index] = str(answer.token)
        return (LED, ("token", self._tokens[index]))


def _end(low: bytes) -> bytes:
    """The first key after all that begin with `low`."""
    for place in reversed(range(len(low))):
        if low[place] < 0xFF:
            return low[:place] + bytes([low[place] + 1])
    return b"\0"


async def _drain(requests: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while True:
        yield await requests.get()
