"""How a server is set up: everything that `stretto serve` can be told, in one place, checked before anything is
opened."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stretto.clusters.base import STRETTO, ClusterContext
from stretto.clusters.registry import DEFAULT
from stretto.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The options of `stretto serve`. `checked` refuses values that do not go together."""

    home: Path = Path("~/.stretto")
    database: str | None = None
    host: str = "127.0.0.1"
    port: int = 8787
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    cluster: str = DEFAULT
    """A name of the registry (`clusters/registry.py`) or `module:attribute`."""
    cluster_options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Validated by the cluster. The next three are short forms of options with the same names."""
    slots: int | None = None
    nodes: int | None = None
    price: float | None = None
    policy: str | None = None
    """None for the last one chosen, else `goodput` if there is one, else `fifo`."""
    interval_s: float = 10.0
    policy_timeout_s: float = 5.0
    quota: int | None = None
    """The most slots that the jobs of one tenant may hold together."""
    cooldown_s: float = 5.0
    """Seconds after a resize in which a job is not resized again, unless another job waits for its minimum."""
    turn_s: float = 120.0
    """A job that was started is not set back to the queue before, except for one of a higher priority."""
    rate: float = 200.0
    most_jobs: int = 20_000
    launcher: tuple[str, ...] = field(default=STRETTO)
    """How `stretto` is started for jobs; tests put simulated agents here."""

    def checked(self) -> ServerSettings:
        """The same, or `UsageError` with the option that has to change."""
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port {self.port} is out of range: 0 (any) to 65535")
        if self.interval_s <= 0 or self.policy_timeout_s <= 0:
            raise UsageError(f"--interval {self.interval_s:g} and --policy-timeout {self.policy_timeout_s:g} must be above 0 s")
        if self.quota is not None and self.quota < 1:
            raise UsageError(f"--quota {self.quota} lets nobody run anything: give at least 1, or leave it out")
        if self.cooldown_s < 0:
            raise UsageError(f"--cooldown {self.cooldown_s:g} is below 0: give 0 or more")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key belong together: give both or none")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise UsageError(f"{path} does not exist: --tls-cert and --tls-key name PEM files")
        if not loopback(self.host) and self.tls_cert is None:
            raise UsageError(
                f"--host {self.host} would send tokens over the network in the clear: give --tls-cert and --tls-key, "
                "or stay on 127.0.0.1 behind a proxy that does TLS"
            )
        return self

    @property
    def folder(self) -> Path:
        return self.home.expanduser().absolute()

    @property
    def url(self) -> str:
        return self.database or f"sqlite:///{self.folder / 'server.db'}"

    @property
    def context(self) -> ClusterContext:
        """What the cluster is made with."""
        return ClusterContext(self.folder, self.launcher)

    @property
    def all_cluster_options(self) -> dict[str, str]:
        """The cluster's options, with those that have flags of their own."""
        flags = {"slots": self.slots, "nodes": self.nodes, "price": self.price}
        return {**self.cluster_options, **{key: str(value) for key, value in flags.items() if value is not None}}

    def names(self, port: int) -> frozenset[str]:
        """Names that requests may call this server by."""
        own = {"127.0.0.1", "localhost", "[::1]", *(name.lower() for name in self.allowed_hosts)}
        if self.host not in ("0.0.0.0", "::", ""):
            own.add(f"[{self.host}]" if ":" in self.host else self.host.lower())
        return frozenset(own | {f"{name}:{port}" for name in own})

    def origins(self, port: int) -> frozenset[str]:
        scheme = "https" if self.tls_cert else "http"
        return frozenset(f"{scheme}://{name}" for name in self.names(port))

    def prepare(self) -> None:
        """Makes the home, for this user alone."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(self.folder, 0o700)
        except OSError as error:
            raise UsageError(f"--home {self.folder} cannot be used: {error.strerror}: choose another with --home DIR") from error


def read_login(path: Path) -> tuple[str, str] | None:
    """(URL, token) of the saved login: where clients of this user find the server that this user runs."""
    try:
        login = json.loads(path.read_text())
        return str(login["url"]), str(login["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
