"""What the views show, on a desktop and a phone, in light and dark, and that the keyboard reaches everything."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from page_harness import DESK, PHONE, Window, wait_until
from playwright.sync_api import Route, expect
from server_harness import Running

from stretto.server.client import Client
from stretto.server.jobs.command import NEVER_JOINED
from stretto.server.models import JobDetails

Windows = Callable[..., Window]
VIEWS = {"cluster": "/", "jobs": "/jobs", "submit": "/submit", "policies": "/policies"}


def submit(server: Running, name: str, *arguments: str, least: int = 1, most: int = 2, **more: object) -> JobDetails:
    with server.client() as client:
        run = ["python", "train.py", *arguments]
        return client.submit({"name": name, "run": run, "elastic": {"min": least, "max": most}, **more})


def test_an_empty_server_says_how_to_submit_a_job(empty_server: Running, windows: Windows) -> None:
    window = windows(empty_server.url)
    window.open(token=empty_server.token)
    expect(window.page.get_by_text("No job ran in this time")).to_be_visible()
    expect(window.page.get_by_text("The queue is empty")).to_be_visible()
    window.go("/jobs")
    expect(window.page.get_by_text("No jobs yet")).to_be_visible()
    expect(window.page.get_by_text("stretto submit --workers 1:4")).to_be_visible()
    window.go("/jobs/j-aaaaaaaaaaaa")
    expect(window.page.get_by_text("Job not found")).to_be_visible()
    window.go("/elsewhere")
    expect(window.page.get_by_text("Page not found")).to_be_visible()
    assert [error for error in window.console_errors if "404" not in error] == []
    window.console_errors.clear()


def test_a_job_appears_and_progresses_without_a_reload(server: Running, windows: Windows) -> None:
    window = windows(server.url)
    window.open("/jobs", token=server.token)
    window.page.evaluate("() => { window.untouched = true }")
    job = submit(server, "arrives", "--steps", "400", "--step-s", "0.02", steps=400)
    row = window.row("arrives")
    expect(row).to_be_visible()
    expect(row.locator(".state")).to_have_text("running")
    expect(row.locator(".sparkline polyline")).to_be_visible()
    expect(row.get_by_role("progressbar")).to_have_attribute("aria-valuenow", re.compile(r"[1-9]\d*"))
    expect(row.locator(".state")).to_have_text("finished")
    expect(row.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "100")
    assert window.page.evaluate("() => window.untouched") is True
    with server.client() as client:
        client.remove(job.id)
    expect(row).to_have_count(0)


def test_the_timeline_has_a_block_for_every_slot_in_use(empty_server: Running, windows: Windows) -> None:
    first = submit(empty_server, "three", "--steps", "100000", least=3, most=3)
    window = windows(empty_server.url)
    window.open(token=empty_server.token)
    picture = window.page.locator(".timeline canvas")
    expect(picture).to_have_attribute("aria-label", re.compile("three 3 slots"))
    expect(picture).to_have_attribute("data-blocks", "3")
    second = submit(empty_server, "single", "--steps", "100000", most=1)
    expect(picture).to_have_attribute("aria-label", re.compile("single 1 slot"))
    expect(picture).to_have_attribute("data-blocks", "4")
    expect(window.page.get_by_role("list", name="jobs in the timeline").get_by_role("link")).to_have_count(2)
    window.page.get_by_role("button", name="2 h", exact=True).click()
    expect(window.page.get_by_role("button", name="2 h", exact=True)).to_have_attribute("aria-pressed", "true")
    with empty_server.client() as client:
        client.cancel(first.id)
        client.cancel(second.id)
    expect(picture).to_have_attribute("aria-label", re.compile("all slots are free"))


def test_a_job_shows_metrics_events_logs_and_its_explanation(server: Running, windows: Windows) -> None:
    job = submit(server, "curvy", "--steps", "100000", "--step-s", "0.05", "--report-every", "5", "--chatter", "30")
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    for title in ("Loss", "Throughput", "Noise scale and batch size"):
        chart = window.page.locator("figure").filter(has=window.page.get_by_role("heading", name=title, exact=True))
        expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))
        expect(chart.locator("canvas")).to_be_visible()
        expect(chart.locator(".is-empty")).to_have_count(0)
    before = int(chart.get_attribute("data-points") or 0)
    wait_until(lambda: int(chart.get_attribute("data-points") or 0) > before, what="the curve grows")
    expect(window.page.get_by_test_id("explanation")).to_contain_text("'curvy' has")
    expect(window.page.get_by_role("list", name="events, newest first")).to_contain_text("submitted as 'curvy'")
    expect(window.page.get_by_label("console log")).to_contain_text("xxxxxxxxxx")
    window.page.get_by_role("button", name="by time").click()
    window.page.get_by_label("log-scale loss").check()
    expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))


def test_buttons_scale_pause_resume_and_cancel(server: Running, windows: Windows) -> None:
    job = submit(server, "handled", "--steps", "100000", "--step-s", "0.05", most=3)
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    state = window.page.locator(".job-title .state")
    expect(state).to_have_text("running")
    window.page.get_by_label("workers", exact=True).fill("1")
    window.page.get_by_label("pin").check()
    window.page.get_by_role("button", name="Scale", exact=True).click()
    expect(window.page.get_by_text("Pinned to 1 worker.")).to_be_visible()
    expect(window.page.locator(".facts .workers b")).to_have_text("1")
    expect(window.page.get_by_test_id("explanation")).to_contain_text("pinned")
    window.page.get_by_role("button", name="Pause").click()
    expect(state).to_have_text("paused")
    window.page.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("running")
    window.page.get_by_role("button", name="Cancel", exact=True).click()
    window.page.keyboard.press("Escape")
    expect(window.page.get_by_role("dialog")).to_have_count(0)
    expect(state).to_have_text("running")
    window.page.get_by_role("button", name="Cancel", exact=True).click()
    window.page.get_by_role("button", name="Cancel the job").click()
    expect(state).to_have_text("cancelled")
    window.page.get_by_role("button", name="Remove").click()
    window.page.get_by_role("button", name="Remove the job").click()
    expect(window.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    expect(window.row("handled")).to_have_count(0)


RECORD_REQUESTS = """() => {
    const { fetch } = window
    window.recorded = []
    window.fetch = (url, options = {}) => {
        const name = `${options.method ?? 'GET'} ${String(url).split('/').pop()}`
        window.recorded.push(name)
        options.signal?.addEventListener('abort', () => window.recorded.push(`aborted: ${name}`))
        return fetch(url, options)
    }
}"""
"""Records the page's requests and which of them it aborts, in order."""


def test_requests_about_a_job_are_aborted_before_it_is_removed(server: Running, windows: Windows) -> None:
    """An answer that comes later would be a 404, which the browser logs as an error."""
    job = submit(server, "removed-soon", "--steps", "100000", "--step-s", "0.05")
    window = windows(server.url)
    window.page.add_init_script(f"({RECORD_REQUESTS})()")
    window.open(f"/jobs/{job.id}", token=server.token)
    state = window.page.locator(".job-title .state")
    expect(state).to_have_text("running")
    window.page.route("**/explanation", lambda _: None)  # is never answered
    with server.client() as client:
        client.cancel(job.id)
    expect(state).to_have_text("cancelled")
    pending = "() => window.recorded.lastIndexOf('GET explanation') > window.recorded.lastIndexOf('aborted: GET explanation')"
    window.until(lambda: window.page.evaluate(pending), what="a pending request for its explanation")
    window.page.get_by_role("button", name="Remove").click()
    window.page.get_by_role("button", name="Remove the job").click()
    expect(window.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    recorded = window.page.evaluate("() => window.recorded")
    requested_at = max(index for index, name in enumerate(recorded) if name == "GET explanation")
    assert requested_at < recorded.index("aborted: GET explanation", requested_at) < recorded.index(f"DELETE {job.id}")


def test_typed_input_survives_updates_of_the_job(server: Running, windows: Windows) -> None:
    job = submit(server, "typed", "--steps", "100000", "--step-s", "0.05", most=3)
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    expect(window.page.locator(".job-title .state")).to_have_text("running")
    field = window.page.get_by_label("workers", exact=True)
    field.fill("1")
    step = window.page.locator(".fact").filter(has=window.page.get_by_text("step", exact=True)).locator("dd")
    before = step.inner_text()
    window.until(lambda: step.inner_text() != before, what="news of the job")
    with server.client() as client:
        client.change(job.id, priority=7)
    expect(window.page.locator(".fact").filter(has_text="priority").locator("dd")).to_have_text("7")
    expect(field).to_have_value("1")
    field.fill("99")
    window.page.keyboard.press("Tab")
    expect(field).to_have_value("3")


def test_a_click_applies_to_a_newer_version_but_not_over_somebody_elses_change(server: Running, windows: Windows) -> None:
    """A job's version grows with each of its events: the page is always a little behind."""
    job = submit(server, "moving", "--steps", "100000", "--step-s", "0.05", most=3)
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    expect(window.page.locator(".job-title .state")).to_have_text("running")
    meanwhile: list[Callable[[Client], object]] = [lambda client: client.change(job.id, priority=3)]

    def late(route: Route) -> None:
        with server.client() as client:
            if meanwhile:
                meanwhile.pop()(client)
        route.continue_()

    window.page.route("**/scale", late)
    window.page.get_by_label("workers", exact=True).fill("1")
    window.page.get_by_role("button", name="Scale", exact=True).click()
    expect(window.page.get_by_role("status").filter(has_text="Requested 1 worker")).to_be_visible()
    meanwhile.append(lambda client: client.scale(job.id, 3))
    window.page.get_by_label("workers", exact=True).fill("2")
    window.page.get_by_role("button", name="Scale", exact=True).click()
    expect(window.page.get_by_text("Somebody else changed the job")).to_be_visible()
    with server.client() as client:
        assert client.job(job.id).wish == 3
    assert all("412" in error for error in window.console_errors)
    window.console_errors.clear()


def test_submit_errors_are_shown_at_their_fields(server: Running, windows: Windows) -> None:
    window = windows(server.url)
    window.open("/submit", token=server.token)
    form = window.page.locator("form.submit")
    form.get_by_label("Name", exact=True).fill("Not A Name")
    form.get_by_label("Command").fill("python 'train.py")
    form.get_by_role("button", name="Submit").click()
    expect(form.locator(".field", has=window.page.get_by_label("Name", exact=True)).locator(".error")).to_contain_text(
        "lowercase letters"
    )
    expect(form.locator(".field", has=window.page.get_by_label("Command")).locator(".error")).to_contain_text("is not closed")
    form.get_by_label("Name", exact=True).fill("corrected")
    form.get_by_label("Command").fill("python train.py --steps 5 '--x=a b'")
    form.get_by_label("Priority").fill("1000")
    form.get_by_role("button", name="Submit").click()
    expect(form.locator(".field", has=window.page.get_by_label("Priority")).locator(".error")).to_contain_text("100")
    form.get_by_label("Priority").fill("0")
    form.get_by_label("Command").fill("torchrun job.py")
    form.get_by_role("button", name="Submit").click()
    wrong = form.locator(".field", has=window.page.get_by_label("Command")).locator(".error")
    expect(wrong).to_contain_text("stretto takes the place of torchrun")
    assert all("422" in error for error in window.console_errors)
    window.console_errors.clear()
    with server.client() as client:
        assert list(client.jobs(name="corrected")) == []
    form.get_by_label("Command").fill("sleep 1")
    form.get_by_role("button", name="Submit").click()
    expect(window.page.get_by_test_id("explanation")).to_contain_text("`sleep 1` is not a stretto script".replace("`", ""))
    window.go("/jobs")
    expect(window.row("corrected").locator(".reason")).to_have_text(NEVER_JOINED)


def test_a_replay_compares_two_policies(server: Running, windows: Windows) -> None:
    done = [submit(server, f"past-{number}", "--steps", "40", "--step-s", "0.02", steps=40) for number in range(3)]
    with server.client() as client:
        wait_until(lambda: all(client.job(job.id).state.ended for job in done), what="the jobs have ended")
    window = windows(server.url)
    window.open("/policies", token=server.token)
    expect(window.page.locator(".policies .is-active")).to_contain_text("fifo")
    window.page.get_by_role("combobox", name="policy").select_option("tiresias")
    window.page.get_by_role("button", name="Replay").click()
    result = window.page.get_by_test_id("what-if")
    expect(result).to_contain_text("average completion")
    expect(result.get_by_role("columnheader")).to_contain_text([re.compile("job"), "fifo", "tiresias"])


def test_a_failed_job_says_why(server: Running, windows: Windows) -> None:
    job = submit(server, "broken", "--steps", "50", "--step-s", "0.01", "--fail-at", "5")
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    expect(window.page.locator(".job-title .state")).to_have_text("failed")
    expect(window.page.get_by_role("main").get_by_role("alert")).to_contain_text("as it was told to")


def test_markup_in_names_and_logs_stays_text(server: Running, windows: Windows) -> None:
    """The page builds no HTML from texts, and the content security policy would not run it."""
    bait = "<img src=x onerror=alert(1)>"
    with server.client() as client:
        job = client.submit({"name": "bait", "run": ["python", "train.py", "--steps", "1"], "envs": {"BAIT": bait}})
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    window.page.get_by_text("Job specification").click()
    expect(window.page.get_by_text(bait)).to_be_visible()
    assert window.page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_view_fits_its_screen(server: Running, windows: Windows, size: tuple[int, int], scheme: str) -> None:
    job = submit(server, f"fits-{scheme}-{size[0]}", "--steps", "100000", "--step-s", "0.05", "--report-every", "5")
    window = windows(server.url, size=size, scheme=scheme)
    window.open(token=server.token)
    for name, to in {**VIEWS, "job": f"/jobs/{job.id}"}.items():
        window.go(to)
        expect(window.page.get_by_role("heading").first).to_be_visible()
        if name == "job":
            expect(window.page.locator("figure").first).to_have_attribute("data-points", re.compile(r"\d{2,}"))
        assert window.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, name
        window.screenshot(f"page-{name}-{scheme}-{size[0]}")
    dark = window.page.evaluate(
        "() => getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)[0] < 128"
    )
    assert dark == (scheme == "dark")


def test_the_keyboard_reaches_everything_with_a_visible_focus(server: Running, windows: Windows) -> None:
    job = submit(server, "keys", "--steps", "100000", "--step-s", "0.05", most=2)
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    expect(window.page.get_by_role("button", name="Pause")).to_be_enabled()
    window.page.locator("body").click(position={"x": 2, "y": 2})
    reached: set[str] = set()
    for _ in range(60):
        window.page.keyboard.press("Tab")
        name, outline = window.page.evaluate(
            """() => { const at = document.activeElement; const style = getComputedStyle(at);
                return [at.getAttribute('aria-label') ?? at.textContent.trim(), style.outlineStyle + style.outlineWidth] }"""
        )
        if name and window.page.evaluate("() => document.activeElement !== document.body"):
            assert outline == "solid2px", f"the focus on {name!r} is not seen"
            reached.add(name.split(":")[0])
    wanted = {
        "Skip to content",
        "Cluster",
        "Jobs",
        "Policies",
        "Submit a job",
        "one worker more",
        "Scale",
        "Pause",
        "Cancel",
        "by time",
        "Loss",
        "Workers and pauses",
        "console log",
        "Job specification",
    }
    assert {name.replace("\u00a0", " ") for name in reached} >= wanted - {"one worker more"}


RECORD_TEXTS = """() => {
    const { fillText, clearRect } = CanvasRenderingContext2D.prototype
    const recorded = window.recorded = new Map()
    Object.assign(CanvasRenderingContext2D.prototype, {
        fillText(text, ...place) {
            const title = this.canvas.closest('figure')?.querySelector('h3')?.textContent
            recorded.set(title, [...(recorded.get(title) ?? []), text])
            return fillText.call(this, text, ...place)
        },
        clearRect(...place) {
            recorded.delete(this.canvas.closest('figure')?.querySelector('h3')?.textContent)
            return clearRect.apply(this, place)
        },
    })
}"""
"""Records the texts that are drawn into each chart since it was cleared."""


def test_the_ticks_of_an_axis_are_evenly_labelled(server: Running, windows: Windows) -> None:
    job = submit(server, "marked", "--steps", "43", "--step-s", "0.01", most=1)  # from 2.5 to about 2.4: a mark every 0.025
    with server.client() as client:
        wait_until(lambda: client.job(job.id).state.ended, what="the job has ended")
    window = windows(server.url)
    window.page.add_init_script(f"({RECORD_TEXTS})()")
    window.open(f"/jobs/{job.id}", token=server.token)
    texts = "() => (window.recorded.get('Loss') ?? []).filter(text => text.startsWith('2.'))"
    window.until(lambda: len(window.page.evaluate(texts)) > 2, what="the loss is drawn")
    marks = sorted(float(text) for text in window.page.evaluate(texts))
    assert {round(after - before, 6) for before, after in pairwise(marks)} == {0.025}
    counts = "() => (window.recorded.get('Workers and pauses') ?? []).filter(text => /^[0-9.]+$/.test(text))"
    window.until(
        lambda: window.page.evaluate(counts), what="the workers are drawn"
    )  # One chart per frame: not together with the loss.
    assert set(window.page.evaluate(counts)) == {"0", "1"}, "there is no half a worker"


def test_arrow_keys_read_the_points_of_a_chart(server: Running, windows: Windows) -> None:
    job = submit(server, "read", "--steps", "60", "--step-s", "0.01", most=1)
    with server.client() as client:
        wait_until(lambda: client.job(job.id).state.ended, what="the job has ended")
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    chart = window.page.get_by_role("img", name=re.compile("^Loss:"))
    expect(chart).to_have_attribute("aria-label", re.compile(r"loss 2\.\d+"))
    chart.focus()
    window.page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-label", re.compile(r"loss 2\.5\b.* at step 0\."))
    window.page.keyboard.press("ArrowRight")
    with server.client() as client:  # Not every step is a point when steps are this short.
        second = client.metrics(job.id, names=["loss"]).step[1]
    expect(chart).to_have_attribute("aria-label", re.compile(rf"at step {second}\."))


DRAW_AT_ONCE = """() => new MutationObserver(changes => {
    if (!changes.some(change => change.target.matches?.('.chart-values') && change.addedNodes.length)) return
    window.drawn = (window.drawn ?? 0) + 1
    for (const box of document.querySelectorAll('.chart-box')) box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))
}).observe(document.body, { childList: true, subtree: true })"""
"""Draws all charts as soon as a chart gets another line, before the browser does anything else."""


def test_a_chart_that_gets_another_line_can_be_drawn_at_any_moment(server: Running, windows: Windows) -> None:
    blocker = submit(server, "in-the-way", "--steps", "100000", "--step-s", "0.05", least=4, most=4)
    with server.client() as client:
        wait_until(lambda: client.job(blocker.id).state == "running", what="all slots are taken")
    job = submit(server, "widening", "--steps", "100000", "--step-s", "0.05", "--report-every", "5")
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=server.token)
    chart = window.page.locator("figure").filter(
        has=window.page.get_by_role("heading", name="Noise scale and batch size", exact=True)
    )
    expect(chart.locator(".chart-value")).to_have_count(1)
    window.page.evaluate(DRAW_AT_ONCE)
    with server.client() as client:
        client.cancel(blocker.id)
    expect(chart.locator(".chart-value")).to_have_count(2)
    expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))
    assert window.page.evaluate("() => window.drawn") > 0
    assert window.console_errors == []
