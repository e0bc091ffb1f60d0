"""A process group that can be taken down while operations are pending.

gloo's own `abort` frees nothing and its destructor waits for pending operations, so a group is taken down by shutting down its
sockets: what appeared in /proc/self/fd while it was built. That is a trick of one platform, and it lives in this file alone.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.core.errors import Broken
from stretto.core.roster import Roster

BUILD_S = 20.0
"""A group that is not connected after this time is given up: a member is gone, and the leader knows or will know."""
CONNECT_S = 5.0
"""Connecting members that are all there takes milliseconds; only one that dies at this moment makes the others wait."""
SILENCE_S = 10.0
"""A connection on which nothing that was sent is acknowledged for this long is broken: packets may get lost in one direction only,
and then no lease runs out. A peer that only computes acknowledges, because gloo reads on a thread of its own."""
OPERATION_S = 600.0
"""An exchange may wait this long for a peer. The supervisor ends a worker that hangs long before."""

_Gloo: Any = dist.ProcessGroupGloo
"""Torch's stubs lack its options, send and recv."""
_building = threading.Lock()


def _sockets() -> set[int]:
    fds: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                fds.add(int(name))
        except OSError:
            continue
    return fds


def _belongs(fd: int, stores: set[int]) -> bool:
    """Whether a socket that appeared is one of the group's: TCP, and not a rendezvous store's that appeared meanwhile."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                return False
            return connection.getsockname()[1] not in stores and not (
                _connected(connection) and connection.getpeername()[1] in stores
            )
    except OSError:
        return False


def _give_up_after(fd: int, silence_s: float) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1e3))
    except OSError:
        return  # it is gone already


def _connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
        return True
    except OSError:
        return False


class Rendezvous:
    """This worker's small store, through which the first member of a roster lets the others find each other."""

    def __init__(self, host: str) -> None:
        self.host = host
        # torch would listen on every address of the machine: it is handed a socket that listens on this one.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family, backlog=4096)
        self._own = dist.TCPStore(
            host,
            listening.getsockname()[1],
            None,
            True,
            timedelta(seconds=BUILD_S),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        self._clients: dict[tuple[str, int], dist.TCPStore] = {}

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self._own.port

    @property
    def ports(self) -> set[int]:
        return {self._own.port, *(port for _, port in list(self._clients))}

    def of(self, address: tuple[str, int]) -> dist.Store:
        if address == self.address:
            return self._own
        if address not in self._clients:
            self._clients[address] = dist.TCPStore(
                address[0], address[1], None, False, timedelta(seconds=BUILD_S), wait_for_workers=False
            )
        return self._clients[address]


class ProcessGroup:
    """The connections of one roster. Every operation raises `Broken` when a peer is gone or the group was taken down."""

    def __init__(self, roster: Roster, worker: str, rendezvous: Rendezvous, *, wanted: Callable[[], bool] = lambda: True) -> None:
        """`wanted` is called while this waits for the others: False gives up."""
        rank = roster.rank(worker)
        assert rank is not None
        self.roster = roster
        self.rank = rank
        self.size = len(roster.members)
        self.down = False
        self._fds: dict[int, int] = {}
        self._group: Any = None
        if self.size > 1:
            self._connect(rendezvous, wanted)

    def _connect(self, rendezvous: Rendezvous, wanted: Callable[[], bool]) -> None:
        options = _Gloo._Options()
        options._devices = [_Gloo.create_device(hostname=rendezvous.host)]
        options._timeout = timedelta(seconds=CONNECT_S)
        options._threads = 1
        try:
            store = rendezvous.of(self.roster.members[0].address)
            prefixed = dist.PrefixStore(f"roster{self.roster.term}.{self.roster.number}", store)
            self._wait_for_members(prefixed, wanted)
            with _building:
                before = _sockets()
                self._group = _Gloo(prefixed, self.rank, self.size, options)
                new = _sockets() - before
        except RuntimeError as error:
            raise Broken(f"roster {self.roster.number} could not be connected: {error}") from error
        stores = rendezvous.ports | {member.address[1] for member in self.roster.members}
        for fd in new:
            if _belongs(fd, stores):
                self._fds[fd] = os.fstat(fd).st_ino
                _give_up_after(fd, SILENCE_S)

    def _wait_for_members(self, store: dist.Store, wanted: Callable[[], bool]) -> None:
        """Waits until all members are here, so that connecting, which cannot be interrupted, is short."""
        store.set(f"here{self.rank}", "1")
        names = [f"here{k}" for k in range(self.size)]
        until, pause = time.monotonic() + BUILD_S, 0.001
        while not store.check(names):
            if not wanted() or time.monotonic() > until:
                raise Broken(f"roster {self.roster.number} was given up before all members were there")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def abort(self) -> None:
        """Makes every pending and later operation fail at once. Safe from any thread, any number of times."""
        self.down = True
        fds, self._fds = self._fds, {}
        for fd, inode in fds.items():
            try:
                if os.fstat(fd).st_ino == inode:
                    with socket.socket(fileno=os.dup(fd)) as connection:
                        connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Callable[[], None]:
        """Starts sending; the result waits for it."""
        return self._start(lambda group: group.send([tensor], to, tag))

    def receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Callable[[], None]:
        """Starts receiving; the result waits for it."""
        return self._start(lambda group: group.recv([tensor], source, tag))

    def _start(self, begin: Callable[[Any], dist.Work]) -> Callable[[], None]:
        if self.down or self._group is None:
            raise Broken(f"roster {self.roster.number} is down")
        try:
            work = begin(self._group)
        except RuntimeError as error:
            raise Broken(str(error)) from error

        def wait() -> None:
            try:
                work.wait(timedelta(seconds=OPERATION_S))
            except RuntimeError as error:
                raise Broken(str(error).splitlines()[0]) from error

        return wait
