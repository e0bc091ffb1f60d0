"""A cable with delay, jitter and loss, for kernels without netem: two TAP devices and a process that carries frames between them.

Run as `python -m tests.hosts.delayed_link SPACE DEVICE SPACE DEVICE DELAY_MS JITTER_MS LOSS_PERCENT`. Frames stay in order.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
FRAME_BYTES = 65536
WAITING = 20_000
"""Frames under way; more are dropped, as a full router would."""


class Refused(Exception):
    """This machine allows no such cable."""


def _enter(path: str) -> None:
    space = os.open(path, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns {path}")
    os.close(space)


def tap(space: str, device: str) -> int:
    """A device in a namespace, and the descriptor that its frames come out of."""
    _enter(f"/var/run/netns/{space}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def carry(ends: tuple[int, int], *, delay_s: float, jitter_s: float, loss: float, chance: random.Random) -> None:
    poller = select.poll()
    for fd in ends:
        poller.register(fd, select.POLLIN)
    under_way: list[tuple[float, int, int, bytes]] = []
    last = dict.fromkeys(ends, 0.0)
    number = 0
    while True:
        wait_ms = max(0.0, (under_way[0][0] - time.monotonic()) * 1e3) if under_way else None
        for fd, _ in poller.poll(wait_ms):
            try:
                frame = os.read(fd, FRAME_BYTES)
            except BlockingIOError:
                continue
            if chance.random() < loss or len(under_way) >= WAITING:
                continue
            there = ends[1] if fd == ends[0] else ends[0]
            due = max(last[there], time.monotonic() + max(0.0, chance.uniform(delay_s - jitter_s, delay_s + jitter_s)))
            last[there], number = due, number + 1
            heapq.heappush(under_way, (due, number, there, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, fd, frame = heapq.heappop(under_way)
            try:
                os.write(fd, frame)
            except OSError:
                continue  # that end is down


def main(words: list[str]) -> None:
    try:
        ends = (tap(words[0], words[1]), tap(words[2], words[3]))
    except OSError as error:
        print(error, flush=True)
        return
    print("ready", flush=True)
    delay, jitter, loss = (float(word) for word in words[4:7])
    carry(ends, delay_s=delay / 1e3, jitter_s=jitter / 1e3, loss=loss / 100, chance=random.Random(7))


def start(*words: str) -> subprocess.Popen[str]:
    """Raises `Refused` where TAP devices cannot be made."""
    process = subprocess.Popen([sys.executable, "-m", "tests.hosts.delayed_link", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if said != "ready":
        process.kill()
        process.wait()
        raise Refused(f"neither tc netem nor TAP devices can be used here: {said or 'the cable ended'}")
    return process


if __name__ == "__main__":
    main(sys.argv[1:])
