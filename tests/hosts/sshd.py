"""A real sshd on every host of the test network, and an `ssh` that reads the test's configuration instead of the user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.network import Host


class Sshd:
    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        folder.mkdir(exist_ok=True)
        for name in ("host", "user"):
            if not (folder / name).exists():
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        config = self.folder / "sshd_config"
        config.write_text(
            f"HostKey {self.folder / 'host'}\nAuthorizedKeysFile {self.folder / 'user.pub'}\nStrictModes no\n"
            "UsePAM no\nPasswordAuthentication yes\nPermitRootLogin yes\nPidFile none\nMaxStartups 100\n"
        )
        for host in self.hosts:
            with open(self.folder / f"{host.name}.log", "ab") as log:
                self._processes[host.name] = subprocess.Popen(
                    host.inside(
                        shutil.which("sshd") or "/usr/sbin/sshd",
                        "-D",
                        "-e",
                        "-f",
                        str(config),
                        "-p",
                        "22",
                        "-o",
                        f"ListenAddress={host.address}",
                    ),
                    stdout=log,
                    stderr=log,
                )
        for host in self.hosts:
            for _ in range(200):
                if host.run("ss", "-Hltn", "sport = :22", check=False).strip():
                    break
                time.sleep(0.05)
            else:
                raise AssertionError((self.folder / f"{host.name}.log").read_text())

    def client(self, *, key: bool = True) -> Path:
        """A folder for PATH whose `ssh` knows the hosts by their names."""
        folder = self.folder / ("client" if key else "stranger")
        folder.mkdir(exist_ok=True)
        known = folder / "known_hosts"
        public = (self.folder / "host.pub").read_text().split()[:2]
        known.write_text("".join(f"{host.address} {' '.join(public)}\n" for host in self.hosts))
        lines = [
            f"UserKnownHostsFile {known}",
            "GlobalKnownHostsFile /dev/null",
            "IdentitiesOnly yes",
            f"IdentityFile {self.folder / 'user' if key else '/dev/null'}",
        ]
        for host in self.hosts:
            lines += [f"Host {host.name}", f"  HostName {host.address}"]
        (folder / "config").write_text("\n".join(["Host *", *lines[:4], *lines[4:]]) + "\n")
        wrapper = folder / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "config"} "$@"\n')
        wrapper.chmod(0o755)
        return folder

    def environment(self, *, key: bool = True) -> dict[str, str]:
        return {"PATH": f"{self.client(key=key)}:{os.environ['PATH']}"}

    def sever(self, host: str) -> None:
        """Ends the connections to this host, not what was started over them. The listening process stays."""
        keep = self._processes[host].pid
        place = next(one for one in self.hosts if one.name == host)
        for pid in place.pids():
            try:
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().strip().startswith("sshd") and pid != keep:
                        os.kill(pid, 9)
            except (OSError, ProcessLookupError):
                continue

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
