"""The agent's end of a worker's link and of its output: bounded lines in both directions."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import BinaryIO

from stretto.core.errors import SchemaError
from stretto.core.messages import TO_AGENT, TO_WORKER, ToAgent, ToWorker
from stretto.core.schema import Unknown

LINE_BYTES = 1 << 20
"""The longest message: a crash with its traceback, a commit with its metrics."""
UNREAD_BYTES = 4 << 20
"""What may wait for a worker that does not read; more means that it never will."""
OUTPUT_BYTES = 16384
"""A line of output longer than this is shown in pieces."""


class WorkerChannel:
    """JSON lines over a socket pair. `ended` is set when the worker's end is closed and everything has been read."""

    def __init__(
        self, end: socket.socket, *, on_message: Callable[[ToAgent | Unknown], None], on_fault: Callable[[str], None]
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._on_message = on_message
        self._on_fault = on_fault
        self._writer: asyncio.StreamWriter | None = None
        self._early: list[bytes] = []
        self.ended = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    def send(self, message: ToWorker) -> None:
        """Never waits. Does nothing if the worker is gone."""
        data = TO_WORKER.encode(message)
        if self._writer is None:
            self._early.append(data)
            return
        if self._writer.is_closing():
            return
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > UNREAD_BYTES:
            self._on_fault(f"has not read {UNREAD_BYTES} bytes of messages")

    def close(self) -> None:
        self._task.cancel()
        if self._writer is not None:
            self._writer.close()
        self._socket.close()

    async def _read(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=LINE_BYTES)
        for data in self._early:
            self._writer.write(data)
        self._early.clear()
        try:
            while line := await reader.readline():
                self._decode(line)
        except ValueError:
            self._on_fault(f"sent a message of more than {LINE_BYTES} bytes")
        except ConnectionError:
            pass
        finally:
            self.ended.set()

    def _decode(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            return  # cut off by its death
        try:
            message = TO_AGENT.decode(line)
        except SchemaError as error:
            self._on_fault(f"sent a message that does not fit: {error}")
            return
        self._on_message(message)


class WorkerOutput:
    """One of a worker's standard streams: into its log as it is, and line by line to whoever watches."""

    def __init__(self, fd: int, *, log: BinaryIO | None, show: Callable[[str], None]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._log = log
        self._show = show
        self._rest = b""
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._log is not None:
            try:
                self._log.write(data)
            except OSError as error:
                self._log = None
                self._show(f"(the log cannot be written: {error.strerror}; the worker goes on)")
        self._split(data)

    def _split(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        while len(self._rest) > OUTPUT_BYTES:
            self._line(self._rest[:OUTPUT_BYTES])
            self._rest = self._rest[OUTPUT_BYTES:]

    def _line(self, line: bytes) -> None:
        """Of a line that was drawn over and over, such as a progress bar, the last state is shown."""
        self._show(line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace"))

    def close(self) -> None:
        if self.ended.is_set():
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        if self._rest:
            self._line(self._rest)
        self._rest = b""
        self.ended.set()
