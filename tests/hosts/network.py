"""Hosts as network namespaces on one machine: each has its own addresses, and all are plugged into one switch.

The switch is a bridge in a namespace of its own, so nothing appears on the machine's own network. Names carry the pid of the
process that made them; what a killed process has left behind is swept up by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.hosts import delayed_link

NET = "10.77.0"
NET6 = "fd77::"


def sh(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Host:
    """One namespace with an address. `name` is what it is called in a job."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.network, self.name, self.number = network, name, number
        self.space = f"{network.prefix}-{name}"
        self.port = f"p{number}"
        self._cable: subprocess.Popen[str] | None = None
        self.address, self.address6 = f"{NET}.{number}", f"{NET6}{number:x}"
        sh("ip", "netns", "add", self.space)
        sh("ip", "-n", network.switch, "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        sh("ip", "-n", network.switch, "link", "set", self.port, "master", "br0", "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
        ):
            sh("ip", "-n", self.space, *words)
        self.no_ipv6 = self._add_ipv6()
        """Why this host has no IPv6 address, or nothing: kernels can be without."""

    def _add_ipv6(self) -> str:
        words = ["ip", "-n", self.space, "addr", "add", f"{self.address6}/64", "dev", "eth0", "nodad"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()

    def inside(self, *command: str) -> list[str]:
        """The command line that runs something on this host."""
        return ["nsenter", f"--net=/var/run/netns/{self.space}", *command]

    def run(self, *command: str, check: bool = True) -> str:
        return sh(*self.inside(*command), check=check)

    def pids(self) -> list[int]:
        return [int(pid) for pid in sh("ip", "netns", "pids", self.space, check=False).split()]

    def kill(self) -> None:
        """Everything that runs on it, at once: the power is gone. Its kernel still closes the connections."""
        for _ in range(50):
            pids = self.pids()
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def pull(self) -> None:
        """The cable is pulled: nothing gets in or out, and nobody is told."""
        sh("ip", "-n", self.network.switch, "link", "set", self.port, "down")

    def plug(self) -> None:
        sh("ip", "-n", self.network.switch, "link", "set", self.port, "up")

    def heard_bytes(self) -> int:
        """What has come in over the cable."""
        return int(json.loads(sh("ip", "-n", self.space, "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["rx"]["bytes"])

    def refuse(self, others: Iterable[Host]) -> None:
        """Packets from these hosts are dropped here; what this host sends still arrives there."""
        for other in others:
            self.run("iptables", "-A", "INPUT", "-s", other.address, "-j", "DROP")

    def allow(self) -> None:
        self.run("iptables", "-F", "INPUT")
        self.run("iptables", "-F", "OUTPUT")

    def slow(self, *, delay_ms: float, jitter_ms: float, loss_percent: float) -> None:
        """Everything from and to this host takes so long, and some of it is lost: by the kernel, or over a cable of our own.

        Raises `delayed_link.Refused` where this machine allows neither."""
        shape = ("delay", f"{delay_ms}ms", f"{jitter_ms}ms", "loss", f"{loss_percent}%")
        if not subprocess.run(
            ["ip", "netns", "exec", self.space, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", *shape],
            capture_output=True,
            check=False,
        ).returncode:
            sh("ip", "netns", "exec", self.network.switch, "tc", "qdisc", "add", "dev", self.port, "root", "netem", *shape)
            return
        device = f"t{self.number}"
        self._cable = delayed_link.start(
            self.network.switch, device, self.space, "slow0", str(delay_ms), str(jitter_ms), str(loss_percent)
        )
        sh("ip", "-n", self.network.switch, "link", "set", device, "master", "br0", "up")
        mac = _mac(self)
        sh("ip", "-n", self.space, "link", "set", "eth0", "down")
        sh("ip", "-n", self.space, "link", "set", "slow0", "address", mac)  # the others know this host by it
        sh("ip", "-n", self.space, "addr", "flush", "dev", "eth0")
        sh("ip", "-n", self.space, "addr", "add", f"{self.address}/24", "dev", "slow0")
        sh("ip", "-n", self.space, "link", "set", "slow0", "up")

    def fast(self) -> None:
        """As it was before `slow`."""
        sh("ip", "netns", "exec", self.space, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        sh("ip", "netns", "exec", self.network.switch, "tc", "qdisc", "del", "dev", self.port, "root", check=False)
        if self._cable is not None:
            self._cable.kill()
            self._cable.wait()
            self._cable = None
            sh("ip", "-n", self.space, "link", "set", "eth0", "up")
            sh("ip", "-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
            self._add_ipv6()


def _mac(host: Host) -> str:
    found = re.search(r"link/ether (\S+)", sh("ip", "-n", host.space, "link", "show", "eth0"))
    assert found
    return found[1]


class Network:
    """A switch and the hosts that are plugged into it."""

    def __init__(self) -> None:
        self.prefix = f"st{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.hosts: dict[str, Host] = {}
        sweep()
        sh("ip", "netns", "add", self.switch)
        sh("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", self.switch, "link", "set", "br0", "up")

    def add(self, name: str) -> Host:
        self.hosts[name] = Host(self, name, len(self.hosts) + 1)
        return self.hosts[name]

    def part(self, *sides: Sequence[Host]) -> None:
        """Hosts of different sides do not reach each other any more."""
        for side in sides:
            others = [host for other in sides if other is not side for host in other]
            for host in side:
                host.refuse(others)

    def heal(self) -> None:
        for host in self.hosts.values():
            host.plug()
            host.allow()
            host.fast()

    def close(self) -> None:
        for host in self.hosts.values():
            host.kill()
            host.fast()
            sh("ip", "netns", "del", host.space, check=False)
        sh("ip", "netns", "del", self.switch, check=False)


def sweep() -> None:
    """Namespaces of processes that are gone, with everything in them."""
    for line in sh("ip", "netns", "list", check=False).splitlines():
        found = re.match(r"st(\d+)-", line)
        if found and not Path(f"/proc/{found[1]}").exists():
            space = line.split()[0]
            for pid in sh("ip", "netns", "pids", space, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            sh("ip", "netns", "del", space, check=False)


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    made = Network()
    try:
        for name in names:
            made.add(name)
        yield made
    finally:
        made.close()
