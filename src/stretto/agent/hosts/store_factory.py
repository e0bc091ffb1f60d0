"""Opens the store that a URL names: etcd, or the embedded store of the agent with that address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from stretto.agent.hosts.store_options import TOKEN, StoreOptions
from stretto.core.errors import Refused, UsageError
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.etcd import EtcdOptions, EtcdStore
from stretto.membership.stores.store import Guard, Put, Store, StoreChange, StoreEntry, StoreError
from stretto.membership.stores.tcp import StoreServer, TcpStore

REACH_S = 8.0
"""How long a store is tried before it counts as unreachable: an agent that serves one may just be starting."""


class PrefixStore:
    """A store's part under one prefix, so that several jobs can share one."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    async def read(self, prefix: str) -> tuple[list[StoreEntry], int]:
        entries, revision = await self._store.read(self._prefix + prefix)
        return [StoreEntry(self._name(entry.key), entry.value, entry.revision, entry.created) for entry in entries], revision

    async def commit(self, puts: Sequence[Put], *, guards: Sequence[Guard] = ()) -> int | None:
        return await self._store.commit(
            [Put(self._prefix + put.key, put.value, put.lease) for put in puts],
            guards=[Guard(self._prefix + guard.key, guard.revision) for guard in guards],
        )

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[StoreChange]:
        async for change in self._store.watch(self._prefix + prefix, after=after):
            yield StoreChange(self._name(change.key), change.value, change.revision)

    async def grant(self, ttl_s: float) -> int:
        return await self._store.grant(ttl_s)

    async def renew(self, lease: int) -> bool:
        return await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)

    async def close(self) -> None:
        await self._store.close()

    def _name(self, key: str) -> str:
        return key.removeprefix(self._prefix)


@dataclass(slots=True)
class Opened:
    """A store that answers. `serving` is set where this agent is the one that holds it."""

    store: Store
    endpoints: tuple[tuple[str, int], ...]
    serving: StoreServer | None = None
    within_an_agent: bool = False
    """It is gone for good with the agent that serves it."""

    async def close(self) -> None:
        if self.serving is not None:
            await self.serving.close()
        with contextlib.suppress(StoreError):
            await self.store.close()


def endpoints(url: str) -> tuple[tuple[str, int], ...]:
    """Hosts and ports that a store's URL names."""
    parts = urlsplit(url)
    default = 2379 if parts.scheme in ("etcd", "etcds") else 0
    hosts: list[tuple[str, int]] = []
    for part in parts.netloc.rpartition("@")[2].split(","):
        host, colon, port = part.rpartition(":")
        if not colon or "]" in port:
            host, port = part, str(default)
        host = host.strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--store {url!r}: {part!r} is no HOST:PORT")
        hosts.append((host, int(port)))
    return tuple(hosts)


async def open_store(shared: StoreOptions, *, serve: bool = True, every_job: bool = False, answer_s: float | None = None) -> Opened:
    """Raises `UsageError` that names what cannot be reached, within seconds. With `every_job` keys begin with the job's name.
    An answer may take as long as the job's leases allow, or `answer_s`."""
    answer_s = answer_s or shared.timing().answer_s
    places = endpoints(shared.url)
    prefix = "" if every_job else f"{shared.job}/"
    if shared.scheme == "tcp":
        return await _open_tcp(shared, places, prefix=prefix, serve=serve, answer_s=answer_s)
    shared.client_tls()  # for what it says of files that cannot be used
    options = EtcdOptions.read(
        shared.url, job="", ca=_path(shared.ca), certificate=_path(shared.certificate), key=_path(shared.key), answer_s=answer_s
    )
    if options.user:
        options = replace(options, password=shared.password())
    store = EtcdStore(options, tls=shared.scheme == "etcds")
    await _reach(store, shared, places, patient_s=REACH_S)
    return Opened(PrefixStore(store, prefix), places)


async def _open_tcp(
    shared: StoreOptions, places: tuple[tuple[str, int], ...], *, prefix: str, serve: bool, answer_s: float
) -> Opened:
    if len(places) != 1:
        raise UsageError(f"--store {shared.url!r} names {len(places)} addresses: a tcp store has one, the agent's that serves it")
    token = shared.needed_token()
    host, port = places[0]
    if serve:
        server, store = await _serve(shared, host, port, token=token)
        if server is not None:
            return Opened(PrefixStore(store, prefix), places, server, within_an_agent=True)
    client = TcpStore(host, port, token=token, answer_s=answer_s, tls=shared.client_tls())
    await _reach(client, shared, places, patient_s=REACH_S)
    return Opened(PrefixStore(client, prefix), places, within_an_agent=True)


async def _serve(shared: StoreOptions, host: str, port: int, *, token: str) -> tuple[StoreServer | None, Store]:
    """Serves the store if the address is this host's and nobody does yet."""
    store = EmbeddedStore()
    server = StoreServer(store, token=token)
    try:
        await server.start(host, port, tls=shared.server_tls())
    except socket.gaierror as error:
        raise UsageError(f"--store {shared.url}: there is no host {host!r} ({error.strerror})") from None
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise UsageError(f"--store {shared.url} cannot be served here: {error.strerror}") from None
        return None, store
    return server, store


async def _reach(store: Store, shared: StoreOptions, places: Sequence[tuple[str, int]], *, patient_s: float) -> None:
    """Until it answers. What asking again cannot mend is believed when as many calls as there are endpoints have failed."""
    until, failures = time.monotonic() + patient_s, 0
    while True:
        try:
            await store.read("reachable")
            return
        except Refused as error:
            raise UsageError(str(error)) from None
        except StoreError as error:
            failures += 1
            cure = remedy(str(error), shared)
            hopeless = cure is not None and cure.certain and failures >= len(places)
            if hopeless or time.monotonic() > until:
                with contextlib.suppress(StoreError):
                    await store.close()
                raise UsageError(_unreached(error, shared, cure)) from None
        await asyncio.sleep(0.2)


def _unreached(error: StoreError, shared: StoreOptions, cure: Remedy | None) -> str:
    if cure is not None and cure.certain:
        return f"the store {shared.url} refuses host {socket.gethostname()}: {cure.text} ({error})"
    hint = f"; {cure.text}" if cure is not None else ""
    return (
        f"the store {shared.url} cannot be reached from {socket.gethostname()}: {error}. Check that it runs, the addresses, "
        f"and that no firewall is between{hint}"
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name is not None else None


@dataclass(frozen=True, slots=True)
class Remedy:
    """`certain` where asking again cannot help."""

    text: str
    certain: bool = True


def remedy(message: str, shared: StoreOptions) -> Remedy | None:
    """What helps against an error of the store; None if that is not known."""
    return next((make(shared) for words, make in KNOWN if any(word in message for word in words)), None)


def _password(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"etcd does not accept user {shared.user!r} with this password: check both; the password is read from "
        f"--store-token FILE or {TOKEN}, or from --store etcd://{shared.user}:PASSWORD@…"
    )


def _user(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"etcd asks for a user: write --store {shared.scheme}://USER@…, with the password in a file for --store-token or in {TOKEN}"
    )


def _no_users(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"etcd has no users switched on, but --store names {shared.user!r}: leave the user out, or switch them on with "
        "`etcdctl auth enable`"
    )


def _role(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"user {shared.user!r} may not read and write {shared.prefix!r} in etcd: grant it with `etcdctl role "
        f"grant-permission ROLE readwrite --prefix {shared.prefix}`, or name another prefix in --store"
    )


def _ca(shared: StoreOptions) -> Remedy:
    named = (
        f"--store-ca {shared.ca} did not sign the store's certificate, or it is not for this address"
        if shared.ca
        else "the store's certificate is not signed by anybody that this system trusts"
    )
    return Remedy(f"{named}: give the CA that did with --store-ca, and check the names in the certificate")


def _client(shared: StoreOptions) -> Remedy:
    if shared.certificate is None:
        return Remedy("the store asks for a client certificate: give one with --store-cert and --store-key")
    return Remedy(f"the store does not accept the client certificate --store-cert {shared.certificate}: use one that its CA signed")


def _plain(shared: StoreOptions) -> Remedy:
    return Remedy("if it does not speak TLS, write etcd:// and leave out --store-ca, --store-cert and --store-key", certain=False)


def _closed(shared: StoreOptions) -> Remedy:
    return Remedy("if it speaks TLS, write etcds:// or give its CA with --store-ca", certain=False)


KNOWN: tuple[tuple[tuple[str, ...], Callable[[StoreOptions], Remedy]], ...] = (
    (("invalid user ID or password",), _password),
    (("user name is empty",), _user),
    (("authentication is not enabled",), _no_users),
    (("permission denied",), _role),
    (("CERTIFICATE_VERIFY_FAILED", "Hostname Verification"), _ca),
    (("TSI_DATA_CORRUPTED", "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE"), _client),
    (("WRONG_VERSION_NUMBER", "Handshake read failed"), _plain),
    (("Socket closed",), _closed),
)
"""In this order: a later one may be part of an earlier one's words."""
