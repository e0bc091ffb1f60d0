"""What makes a run part of a job on several hosts."""

from __future__ import annotations

import os
import re
import socket
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from stretto.core.errors import UsageError
from stretto.membership.timeouts import Timeouts

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TOKEN = "STRETTO_STORE_TOKEN"
TOKEN_LEAST = 16
FOREVER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of `--store`."""

    store: str
    """As it was typed. A password may be in it: `url` is what may be shown and written."""
    job: str
    slots: int | None = None
    """Workers that this host may run; as many as it has cores for where nothing is said."""
    interface: str | None = None
    """An interface's name or an address of this host: where workers and other agents reach this one."""
    host: str = ""
    """What this host is called in the job; its own name where nothing is said."""
    token_file: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    lease_s: float = 2.0
    fence_s: float | None = None
    """How long training goes on without the store."""

    @property
    def label(self) -> str:
        name = self.host or socket.gethostname().split(".")[0]
        return re.sub(r"[^A-Za-z0-9_-]", "-", name).strip("-")[:40] or "host"

    @property
    def scheme(self) -> str:
        return self.store.partition("://")[0]

    @property
    def url(self) -> str:
        """Without the password."""
        head, at, tail = self.store.rpartition("@")
        scheme, between, user = head.partition("://")
        return f"{scheme}{between}{user.partition(':')[0]}@{tail}" if at else self.store

    @property
    def user(self) -> str:
        """Who we are to etcd."""
        return unquote(urlsplit(self.url).netloc.rpartition("@")[0])

    @property
    def prefix(self) -> str:
        """Of all our keys in etcd."""
        return f"{urlsplit(self.url).path.strip('/') or 'stretto'}/"

    def validate(self) -> None:
        if self.scheme not in ("etcd", "etcds", "tcp"):
            raise UsageError(f"--store {self.url!r} is no store: write etcd://HOST:2379[,HOST:2379…] or tcp://HOST:PORT")
        if not NAME.fullmatch(self.job):
            raise UsageError(
                f"--job {self.job!r} cannot name a job: use letters, digits, '.', '_' and '-', at most 100, "
                "and begin with a letter or a digit"
            )
        if self.slots is not None and not 0 <= self.slots <= 4096:
            raise UsageError(f"--slots {self.slots} is not a number of workers that a host could run: 0 to 4096")
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--store-cert and --store-key belong together: give both or none")
        if self.scheme == "tcp":
            self.needed_token()
        self.timing()

    def timing(self) -> Timeouts:
        """The times of this job. A store inside an agent is gone for good when that agent is: nobody waits for it with a
        fence, so training goes on without it."""
        if not 1.0 <= self.lease_s <= 600:
            raise UsageError(f"--lease {self.lease_s:g} is out of bounds: 1 to 600 seconds")
        timing = Timeouts().scaled(self.lease_s / Timeouts().lease_s)
        fence_s = FOREVER_S if self.store.startswith("tcp://") else max(Timeouts().fence_s, timing.fence_s)
        if self.fence_s is not None:
            if self.fence_s < self.lease_s:
                raise UsageError(
                    f"--fence {self.fence_s:g} is shorter than --lease {self.lease_s:g}: a host must be allowed to "
                    "miss the store for longer than the others wait for it"
                )
            fence_s = self.fence_s
        return Timeouts(timing.lease_s, timing.renewal_s, timing.answer_s, timing.margin_s, fence_s, timing.drift)

    def token(self) -> str:
        """The tcp store's secret."""
        token = self.secret()
        if token and len(token) < TOKEN_LEAST:
            raise UsageError(
                f"the store's token has {len(token)} characters, at least {TOKEN_LEAST} are needed: make one with "
                "`python -c 'import secrets; print(secrets.token_hex(16))'`"
            )
        return token

    def needed_token(self) -> str:
        token = self.token()
        if not token:
            raise UsageError(
                "a tcp store needs a secret that all agents of the job know: put one into a file and name it with "
                f"--store-token, or set {TOKEN}"
            )
        return token

    def password(self) -> str:
        """Of etcd's user: as it was typed, or the secret."""
        typed = self.store.rpartition("@")[0].partition("://")[2].partition(":")[2]
        return unquote(typed) or self.secret()

    def secret(self) -> str:
        """From a file or the environment: on a command line everybody on the machine could read it."""
        if self.token_file is None:
            return os.environ.get(TOKEN, "").strip()
        try:
            return Path(self.token_file).read_text().strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"--store-token {self.token_file} cannot be read: {error}") from None

    @property
    def sealed(self) -> bool:
        """Whether agents speak TLS with each other too: each needs a certificate to show, and a CA to check the other's with."""
        return self.ca is not None and self.certificate is not None

    def server_tls(self) -> ssl.SSLContext | None:
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_tls(self, *, agents: bool = False) -> ssl.SSLContext | None:
        """Of an agent no name is checked: addresses come from the store, and the job's token proves who it is."""
        if (self.ca is None and self.certificate is None) or (agents and not self.sealed):
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = not agents
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the TLS files of the store cannot be used (--store-ca, --store-cert, --store-key): {error}"
            ) from None

    def to_dict(self) -> dict[str, object]:
        """For `run.json`, which is no place for a password."""
        return {**asdict(self), "store": self.url}

    @staticmethod
    def from_dict(document: dict[str, Any]) -> StoreOptions:
        return StoreOptions(**document)


def default_slots(threads: int) -> int:
    """As many workers as this host has cores for."""
    return max(1, len(os.sched_getaffinity(0)) // threads)
