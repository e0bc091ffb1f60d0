"""Fixtures of the dashboard's tests: one Chromium for all of them, windows, servers. Skips where Chromium is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from page_harness import ARTIFACTS, Window, chromium_path, launch, open_window
from playwright.sync_api import Browser, sync_playwright
from server_harness import Running, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("page")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium_path() is None:
        pytest.skip("chromium is not installed (Debian: chromium): make test-deps")
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture
def windows(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Window]]:
    """`windows(url, size=PHONE, scheme="dark")` opens a window. At the end, its console must be clean."""
    opened: list[Window] = []
    with ExitStack() as stack:

        def open_in_test(url: str, **options: object) -> Window:
            opened.append(stack.enter_context(open_window(browser, url, **options)))  # type: ignore[arg-type]
            return opened[-1]

        yield open_in_test
        ARTIFACTS.mkdir(exist_ok=True)
        for number, window in enumerate(opened):
            window.screenshot(f"{request.node.name}-{number}")
            assert window.console_errors == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("home"), slots=4) as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Iterator[Running]:
    """The real server with 4 slots. Its jobs are simulated agents that speak the real protocol; they are cancelled after a test."""
    yield shared
    with shared.client() as client:
        for job in client.jobs():
            if not job.state.ended:
                client.cancel(job.id)


@pytest.fixture
def empty_server(tmp_path: Path) -> Iterator[Running]:
    """A server without any job."""
    with running(tmp_path / "home", slots=4) as server:
        yield server
