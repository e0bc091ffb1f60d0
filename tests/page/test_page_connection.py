"""The live connection: a loss is shown, and the stream resumes without a gap."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_harness import Window, free_port
from playwright.sync_api import Route, expect
from server_harness import Running, running

Windows = Callable[..., Window]


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Running]:
    """A server on its own port, which tests kill and start again."""
    with running(tmp_path / "home", slots=4, port=free_port()) as server:
        yield server


def endless(server: Running, name: str) -> str:
    with server.client() as client:
        run = ["python", "train.py", "--steps", "1000000", "--step-s", "0.05"]
        return client.submit({"name": name, "run": run, "elastic": {"min": 1, "max": 2}}).id


def test_the_page_reports_a_lost_connection_and_its_return(restartable: Running, windows: Windows) -> None:
    job = endless(restartable, "lasting")
    window = windows(restartable.url)
    window.open(f"/jobs/{job}", token=restartable.token)
    chart = window.page.locator("figure").first
    expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))
    window.page.evaluate("() => { window.untouched = true }")
    restartable.kill()
    lost = window.page.get_by_test_id("lost")
    expect(lost).to_contain_text("Connection lost, retrying.")
    expect(window.page.locator(".connection-lost")).to_be_visible()
    window.screenshot("page-connection-lost")
    seen = int(chart.get_attribute("data-points") or 0)
    restartable.start()
    expect(window.page.get_by_test_id("reconnected")).to_contain_text("Connected again")
    expect(lost).to_have_count(0)
    expect(window.page.locator(".connection-live")).to_be_visible()
    window.until(lambda: int(chart.get_attribute("data-points") or 0) > seen, what="the curve goes on")
    expect(window.page.get_by_role("list", name="events, newest first")).to_contain_text("adopted")
    assert window.page.evaluate("() => window.untouched") is True
    refused = [error for error in window.console_errors if "ERR_" not in error and "Failed to load" not in error]
    assert refused == []
    window.console_errors.clear()


def test_the_stream_resumes_after_the_last_event_seen(server: Running, windows: Windows) -> None:
    """The second stream starts where the first one stopped, and nothing is shown twice."""
    window = windows(server.url)
    resumed_after: list[str | None] = []

    def record(route: Route) -> None:
        resumed_after.append(route.request.headers.get("last-event-id"))
        route.continue_()

    window.page.route("**/v1/stream*", record)
    window.open(token=server.token)
    job = endless(server, "resumed")
    shown = window.page.get_by_role("list", name="events, newest first")
    expect(shown).to_contain_text("trains on")
    window.go(f"/jobs/{job}")
    window.until(lambda: len(resumed_after) >= 2, what="the second stream")
    assert resumed_after[0] is None
    assert resumed_after[1] is not None
    with server.client() as client:
        events = client.events(job).items
    assert int(resumed_after[1]) >= max(event.id for event in events if event.kind == "ready")
    expect(shown).to_contain_text("submitted as")
    texts = shown.locator("li").all_inner_texts()
    assert len(texts) == len(set(texts))


class Choppy(http.server.BaseHTTPRequestHandler):
    """Passes everything on to the real server, the stream a few bytes at a time: frames and letters are cut anywhere."""

    protocol_version = "HTTP/1.0"
    target = ""

    def do_GET(self) -> None:
        import httpx

        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "connection", "origin")}
        with httpx.stream(
            "GET", self.target + self.path, headers={**headers, "Accept-Encoding": "identity"}, timeout=None, trust_env=False
        ) as answer:
            self.send_response(answer.status_code)
            for key, value in answer.headers.items():
                if key.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(key, value)
            self.end_headers()
            small = "stream" in self.path
            for chunk in answer.iter_raw():
                for at in range(0, len(chunk), 7 if small else len(chunk)):
                    self.wfile.write(chunk[at : at + (7 if small else len(chunk))])
                    self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def choppy(server: Running) -> Iterator[str]:
    Choppy.target = server.url
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Choppy)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{proxy.server_address[1]}"
    proxy.shutdown()
    proxy.server_close()


def test_a_stream_cut_into_small_chunks_gives_the_same_page(server: Running, choppy: str, windows: Windows) -> None:
    window = windows(choppy)
    window.open("/jobs", token=server.token)
    endless(server, "chopped")
    row = window.row("chopped")
    expect(row.locator(".state")).to_have_text("running")
    expect(row.locator(".loss span")).to_have_text(re.compile(r"2\.\d+"))
    window.go("/")
    expect(window.page.get_by_role("list", name="jobs in the timeline")).to_contain_text("chopped")


def test_a_silent_server_counts_as_lost(server: Running, windows: Windows) -> None:
    """Not even a comment for 25 s: here the page's clock is turned, so that nobody waits."""
    window = windows(server.url)
    window.page.clock.install(time=time.time())
    window.open(token=server.token)
    window.page.route("**/v1/stream*", lambda route: route.abort())
    window.page.clock.fast_forward(24_000)
    expect(window.page.get_by_test_id("lost")).to_have_count(0)
    window.page.clock.fast_forward(2_000)
    expect(window.page.get_by_test_id("lost")).to_be_visible()
    window.page.unroute("**/v1/stream*")
    window.page.get_by_role("button", name=re.compile("Retry now")).click()
    expect(window.page.locator(".connection-live")).to_be_visible()
    window.console_errors.clear()
