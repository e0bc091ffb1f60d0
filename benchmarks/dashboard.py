"""The page in a real Chromium: how soon its first view can be used, and whether it stutters while a long curve is live.

A real server and a job (a simulated agent that speaks the real protocol) whose curves have 10,000 points and go on
growing. The server keeps fewer of a long curve, so its answer is filled up to 10,000 on the way to the browser; what is
live comes from the server as it is. Long tasks are what the browser itself calls so: its main thread was busy for more
than 50 ms at a stretch.
Those are wall-clock times and hold on a quiet machine only; beside them stands the CPU time of the same thread, from the
browser's own trace, which a busy machine does not lengthen, and the worst frame of an idle page of plain text that was
watched at the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, Route, sync_playwright

from benchmarks.process import wait_for
from benchmarks.report import ROOT, Row, at_most, inform, publish

sys.path.insert(0, str(ROOT / "tests" / "page"))
sys.path.insert(0, str(ROOT / "tests" / "server"))

from page_harness import DESK, PHONE, launch, wait_until
from server_harness import Running, running

POINTS = 10_000
STEP_S = 0.002
VIEW_S, LONG_MS = 1.0, 100.0
WATCH = """
window.tasks = []; window.frames_ms = [];
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.tasks.push(one.duration); })
  .observe({ type: "longtask", buffered: true });
let before = performance.now();
(function frame() { requestAnimationFrame((now) => {
  window.frames_ms.push(now - before); before = now; frame();
  const drawn = Number(document.querySelector("figure[data-points]")?.dataset.points ?? 0);
  if (drawn >= POINTS) window.drawn_ms ??= now;
}); })();
""".replace("POINTS", str(POINTS))
CLEAR = "() => { window.tasks.length = 0; window.frames_ms.length = 0; }"
READY_MS = "() => performance.getEntriesByName('stretto-ready')[0]?.startTime ?? null"
DRAWN_MS = "() => window.drawn_ms ?? null"


@dataclass(frozen=True, slots=True)
class First:
    """The first view after one navigation."""

    ready_s: float
    """Seconds from the navigation's start until the view shows its data."""
    longest_ms: float
    """Length of the longest task until then."""
    cpu_s: float
    """CPU time of the page's main thread."""
    curve_s: float | None
    """Seconds until a curve of `POINTS` points is drawn too; None for a view without one."""


def watched(browser: Browser, size: tuple[int, int] = DESK) -> tuple[BrowserContext, Page]:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.route("**/metrics?*", fill_up)
    return context, page


def fill_up(route: Route) -> None:
    """The server's curves with points between its points, `POINTS` in all."""
    answer = route.fetch()
    body = json.loads(answer.text())
    old = np.asarray(body["step"])
    steps = np.unique(np.linspace(old[0], old[-1], POINTS).astype(int))
    body["t"] = np.interp(steps, old, body["t"]).tolist()
    body["workers"] = [1] * len(steps)
    for name, column in body["series"].items():
        points = [(step, value) for step, value in zip(old, column, strict=True) if value is not None]
        wave = 1 + 0.05 * np.sin(steps / 3)
        body["series"][name] = (np.interp(steps, *zip(*points, strict=True)) * wave).tolist() if points else [None] * len(steps)
    body["step"] = steps.tolist()
    route.fulfill(response=answer, body=json.dumps(body))


def first_view(browser: Browser, server: Running, to: str, *, curves: bool = False) -> First:
    context, page = watched(browser)
    page.goto(f"{server.url}/icon.svg")
    page.evaluate("([key, token]) => sessionStorage.setItem(key, token)", ["stretto-token", server.token])
    talk = context.new_cdp_session(page)
    talk.send("Performance.enable")
    before = thread_s(talk)
    page.goto(f"{server.url}/{to}")
    waited = DRAWN_MS if curves else READY_MS
    wait_until(
        lambda: page.evaluate(waited) is not None, what=f"the view {to or 'cluster'}", sleep=lambda: page.wait_for_timeout(20)
    )
    ready, tasks = page.evaluate(READY_MS) / 1000, page.evaluate("() => window.tasks")
    spent = thread_s(talk) - before
    drawn = page.evaluate(DRAWN_MS) / 1000 if curves else None
    page.unroute_all(behavior="ignoreErrors")
    context.close()
    return First(ready, max(tasks, default=0.0), spent, drawn)


def thread_s(talk: CDPSession) -> float:
    return next(metric["value"] for metric in talk.send("Performance.getMetrics")["metrics"] if metric["name"] == "ThreadTime")


def live(browser: Browser, server: Running, job: str, *, seconds: float, size: tuple[int, int]) -> dict[str, float]:
    """Watches the job's view for some seconds, with an idle page beside it."""
    context, page = watched(browser, size)
    idle_context, idle = watched(browser, size)
    idle.goto(f"{server.url}/licences.txt")
    page.goto(f"{server.url}/#token={server.token}")
    page.wait_for_selector(".connection-live")
    page.evaluate("to => { location.hash = to }", f"/jobs/{job}")
    chart = page.locator("figure").first
    wait_until(
        lambda: int(chart.get_attribute("data-points") or 0) >= POINTS,
        what=f"a curve of {POINTS} points",
        sleep=lambda: page.wait_for_timeout(50),
    )
    page.wait_for_timeout(1000)
    before = int(chart.get_attribute("data-points") or 0)
    for view in (page, idle):
        view.evaluate(CLEAR)
    browser.start_tracing(page=page, categories=["toplevel"])
    box = chart.bounding_box()
    assert box is not None
    for turn in range(max(1, int(seconds * 2))):
        page.mouse.move(box["x"] + 60 + (turn * 37) % (box["width"] - 90), box["y"] + 90)
        page.wait_for_timeout(500)
    trace = browser.stop_tracing()
    tasks, frames = page.evaluate("() => [window.tasks, window.frames_ms]")
    still = idle.evaluate("() => [window.tasks, window.frames_ms]")
    figures = {
        "points": int(chart.get_attribute("data-points") or 0),
        "grown": int(chart.get_attribute("data-points") or 0) - before,
        "longest_ms": max(tasks, default=0.0),
        "tasks": len(tasks),
        "frame_p99_ms": p99(frames),
        "frame_most_ms": max(frames),
        "idle_longest_ms": max(still[0], default=0.0),
        "idle_frame_most_ms": max(still[1], default=0.0),
        "heap_mb": page.evaluate("() => (performance.memory?.usedJSHeapSize ?? 0) / 1e6"),
        **cpu_of(trace),
    }
    page.unroute_all(behavior="ignoreErrors")
    context.close()
    idle_context.close()
    return figures


def cpu_of(trace: bytes) -> dict[str, float]:
    """The longest task of a page's main thread in CPU time, and all of them together."""
    events = json.loads(trace)["traceEvents"]
    mains = {(event["pid"], event["tid"]) for event in events if event.get("args", {}).get("name") == "CrRendererMain"}
    tasks = [event for event in events if (event["pid"], event["tid"]) in mains and "RunTask" in event["name"]]
    spent = [event["tdur"] / 1000 for event in tasks if "tdur" in event]
    return {"longest_cpu_ms": max(spent, default=0.0), "cpu_s": sum(spent) / 1000}


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def beside(views: list[First]) -> dict[str, float]:
    peers = {
        "worst": max(view.ready_s for view in views),
        "longest task ms": max(view.longest_ms for view in views),
        "cpu s": statistics.median(view.cpu_s for view in views),
    }
    drawn = [view.curve_s for view in views if view.curve_s is not None]
    return {**peers, "with its curves": statistics.median(drawn)} if drawn else peers


def measure(server: Running, *, rounds: int, seconds: float) -> list[Row]:
    with server.client() as client:
        run = ["python", "train.py", "--steps", "100000000", "--step-s", str(STEP_S), "--report-every", "5"]
        job = client.submit({"name": "long", "run": run, "elastic": {"min": 1, "max": 1}}).id
        wait_for(lambda: client.job(job).progress.step > 1.2 * POINTS, what=f"{POINTS} steps", limit_s=900)
        with sync_playwright() as playwright:
            browser = launch(playwright)
            first_view(browser, server, "")  # The first of all starts the browser's own caches.
            views = {
                name: [first_view(browser, server, to, curves="points" in name) for _ in range(rounds)]
                for name, to in {"cluster": "", "jobs": "#/jobs", f"job, {POINTS:,} points": f"#/jobs/{job}"}.items()
            }
            watches = {
                name: live(browser, server, job, seconds=seconds, size=size)
                for name, size in {"laptop": DESK, "phone": PHONE}.items()
            }
            version = browser.version
            browser.close()
        client.cancel(job)
    rows = [
        at_most(
            f"first view: {name}, median s",
            statistics.median(view.ready_s for view in first_views),
            VIEW_S,
            bar="< 1 s",
            peers=beside(first_views),
        )
        for name, first_views in views.items()
    ]
    for name, watch in watches.items():
        peers = {
            key: watch[key]
            for key in (
                "points",
                "grown",
                "tasks",
                "longest_cpu_ms",
                "cpu_s",
                "frame_p99_ms",
                "frame_most_ms",
                "idle_longest_ms",
                "idle_frame_most_ms",
            )
        }
        rows.append(at_most(f"live, {name}: longest task, ms", watch["longest_ms"], LONG_MS, bar="≤ 100 ms", peers=peers))
        rows.append(at_most(f"live, {name}: longest task in CPU time, ms", watch["longest_cpu_ms"], LONG_MS, bar="≤ 100 ms"))
        rows.append(inform(f"live, {name}: memory of scripts, MB", watch["heap_mb"]))
    return [*rows, inform("Chromium", float(version.split(".")[0]))]


def main() -> None:
    options = argparse.ArgumentParser(description="The page: first view and live curves.")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=20.0)
    args = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-page-") as folder:
        with running(Path(folder) / "home", slots=2) as server:
            rows = measure(server, rounds=args.rounds, seconds=args.seconds)
    publish(
        "dashboard",
        rows,
        notes=[
            "'grown' is how many points came from the server while the curves were watched",
            f"the curves' answer is filled up to {POINTS:,} points by the benchmark on its way, which 'with its curves' contains",
            "frames and tasks are wall-clock times: a busy machine lengthens them, and the idle page shows by how much",
        ],
    )


if __name__ == "__main__":
    main()
