"""A real etcd cluster, one member a namespace."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hosts.network import Host

GUARD_S = 60.0


class Etcd:
    """Members keep their data on disk, so that each can be stopped and started again."""

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self.hosts = list(hosts)
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"{host.address}:2379" for host in self.hosts)

    def start(self, *names: str) -> None:
        for host in self.hosts:
            if (not names or host.name in names) and host.name not in self.processes:
                self._start(host)
        self.wait()

    def _start(self, host: Host) -> None:
        cluster = ",".join(f"{one.name}=http://{one.address}:2380" for one in self.hosts)
        command = [
            shutil.which("etcd") or "etcd",
            "--name",
            host.name,
            "--data-dir",
            str(self.folder / host.name),
            "--listen-client-urls",
            f"http://{host.address}:2379,http://127.0.0.1:2379",
            "--advertise-client-urls",
            f"http://{host.address}:2379",
            "--listen-peer-urls",
            f"http://{host.address}:2380",
            "--initial-advertise-peer-urls",
            f"http://{host.address}:2380",
            "--initial-cluster",
            cluster,
            "--initial-cluster-token",
            self.folder.name,
            "--unsafe-no-fsync",
        ]
        with open(self.folder / f"{host.name}.log", "ab") as log:
            self.processes[host.name] = subprocess.Popen(host.inside(*command), stdout=log, stderr=log)

    def stop(self, *names: str) -> None:
        for name in names or tuple(self.processes):
            process = self.processes.pop(name, None)
            if process is not None:
                process.kill()
                process.wait()

    def stored(self, job: str) -> dict[str, Any]:
        """What is in it of a job, asked of a member that runs."""
        prefix = f"stretto/{job}/"
        for host in self.hosts:
            if host.name in self.processes:
                words = ("etcdctl", "--endpoints", "127.0.0.1:2379", "get", "--prefix", prefix, "-w", "json")
                text = host.run("env", "ETCDCTL_API=3", *words, check=False)
                if text:
                    return _decode(json.loads(text), prefix=prefix)
        return {}

    def wait(self) -> None:
        """Until the members that run agree on a leader."""
        deadline = time.monotonic() + GUARD_S
        for host in self.hosts:
            while host.name in self.processes and not self._healthy(host):
                log = self.folder / f"{host.name}.log"
                assert time.monotonic() < deadline, f"etcd did not come up: {log.read_text()[-2000:]}"
                time.sleep(0.1)

    def _healthy(self, host: Host) -> bool:
        if len(self.processes) * 2 <= len(self.hosts):
            return True
        told = host.run("curl", "-s", "-m", "2", "http://127.0.0.1:2379/health", check=False)
        try:
            return json.loads(told or "{}").get("health") == "true"
        except ValueError:
            return False


def _decode(answer: dict[str, Any], *, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in answer.get("kvs") or ():
        name = base64.b64decode(pair["key"]).decode().removeprefix(prefix)
        found[name] = json.loads(base64.b64decode(pair["value"]))
    return found
