"""Background threads that end before the interpreter does.

A daemon thread that asks for the interpreter's lock after finalisation has begun is unwound where it stands. With C++ on its stack
that must not be unwound (torch, an import of scipy), the process then dies with SIGABRT, after all of its work is done. So
background threads are started here, and an exit handler stops them and waits for them while the interpreter is still whole.

The link's, the beat's and a roster's threads are not started here: only launched workers have them, and these end with `os._exit`
(agent/workers/zygote.py), which unwinds nothing.

Not covered: a thread that is stuck for longer than `WAIT_S`, for instance in a write to a dead network file system.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable

WAIT_S = 60.0
"""How long the end of the process waits for all of its background threads together."""

_lock = threading.Lock()
_running: dict[threading.Thread, Callable[[], None] | None] = {}


def start(target: Callable[..., None], *args: object, name: str, stop: Callable[[], None] | None = None) -> threading.Thread:
    """Starts a thread. `stop` tells it to end; without one it must end by itself."""

    def run() -> None:
        try:
            target(*args)
        finally:
            with _lock:
                _running.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    with _lock:
        _running[thread] = stop
    try:
        thread.start()
    except BaseException:
        with _lock:
            _running.pop(thread, None)
        raise
    return thread


def _forked() -> None:
    """A forked child has none of its parent's threads, and must not wait for a lock that one of them held."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forked)


@atexit.register
def finish() -> None:
    """Stops all threads and waits for them."""
    with _lock:
        running = dict(_running)
    for stop in running.values():
        if stop is not None:
            stop()
    until = time.monotonic() + WAIT_S
    for thread in running:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
