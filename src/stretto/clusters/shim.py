"""One small process per job, between the server and the job's own processes; standard library only, started by its
path.

It holds a lock on the attempt's folder for as long as it lives, so that an attempt cannot be started twice and a new server
sees at once which ones are alive. It copies the job's output into a bounded log. When the job's first process ends,
it ends all others that the job has left behind, wherever they have put themselves (it is their subreaper), and writes
down the exit code. If the shim is killed, the kernel kills the job's first process: nothing goes on unseen.

    shim.py FOLDER LOG_BYTES GRACE_S -- COMMAND …
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TAIL = 64 * 1024
ALREADY = 75


def main(folder: Path, log_bytes: int, grace_s: float, command: list[str]) -> int:
    lock = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locked(lock):
        return ALREADY
    if (folder / "exit.json").exists():
        return ALREADY
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
    except OSError as error:
        write(folder / "exit.json", {"code": 127, "t": time.time(), "text": f"{command[0]}: {error.strerror}"})
        return 0
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: signals.append(got))
    write(folder / "keeper.json", {"pid": os.getpid(), "child": child.pid, "t": time.time()})
    tail = copy(child, folder / "console.log", log_bytes, signals, grace_s)
    code = child.wait()
    left = sweep()
    write(
        folder / "exit.json",
        {"code": code, "t": time.time(), "left": left, "text": tail.decode("utf-8", "replace")[-4000:]},
    )
    return 0


def locked(lock: int) -> bool:
    """Tries for two seconds: a server that checks whether a shim runs holds the lock for a moment."""
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.1)
    return False


def copy(child: subprocess.Popen[bytes], path: Path, bound: int, signals: list[int], grace_s: float) -> bytes:
    """Output into the log until the child has ended. Returns the last of it."""
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    os.set_blocking(pipe, False)
    tail = b""
    asked_at: float | None = None
    with path.open("ab", buffering=0) as log:
        written = log.tell()
        open_ = True
        while True:
            ended = child.poll() is not None
            data = read(pipe, wait_s=0.0 if ended else 0.25) if open_ else b""
            if data is None:
                open_ = False
            elif data:
                tail = (tail + data)[-TAIL:]
                written = keep(log.fileno(), data, written, bound)
            if ended and not data:
                break
            if not open_ and not ended:
                time.sleep(0.05)
            asked_at = pass_on(child, signals, asked_at, grace_s)
        if written > bound:
            keep_all(log.fileno(), b"\n[stretto] the end of the output:\n" + tail)
    return tail


def read(pipe: int, *, wait_s: float) -> bytes | None:
    """What is there; nothing in time: b""; the end: None."""
    try:
        ready, _, _ = select.select([pipe], [], [], wait_s)
        if not ready:
            return b""
        return os.read(pipe, 65536) or None
    except (BlockingIOError, InterruptedError):
        return b""


def keep(log: int, data: bytes, written: int, bound: int) -> int:
    """Writes up to the bound. A full disk loses output, not the job."""
    if written > bound:
        return written
    if written + len(data) > bound:
        data = data[: bound - written] + f"\n[stretto] the log is full at {bound} bytes: what follows is left out\n".encode()
        keep_all(log, data)
        return bound + 1
    keep_all(log, data)
    return written + len(data)


def keep_all(log: int, data: bytes) -> None:
    try:
        os.write(log, data)
    except OSError:
        pass


def pass_on(child: subprocess.Popen[bytes], signals: list[int], asked_at: float | None, grace_s: float) -> float | None:
    """The first signal asks the job to end; a second one, or the end of the grace, kills it."""
    now = time.monotonic()
    if signals:
        if asked_at is None:
            child.send_signal(signal.SIGTERM)
            asked_at = now
            signals.pop()
        else:
            asked_at = now - grace_s
        signals.clear()
    if asked_at is not None and now - asked_at >= grace_s:
        child.kill()
    return asked_at


def sweep() -> int:
    """Ends everything that the job has left behind. Returns how many that were."""
    signalled: set[int] = set()
    until = time.monotonic() + 5.0
    hard = time.monotonic() + 1.0
    while time.monotonic() < until:
        reap()
        living = list(descendants(os.getpid()))
        if not living:
            break
        for pid in living:
            try:
                os.kill(pid, signal.SIGTERM if pid not in signalled and time.monotonic() < hard else signal.SIGKILL)
            except ProcessLookupError:
                pass
            signalled.add(pid)
        time.sleep(0.1)
    return len(signalled)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def descendants(pid: int) -> Iterator[int]:
    """Living children, and theirs."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    yield child
                    yield from descendants(child)
    except OSError:
        return


def write(path: Path, value: dict[str, object]) -> None:
    """Replaces a file as a whole. Retries while the disk is full, because this file proves that the attempt has ended.

    A copy of `core.files.replacing` in short: the shim imports nothing but the standard library.
    """
    fresh = path.with_suffix(".new")
    for _ in range(600):
        try:
            fresh.write_text(json.dumps(value))
            os.replace(fresh, path)
            return
        except OSError:
            time.sleep(1.0)


if __name__ == "__main__":
    where, size, grace, _, *rest = sys.argv[1:]
    sys.exit(main(Path(where), int(size), float(grace), rest))
