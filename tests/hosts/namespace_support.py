"""Whether this machine lets hosts be made of network namespaces. A container may refuse any part of it, so each is tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "iptables": "iptables"}
CLOSED = """
import errno, socket, sys
probe = socket.socket()
probe.settimeout(5)
sys.exit(probe.connect_ex((sys.argv[1], 9)) != errno.ECONNREFUSED)
"""
"""Ends well where the address answers that nobody listens on this port: packets go there and come back."""
LINE = 200


def missing() -> str:
    """Why namespaces cannot be used here, in one line, or nothing."""
    if os.geteuid() != 0:
        return "hosts are network namespaces, which need root: run it as root"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"hosts are network namespaces, and {tool} is not installed: apt-get install {package}"
    switch, one, other = spaces = [f"st{os.getpid()}-try{number}" for number in range(3)]
    try:
        return next(
            (
                f"hosts are network namespaces, and this machine refuses {what}: {said}"
                for what, command in _steps(switch, one, other)
                if (said := _refusal(command))
            ),
            "",
        )
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def _steps(switch: str, one: str, other: str) -> Iterator[tuple[str, Sequence[str]]]:
    for space in (switch, one, other):
        yield "to make them", ["ip", "netns", "add", space]
    yield "bridges", ["ip", "-n", switch, "link", "add", "br0", "type", "bridge"]
    yield "bridges", ["ip", "-n", switch, "link", "set", "br0", "up"]
    for number, space in enumerate((one, other), start=1):
        port = f"p{number}"
        yield "veth pairs", ["ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space]
        yield "ports of a bridge", ["ip", "-n", switch, "link", "set", port, "master", "br0", "up"]
        yield "addresses", ["ip", "-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0"]
        yield "addresses", ["ip", "-n", space, "link", "set", "eth0", "up"]
        yield "to enter them", ["nsenter", f"--net=/var/run/netns/{space}", "true"]
    inside = ["nsenter", f"--net=/var/run/netns/{one}"]
    yield "packets through a bridge", [*inside, sys.executable, "-S", "-c", CLOSED, "10.77.0.2"]
    yield "iptables rules", [*inside, "iptables", "-A", "INPUT", "-s", "10.77.0.2", "-j", "DROP"]


def _refusal(command: Sequence[str]) -> str:
    """What was said where the command failed, in one line."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    said = " ".join((done.stderr or done.stdout).split())[:LINE]
    return said or f"exit code {done.returncode}"
