"""The live connection: lost, seen to be lost, regained without a gap."""

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
def mortal(tmp_path: Path) -> Iterator[Running]:
    """A server on a port of its own, to be killed and started again."""
    with running(tmp_path / "home", slots=4, port=free_port()) as found:
        yield found


def endless(server: Running, name: str) -> str:
    with server.client() as client:
        run = ["python", "train.py", "--steps", "1000000", "--step-s", "0.05"]
        return client.submit({"name": name, "run": run, "elastic": {"min": 1, "max": 2}}).id


def test_a_lost_server_is_said_and_a_regained_one_too(mortal: Running, windows: Windows) -> None:
    job = endless(mortal, "lasting")
    one = windows(mortal.url)
    one.open(f"/jobs/{job}", token=mortal.token)
    chart = one.page.locator("figure").first
    expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))
    one.page.evaluate("() => { window.untouched = true }")
    mortal.kill()
    lost = one.page.get_by_test_id("lost")
    expect(lost).to_contain_text("Connection lost, retrying.")
    expect(one.page.locator(".link-lost")).to_be_visible()
    one.shot("page-connection-lost")
    seen = int(chart.get_attribute("data-points") or 0)
    mortal.start()
    expect(one.page.get_by_test_id("back")).to_contain_text("Connected again")
    expect(lost).to_have_count(0)
    expect(one.page.locator(".link-live")).to_be_visible()
    one.until(lambda: int(chart.get_attribute("data-points") or 0) > seen, what="the curve goes on")
    expect(one.page.get_by_role("list", name="events, newest first")).to_contain_text("adopted")
    assert one.page.evaluate("() => window.untouched") is True
    refused = [complaint for complaint in one.complaints if "ERR_" not in complaint and "Failed to load" not in complaint]
    assert refused == []
    one.complaints.clear()


def test_events_are_resumed_after_the_last_one_that_was_seen(server: Running, windows: Windows) -> None:
    """The second stream says where the first one stopped, and nothing is shown twice."""
    one = windows(server.url)
    asked: list[str | None] = []

    def note(route: Route) -> None:
        asked.append(route.request.headers.get("last-event-id"))
        route.continue_()

    one.page.route("**/v1/stream*", note)
    one.open(token=server.token)
    job = endless(server, "resumed")
    shown = one.page.get_by_role("list", name="events, newest first")
    expect(shown).to_contain_text("trains on")
    one.go(f"/jobs/{job}")
    one.until(lambda: len(asked) >= 2, what="another stream is asked for")
    assert asked[0] is None
    assert asked[1] is not None
    with server.client() as client:
        events = client.events(job).items
    assert int(asked[1]) >= max(event.id for event in events if event.kind == "ready")
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


def test_a_stream_that_is_cut_anywhere_gives_the_same_page(server: Running, choppy: str, windows: Windows) -> None:
    one = windows(choppy)
    one.open("/jobs", token=server.token)
    endless(server, "chopped")
    row = one.row("chopped")
    expect(row.locator(".state")).to_have_text("running")
    expect(row.locator(".loss span")).to_have_text(re.compile(r"2\.\d+"))
    one.go("/")
    expect(one.page.get_by_role("list", name="jobs in the picture")).to_contain_text("chopped")


def test_a_server_that_is_silent_counts_as_lost(server: Running, windows: Windows) -> None:
    """Not even a comment for 25 s: here the page's clock is turned, so that nobody waits."""
    one = windows(server.url)
    one.page.clock.install(time=time.time())
    one.open(token=server.token)
    one.page.route("**/v1/stream*", lambda route: route.abort())
    one.page.clock.fast_forward(24_000)
    expect(one.page.get_by_test_id("lost")).to_have_count(0)
    one.page.clock.fast_forward(2_000)
    expect(one.page.get_by_test_id("lost")).to_be_visible()
    one.page.unroute("**/v1/stream*")
    one.page.get_by_role("button", name=re.compile("Retry now")).click()
    expect(one.page.locator(".link-live")).to_be_visible()
    one.complaints.clear()
