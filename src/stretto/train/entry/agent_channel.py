"""The worker's end of the socket pair to its agent: JSON lines both ways, and the heartbeat."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from stretto.core.heartbeat import BEAT_S, Activity, Heartbeat
from stretto.core.messages import TO_AGENT, TO_WORKER, ToAgent, ToWorker
from stretto.core.schema import Unknown

LINE_BYTES = 16 << 20
"""No message of the agent is longer."""
ORPHAN = 70
"""The exit code of a worker whose agent is gone."""


class AgentChannel:
    """Messages to and from the agent. A worker whose agent is gone exits at once: its steps would not be recorded."""

    def __init__(self, fd: int, beat: Heartbeat | None) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        self._beat = beat
        self._closed = False

    def start(self, handle: Callable[[ToWorker | Unknown], None]) -> None:
        threading.Thread(target=self._read, args=(handle,), name="stretto-link", daemon=True).start()
        if self._beat is not None:
            threading.Thread(target=self._pulse, args=(self._beat,), name="stretto-beat", daemon=True).start()

    def send(self, message: ToAgent) -> None:
        line = TO_AGENT.encode(message)
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            self._orphaned()

    def close(self) -> None:
        """Before the process ends: the agent may close its side from now on."""
        self._closed = True

    def _read(self, handle: Callable[[ToWorker | Unknown], None]) -> None:
        with self._socket.makefile("rb") as lines:
            while True:
                try:
                    line = lines.readline(LINE_BYTES)
                except OSError:
                    line = b""
                if not line.endswith(b"\n"):
                    return self._orphaned()
                handle(TO_WORKER.decode(line))

    def _pulse(self, beat: Heartbeat) -> None:
        while True:
            beat.beat()
            time.sleep(BEAT_S)

    def _orphaned(self) -> None:
        if not self._closed:
            os._exit(ORPHAN)


class NullHeartbeat:
    """Stands for the heartbeat in a script that runs without an agent."""

    def activity(self, code: Activity) -> None: ...
    def enter_pass(self, *, train: bool, loader: int, step: int, pass_: int) -> None: ...
    def enter_slice(self, step: int, pass_: int, slice: int) -> None: ...
    def leave_slice(self, code: Activity = Activity.STEPPING) -> None: ...
