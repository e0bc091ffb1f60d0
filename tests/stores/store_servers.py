"""The three kinds of store, each as a place that any number of clients can connect to."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.etcd import EtcdOptions, EtcdStore
from stretto.membership.stores.store import Store, StoreError
from stretto.membership.stores.tcp import StoreServer, TcpStore

HISTORY = 50
ANSWER_S = 20.0
"""Generous: the machine that runs the tests may be busy."""


class Place(ABC):
    """Somewhere to connect to; `forget` makes the store drop the history up to now."""

    @abstractmethod
    def client(self) -> Store: ...

    async def forget(self, store: Store) -> None:
        """The embedded stores remember the last `HISTORY` changes only."""
        from stretto.membership.stores.store import Put

        for turn in range(HISTORY + 1):
            await store.commit([Put("noise", str(turn))])


class Embedded(Place):
    def __init__(self) -> None:
        self.store = EmbeddedStore(history=HISTORY)

    def client(self) -> Store:
        return self.store


class Tcp(Place):
    def __init__(self) -> None:
        self.store = EmbeddedStore(history=HISTORY)
        self.server = StoreServer(self.store, token="sesame")
        self.address = ("127.0.0.1", 0)

    async def start(self) -> None:
        self.address = await self.server.start(*self.address)

    async def restart(self) -> None:
        """The same data behind a new server on the same port."""
        await self.server.close()
        self.server = StoreServer(self.store, token="sesame")
        await self.start()

    def client(self) -> Store:
        return TcpStore(*self.address, token="sesame", answer_s=ANSWER_S)


class Etcd(Place):
    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self.options = EtcdOptions(endpoints, prefix=f"test/{uuid.uuid4().hex}/", answer_s=ANSWER_S)

    def client(self) -> Store:
        return EtcdStore(self.options)

    async def forget(self, store: Store) -> None:
        assert isinstance(store, EtcdStore)
        rpc: Any = store._rpc
        _, revision = await store.read("")
        await store._request(rpc.KVStub, "Compact", rpc.CompactionRequest(revision=revision))


@asynccontextmanager
async def opened(kind: str, etcd: EtcdProcess | None) -> AsyncIterator[Place]:
    if kind == "embedded":
        place: Place = Embedded()
        yield place
    elif kind == "tcp":
        served = Tcp()
        await served.start()
        yield served
        await served.server.close()
        await served.store.close()
    else:
        assert etcd is not None
        yield Etcd((etcd.endpoint,))


def free_port() -> int:
    """Not one that the kernel would give to an outgoing connection before its server is up."""
    for port in random.sample(range(10_000, 30_000), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")


class EtcdProcess:
    """One real etcd with its data in a folder."""

    def __init__(self, folder: Path, *, tls: dict[str, Path] | None = None) -> None:
        self.folder = folder
        self.port, self.peer = free_port(), free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        scheme = "https" if self._tls else "http"
        command = [
            shutil.which("etcd") or "etcd",
            "--data-dir",
            str(self.folder / "data"),
            "--listen-client-urls",
            f"{scheme}://{self.endpoint}",
            "--advertise-client-urls",
            f"{scheme}://{self.endpoint}",
            "--listen-peer-urls",
            f"http://127.0.0.1:{self.peer}",
            "--initial-advertise-peer-urls",
            f"http://127.0.0.1:{self.peer}",
            "--initial-cluster",
            f"default=http://127.0.0.1:{self.peer}",
            "--unsafe-no-fsync",
        ]
        if self._tls:
            command += [
                "--cert-file",
                str(self._tls["certificate"]),
                "--key-file",
                str(self._tls["key"]),
                "--trusted-ca-file",
                str(self._tls["ca"]),
                "--client-cert-auth",
            ]
        log = (self.folder / "etcd.log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()

    def _wait(self) -> None:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"etcd did not come up: {(self.folder / 'etcd.log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def eventually(store: Store, prefix: str) -> list[str]:
    """The keys under a prefix, as soon as the store answers again."""
    for _ in range(300):
        try:
            return [entry.key for entry in (await store.read(prefix))[0]]
        except StoreError:
            await asyncio.sleep(0.1)
    raise AssertionError("the store did not come back")


def certificates(folder: Path) -> dict[str, Path]:
    """A CA and one certificate for 127.0.0.1 that serves both ends."""

    def run(*command: str) -> None:
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)

    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    run(
        "x509",
        "-req",
        "-in",
        "node.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-out",
        "node.pem",
        "-extfile",
        "names",
    )
    return {"ca": folder / "ca.pem", "certificate": folder / "node.pem", "key": folder / "node.key"}
