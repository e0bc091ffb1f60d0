"""Hosts that are addresses of this machine: no namespaces, no root. For what does not need a network that breaks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.hosts.cluster import Agent, Cluster, Job, paced


class Near:
    """A host with an address of its own; everything else it shares with the others."""

    def __init__(self, number: int) -> None:
        self.name, self.address = f"h{number}", f"127.0.0.{number}"

    def inside(self, *command: str) -> list[str]:
        return list(command)


class Loopback:
    """As much of a cluster as jobs need."""

    reference = Cluster.reference

    def __init__(self, folder: Path, store: str = "") -> None:
        self.folder = folder
        self.network = SimpleNamespace(hosts={near.name: near for near in map(Near, range(1, 4))})
        self.etcd = SimpleNamespace(url=store)
        self._references: dict[str, str] = {}

    def job(self, text: str | None = None, **options: Any) -> Job:
        return Job(self, text if text is not None else paced(), **options)  # type: ignore[arg-type]


LEASE_S = "10"
"""Long: nobody is cut off here, and the machine may be busy."""


def start(one: Job, host: str, *options: str, env: dict[str, str] | None = None, workers: str = "1:8") -> Agent:
    """The same command with this host's address."""
    address = one.cluster.network.hosts[host].address
    return one.start(host, "--interface", address, "--lease", LEASE_S, *options, env=env, workers=workers)
