"""A real server in its own process, and a client for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stretto.server.client import Client, ServerError

AGENT = str(Path(__file__).with_name("simulated_agent.py"))
SIMULATED = (sys.executable, "-I", "-S", AGENT)

PROGRAM = """
import json, os, sys, time
from pathlib import Path
if "STRETTO_TEST_CLOCK" in os.environ:
    offset, real = Path(os.environ["STRETTO_TEST_CLOCK"]), time.time
    time.time = lambda: real() + float(offset.read_text() or 0)
from stretto.server.serve import serve
from stretto.server.settings import ServerSettings
given = json.loads(sys.argv[1])
for key in ("home",):
    given[key] = Path(given[key])
for key in ("launcher", "allowed_hosts"):
    if key in given:
        given[key] = tuple(given[key])
serve(ServerSettings(**given), say=lambda url, token: print(json.dumps([url, token]), flush=True))
"""


def until(found: Callable[[], object], *, what: str, timeout_s: float = 60.0) -> None:
    """Waits for something to become true; a guard against hangs, not a measurement."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if found():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {timeout_s:g} s")


@dataclass
class Running:
    """One server that can be killed and started again on the same home."""

    home: Path
    options: dict[str, object] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    url: str = ""
    token: str = ""

    def start(self) -> Running:
        options = dict(self.options)
        environment = {**os.environ, **options.pop("environment", {})}  # type: ignore[dict-item]
        given = {
            "home": str(self.home),
            "port": 0,
            "policy": "fifo",
            "interval_s": 1.0,
            "rate": 5000.0,
            "cooldown_s": 0.0,
            "launcher": SIMULATED,
            **options,
        }
        self.home.mkdir(parents=True, exist_ok=True)
        self.errors = (self.home / "server.err").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,
            env=environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {(self.home / 'server.err').read_text()[-2000:]}")
        self.url, self.token = json.loads(line)
        until(self.ready, what="the server is ready")
        return self

    def ready(self) -> bool:
        try:
            with self.client() as client:
                return client.overview().ready
        except ServerError:
            return False

    def client(self, token: str | None = None) -> Client:
        return Client(self.url, token=token or self.token)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()

    def end_jobs(self) -> None:
        """Kills whatever jobs of this home are left: a failed test must not leave processes."""
        for lock in self.home.glob("jobs/*/life-*/keeper.json"):
            with contextlib.suppress(OSError, ValueError):
                pid = json.loads(lock.read_text())["pid"]
                if str(self.home) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)


def processes(home: Path) -> list[str]:
    """Command lines of everything that still runs under this home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(home) in line:
                found.append(line)
    return found


@contextlib.contextmanager
def running(home: Path, **options: object) -> Iterator[Running]:
    server = Running(home, options)
    try:
        yield server.start()
    finally:
        server.stop()
        server.end_jobs()


def job(
    name: str = "digits",
    *,
    steps: int = 20,
    step_s: float = 0.05,
    least: int = 1,
    most: int = 1,
    more: tuple[str, ...] = (),
    **spec: object,
) -> dict[str, object]:
    """A job for the simulated agent."""
    run = ["python", "train.py", "--steps", str(steps), "--step-s", str(step_s), *more]
    return {"name": name, "run": run, "elastic": {"min": least, "max": most, **spec.pop("elastic", {})}, **spec}  # type: ignore[dict-item]
