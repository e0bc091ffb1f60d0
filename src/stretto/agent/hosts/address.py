"""Which of this host's addresses others reach it at."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence

from stretto.core.errors import UsageError

SIOCGIFADDR = 0x8915


def choose_address(interface: str | None, *, endpoints: Sequence[tuple[str, int]]) -> str:
    """The address of the interface that was named; otherwise the one that packets to the store leave from."""
    if interface is not None:
        return _named(interface)
    errors: list[str] = []
    for host, port in endpoints:
        try:
            return _towards(host, port)
        except OSError as error:
            errors.append(f"{host}: {error.strerror or error}")
    raise UsageError(
        f"this host ({socket.gethostname()}) has no route to the store ({'; '.join(errors)}): check the endpoints' "
        "names and the network, or say which of this host's addresses others reach it at with --interface"
    )


def _towards(host: str, port: int) -> str:
    """The kernel's choice for this destination; nothing is sent."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _named(interface: str) -> str:
    try:
        wanted = ipaddress.ip_address(interface.strip("[]"))
    except ValueError:
        return _of_interface(interface)
    if not local(str(wanted)):
        raise UsageError(
            f"--interface {interface}: this host ({socket.gethostname()}) does not have this address; it has "
            f"{_listing()}. An address that belongs to a router in front of it (NAT) cannot be used"
        )
    return str(wanted)


def local(address: str) -> bool:
    """Whether this host has this address."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def _of_interface(name: str) -> str:
    address = _ipv4(name) or _ipv6(name)
    if address is None:
        raise UsageError(
            f"--interface {name!r} is no interface with an address of this host ({socket.gethostname()}): there are {_listing()}"
        )
    return address


def _ipv4(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6(name: str) -> str | None:
    """The first address of global scope."""
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    for digits, _, _, scope, _, device in rows:
        if device == name and scope == "00":
            return str(ipaddress.IPv6Address(int(digits, 16)))
    return None


def _listing() -> str:
    names = [name for _, name in socket.if_nameindex()]
    addresses = [(name, _ipv4(name) or _ipv6(name)) for name in names]
    return ", ".join(f"{name} ({address})" for name, address in addresses if address) or "none"
