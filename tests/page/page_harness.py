"""A real Chromium, a real `stretto serve`, and helpers for both."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Playwright, expect

from stretto.server.client import Client, ServerError

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "artifacts"
GUARD_S = 120.0
"""Guards against hanging forever: the machine may be busy."""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK = (1280, 800)
PHONE = (390, 844)
expect.set_options(timeout=GUARD_S * 1000)


def chromium_path() -> str | None:
    return shutil.which("chromium")


def launch(playwright: Playwright) -> Browser:
    """Debian's Chromium, headless, with an empty profile of its own."""
    path = chromium_path()
    assert path is not None, "chromium is not on PATH"
    return playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)


@dataclass
class Window:
    """A browser window, and the errors and warnings of its console."""

    context: BrowserContext
    page: Page
    url: str
    console_errors: list[str] = field(default_factory=list)

    def open(self, to: str = "", *, token: str) -> None:
        """Opens the address that `stretto serve` prints, then a route of the page."""
        self.page.goto(f"{self.url}/#token={token}")
        expect(self.page.get_by_role("navigation", name="views")).to_be_visible()
        expect(self.page.locator(".connection-live")).to_be_visible()
        if to:
            self.go(to)

    def go(self, to: str) -> None:
        self.page.evaluate("to => { location.hash = to }", to)

    def row(self, name: str) -> Locator:
        return self.page.locator("tr[data-job]").filter(has=self.page.get_by_role("link", name=name, exact=True))

    def screenshot(self, name: str) -> None:
        """Saves a picture in artifacts/ for people to look at."""
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)

    def until(self, condition: Callable[[], object], *, what: str) -> None:
        """Like `wait_until`, but keeps handling the browser's messages."""
        wait_until(condition, what=what, sleep=lambda: self.page.wait_for_timeout(50))


@contextmanager
def open_window(browser: Browser, url: str, *, size: tuple[int, int] = DESK, scheme: str = "light") -> Iterator[Window]:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(GUARD_S * 1000)
    window = Window(context, page, url)

    def record(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            window.console_errors.append(message.text)

    page.on("console", record)
    page.on("pageerror", lambda error: window.console_errors.append(f"uncaught: {error}"))
    try:
        yield window
    finally:
        context.close()


def wait_until(condition: Callable[[], object], *, what: str, sleep: Callable[[], None] = lambda: time.sleep(0.05)) -> None:
    end = time.monotonic() + GUARD_S
    while time.monotonic() < end:
        if condition():
            return
        sleep()
    raise AssertionError(f"{what}: not within {GUARD_S:g} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Served:
    """`stretto serve` as a user starts it. It can be killed and started again on the same home and port."""

    home: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    token: str = ""
    process: subprocess.Popen[str] | None = None
    errors: IO[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Served:
        self.home.mkdir(parents=True, exist_ok=True)
        self.errors = (self.home / "server.err").open("a")
        command = [sys.executable, "-m", "stretto.cli.main", "serve", "--home", str(self.home), "--port", str(self.port)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(
            [*command, *self.options],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
            cwd=self.home,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        printed = re.search(r"#token=(\S+)", line)
        assert printed, f"the server did not start: {line!r} {(self.home / 'server.err').read_text()[-2000:]}"
        self.token = printed[1]
        wait_until(self._ready, what="the server is ready")
        return self

    def _ready(self) -> bool:
        try:
            with self.client() as client:
                return client.overview().ready
        except ServerError:
            return False

    def client(self) -> Client:
        return Client(self.url, token=self.token)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Kills the server and what is left of its jobs: a failed test must not leave processes."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if self.errors is not None:
            self.errors.close()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self.home).encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)


@contextmanager
def serving(home: Path, *options: str) -> Iterator[Served]:
    served = Served(home, options)
    try:
        yield served.start()
    finally:
        served.end()
