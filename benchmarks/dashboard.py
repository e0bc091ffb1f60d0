"""The page in a real Chromium: how soon its first view can be used, and whether it stutters while a long curve is live.

A real server and a job (a simulated agent that speaks the real protocol) whose curves have 10,000 points and go on
growing. Long tasks are what the browser itself calls so: its main thread was busy for more than 50 ms at a stretch.
Beside it stands a page of plain text in a window of its own, watched at the same time: its worst frame is the machine's
noise, not the page's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from benchmarks.report import ROOT, Row, at_most, inform, publish

sys.path.insert(0, str(ROOT / "tests" / "page"))
sys.path.insert(0, str(ROOT / "tests" / "server"))

from page_harness import DESK, PHONE, launch, until
from server_harness import Running, running

POINTS = 10_000
"""Of the live curve. The server gives a page at most some thousands at once; the rest grows while the page is open."""
LOADED = 5_000
STEP_S = 0.004
VIEW_S, LONG_MS = 1.0, 100.0
WATCH = """
window.tasks = []; window.frames_ms = [];
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.tasks.push(one.duration); })
  .observe({ type: "longtask", buffered: true });
let before = performance.now();
(function frame() { requestAnimationFrame((now) => { window.frames_ms.push(now - before); before = now; frame(); }); })();
"""
CLEAR = "() => { window.tasks.length = 0; window.frames_ms.length = 0; }"
READY_MS = "() => performance.getEntriesByName('stretto-ready')[0]?.startTime ?? null"


def watched(browser: Browser, size: tuple[int, int] = DESK) -> tuple[BrowserContext, Page]:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    page.add_init_script(WATCH)
    return context, page


def first_view(browser: Browser, server: Running, to: str) -> tuple[float, float]:
    """Seconds from the navigation until the view is on the screen with its data; the longest task until then in ms."""
    context, page = watched(browser)
    page.goto(f"{server.url}/icon.svg")
    page.evaluate("([key, token]) => sessionStorage.setItem(key, token)", ["stretto-token", server.token])
    page.goto(f"{server.url}/{to}")
    until(lambda: page.evaluate(READY_MS) is not None, what=f"the view {to or 'cluster'}", sleep=lambda: page.wait_for_timeout(20))
    ready, tasks = page.evaluate(READY_MS) / 1000, page.evaluate("() => window.tasks")
    context.close()
    return ready, max(tasks, default=0.0)


def live(browser: Browser, server: Running, job: str, *, seconds: float, size: tuple[int, int]) -> dict[str, float]:
    """The job's view for so long, with an idle page beside it."""
    context, page = watched(browser, size)
    idle_context, idle = watched(browser, size)
    idle.goto(f"{server.url}/licences.txt")
    page.goto(f"{server.url}/#token={server.token}")
    page.wait_for_selector(".link-live")
    page.evaluate("to => { location.hash = to }", f"/jobs/{job}")
    chart = page.locator("figure").first
    until(lambda: int(chart.get_attribute("data-points") or 0) >= POINTS, what=f"a curve of {POINTS} points",
          sleep=lambda: page.wait_for_timeout(50))
    page.wait_for_timeout(1000)
    before = int(chart.get_attribute("data-points") or 0)
    for one in (page, idle):
        one.evaluate(CLEAR)
    box = chart.bounding_box()
    assert box is not None
    for turn in range(max(1, int(seconds * 2))):
        page.mouse.move(box["x"] + 60 + (turn * 37) % (box["width"] - 90), box["y"] + 90)
        page.wait_for_timeout(500)
    tasks, frames = page.evaluate("() => [window.tasks, window.frames_ms]")
    still = idle.evaluate("() => [window.tasks, window.frames_ms]")
    found = {
        "points": int(chart.get_attribute("data-points") or 0), "grown": int(chart.get_attribute("data-points") or 0) - before,
        "longest_ms": max(tasks, default=0.0), "tasks": len(tasks), "frame_p99_ms": p99(frames), "frame_most_ms": max(frames),
        "idle_longest_ms": max(still[0], default=0.0), "idle_frame_most_ms": max(still[1], default=0.0),
        "heap_mb": page.evaluate("() => (performance.memory?.usedJSHeapSize ?? 0) / 1e6"),
    }  # fmt: skip
    context.close()
    idle_context.close()
    return found


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def measure(server: Running, *, rounds: int, seconds: float) -> list[Row]:
    with server.client() as client:
        run = ["python", "train.py", "--steps", "100000000", "--step-s", str(STEP_S), "--report-every", "5"]
        job = client.submit({"name": "long", "run": run, "elastic": {"min": 1, "max": 1}}).id
        until(lambda: client.job(job).progress.step >= LOADED, what=f"{LOADED} points")
        with sync_playwright() as playwright:
            browser = launch(playwright)
            first_view(browser, server, "")  # The first of all starts the browser's own caches.
            views = {name: [first_view(browser, server, to) for _ in range(rounds)]
                     for name, to in {"cluster": "", "jobs": "#/jobs", f"job, {LOADED:,} points": f"#/jobs/{job}"}.items()}
            watches = {name: live(browser, server, job, seconds=seconds, size=size)
                       for name, size in {"laptop": DESK, "phone": PHONE}.items()}
            version = browser.version
            browser.close()
        client.cancel(job)
    rows = [at_most(f"first view: {name}, median s", statistics.median(one[0] for one in found), VIEW_S, bar="< 1 s",
                    peers={"worst": max(one[0] for one in found), "longest task ms": max(one[1] for one in found)})
            for name, found in views.items()]
    for name, one in watches.items():
        peers = {key: one[key] for key in ("points", "grown", "tasks", "frame_p99_ms", "frame_most_ms", "idle_longest_ms",
                                           "idle_frame_most_ms")}
        rows.append(at_most(f"live, {name}: longest task, ms", one["longest_ms"], LONG_MS, bar="≤ 100 ms", peers=peers))
        rows.append(inform(f"live, {name}: memory of scripts, MB", one["heap_mb"]))
    return [*rows, inform("Chromium", float(version.split(".")[0]))]


def main() -> None:
    options = argparse.ArgumentParser(description="The page: first view and live curves.")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=20.0)
    args = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-page-") as folder:
        with running(Path(folder) / "home", slots=2) as server:
            rows = measure(server, rounds=args.rounds, seconds=args.seconds)
    publish("dashboard", rows, notes=[
        f"the curves grow by at most {1 / STEP_S:.0f} points a second while they are watched",
        "frames and tasks are wall-clock times: a busy machine lengthens them, and the idle page shows by how much",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
