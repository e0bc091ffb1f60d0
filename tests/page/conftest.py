"""Chromium once for all tests of the page; skipped where it is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from page_harness import ARTIFACTS, Window, chromium_path, launch, window
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
        found = launch(playwright)
        yield found
        found.close()


@pytest.fixture
def windows(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Window]]:
    """`windows(url, size=PHONE, scheme="dark")` opens one; it is photographed at the end, and has complained about nothing."""
    opened: list[Window] = []
    with ExitStack() as stack:

        def open_one(url: str, **options: object) -> Window:
            opened.append(stack.enter_context(window(browser, url, **options)))  # type: ignore[arg-type]
            return opened[-1]

        yield open_one
        ARTIFACTS.mkdir(exist_ok=True)
        for number, one in enumerate(opened):
            one.shot(f"{request.node.name}-{number}")
            assert one.complaints == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("home"), slots=4) as found:
        yield found


@pytest.fixture
def server(shared: Running) -> Iterator[Running]:
    """The real server with 4 slots; its jobs are simulated agents that speak the real protocol. Free again after each test."""
    yield shared
    with shared.client() as client:
        for job in client.jobs():
            if not job.state.ended:
                client.cancel(job.id)


@pytest.fixture
def empty_server(tmp_path: Path) -> Iterator[Running]:
    """The same without any job."""
    with running(tmp_path / "home", slots=4) as found:
        yield found
