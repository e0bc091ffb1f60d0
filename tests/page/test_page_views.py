"""What the views show, how they look on a phone and in the dark, and that a keyboard reaches everything."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from page_harness import DESK, PHONE, Window, until
from playwright.sync_api import Route, expect
from server_harness import Running

from stretto.server.client import Client
from stretto.server.jobs.command import NEVER_JOINED
from stretto.server.models import Job

Windows = Callable[..., Window]
VIEWS = {"cluster": "/", "jobs": "/jobs", "submit": "/submit", "policies": "/policies"}


def submit(server: Running, name: str, *arguments: str, least: int = 1, most: int = 2, **more: object) -> Job:
    with server.client() as client:
        run = ["python", "train.py", *arguments]
        return client.submit({"name": name, "run": run, "elastic": {"min": least, "max": most}, **more})


def test_an_empty_server_says_how_to_begin(empty_server: Running, windows: Windows) -> None:
    one = windows(empty_server.url)
    one.open(token=empty_server.token)
    expect(one.page.get_by_text("All slots were free in this time")).to_be_visible()
    expect(one.page.get_by_text("Nobody waits")).to_be_visible()
    one.go("/jobs")
    expect(one.page.get_by_text("No jobs yet")).to_be_visible()
    expect(one.page.get_by_text("stretto submit --workers 1:4")).to_be_visible()
    one.go("/jobs/j-aaaaaaaaaaaa")
    expect(one.page.get_by_text("There is no such job")).to_be_visible()
    one.go("/elsewhere")
    expect(one.page.get_by_text("There is nothing at this address")).to_be_visible()
    assert [complaint for complaint in one.complaints if "404" not in complaint] == []
    one.complaints.clear()


def test_a_job_appears_and_moves_without_a_reload(server: Running, windows: Windows) -> None:
    one = windows(server.url)
    one.open("/jobs", token=server.token)
    one.page.evaluate("() => { window.untouched = true }")
    job = submit(server, "arrives", "--steps", "400", "--step-s", "0.02", steps=400)
    row = one.row("arrives")
    expect(row).to_be_visible()
    expect(row.locator(".state")).to_have_text("running")
    expect(row.locator(".spark polyline")).to_be_visible()
    expect(row.get_by_role("progressbar")).to_have_attribute("aria-valuenow", re.compile(r"[1-9]\d*"))
    expect(row.locator(".state")).to_have_text("finished")
    expect(row.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "100")
    assert one.page.evaluate("() => window.untouched") is True
    with server.client() as client:
        client.remove(job.id)
    expect(row).to_have_count(0)


def test_the_picture_of_slots_has_a_block_for_every_slot(empty_server: Running, windows: Windows) -> None:
    first = submit(empty_server, "three", "--steps", "100000", least=3, most=3)
    one = windows(empty_server.url)
    one.open(token=empty_server.token)
    picture = one.page.locator(".timeline canvas")
    expect(picture).to_have_attribute("aria-label", re.compile("three 3 slots"))
    expect(picture).to_have_attribute("data-blocks", "3")
    second = submit(empty_server, "single", "--steps", "100000", most=1)
    expect(picture).to_have_attribute("aria-label", re.compile("single 1 slot"))
    expect(picture).to_have_attribute("data-blocks", "4")
    expect(one.page.get_by_role("list", name="jobs in the picture").get_by_role("link")).to_have_count(2)
    one.page.get_by_role("button", name="2 h", exact=True).click()
    expect(one.page.get_by_role("button", name="2 h", exact=True)).to_have_attribute("aria-pressed", "true")
    with empty_server.client() as client:
        client.cancel(first.id)
        client.cancel(second.id)
    expect(picture).to_have_attribute("aria-label", re.compile("all slots are free"))


def test_one_job_shows_curves_events_logs_and_why(server: Running, windows: Windows) -> None:
    job = submit(server, "curvy", "--steps", "100000", "--step-s", "0.05", "--report-every", "5", "--chatter", "30")
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    for title in ("Loss", "Throughput", "Noise scale and batch size"):
        chart = one.page.locator("figure").filter(has=one.page.get_by_role("heading", name=title, exact=True))
        expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))
        expect(chart.locator("canvas")).to_be_visible()
        expect(chart.locator(".is-empty")).to_have_count(0)
    before = int(chart.get_attribute("data-points") or 0)
    until(lambda: int(chart.get_attribute("data-points") or 0) > before, what="the curve grows")
    expect(one.page.get_by_test_id("explanation")).to_contain_text("'curvy' has")
    expect(one.page.get_by_role("list", name="events, newest first")).to_contain_text("submitted as 'curvy'")
    expect(one.page.get_by_label("log of console")).to_contain_text("xxxxxxxxxx")
    one.page.get_by_role("button", name="by time").click()
    one.page.get_by_label("log loss").check()
    expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))


def test_buttons_scale_pause_resume_and_cancel(server: Running, windows: Windows) -> None:
    job = submit(server, "handled", "--steps", "100000", "--step-s", "0.05", most=3)
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    state = one.page.locator(".job-title .state")
    expect(state).to_have_text("running")
    one.page.get_by_label("workers", exact=True).fill("1")
    one.page.get_by_label("pin").check()
    one.page.get_by_role("button", name="Scale", exact=True).click()
    expect(one.page.get_by_text("Pinned to 1 worker.")).to_be_visible()
    expect(one.page.locator(".facts .workers b")).to_have_text("1")
    expect(one.page.get_by_test_id("explanation")).to_contain_text("pinned")
    one.page.get_by_role("button", name="Pause").click()
    expect(state).to_have_text("paused")
    one.page.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("running")
    one.page.get_by_role("button", name="Cancel", exact=True).click()
    one.page.keyboard.press("Escape")
    expect(one.page.get_by_role("dialog")).to_have_count(0)
    expect(state).to_have_text("running")
    one.page.get_by_role("button", name="Cancel", exact=True).click()
    one.page.get_by_role("button", name="Cancel the job").click()
    expect(state).to_have_text("cancelled")
    one.page.get_by_role("button", name="Remove").click()
    one.page.get_by_role("button", name="Remove it").click()
    expect(one.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    expect(one.row("handled")).to_have_count(0)


KEEP_REQUESTS = """() => {
    const { fetch } = window
    window.kept = []
    window.fetch = (url, options = {}) => {
        const name = `${options.method ?? 'GET'} ${String(url).split('/').pop()}`
        window.kept.push(name)
        options.signal?.addEventListener('abort', () => window.kept.push(`given up: ${name}`))
        return fetch(url, options)
    }
}"""
"""Keeps what the page asks for, and what it does not wait for any more, in order."""


def test_what_is_asked_about_a_job_is_given_up_before_it_is_removed(server: Running, windows: Windows) -> None:
    """An answer that comes later would be a 404, which the browser complains about."""
    job = submit(server, "asked-about", "--steps", "100000", "--step-s", "0.05")
    one = windows(server.url)
    one.page.add_init_script(f"({KEEP_REQUESTS})()")
    one.open(f"/jobs/{job.id}", token=server.token)
    state = one.page.locator(".job-title .state")
    expect(state).to_have_text("running")
    one.page.route("**/explanation", lambda _: None)  # is never answered
    with server.client() as client:
        client.cancel(job.id)
    expect(state).to_have_text("cancelled")
    asked = "() => window.kept.lastIndexOf('GET explanation') > window.kept.lastIndexOf('given up: GET explanation')"
    one.until(lambda: one.page.evaluate(asked), what="its explanation is waited for")
    one.page.get_by_role("button", name="Remove").click()
    one.page.get_by_role("button", name="Remove it").click()
    expect(one.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    kept = one.page.evaluate("() => window.kept")
    asked_at = max(place for place, name in enumerate(kept) if name == "GET explanation")
    assert asked_at < kept.index("given up: GET explanation", asked_at) < kept.index(f"DELETE {job.id}")


def test_what_somebody_types_stays_while_the_job_goes_on(server: Running, windows: Windows) -> None:
    job = submit(server, "typed", "--steps", "100000", "--step-s", "0.05", most=3)
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    expect(one.page.locator(".job-title .state")).to_have_text("running")
    field = one.page.get_by_label("workers", exact=True)
    field.fill("1")
    step = one.page.locator(".fact").filter(has=one.page.get_by_text("step", exact=True)).locator("dd")
    before = step.inner_text()
    one.until(lambda: step.inner_text() != before, what="news of the job")
    with server.client() as client:
        client.change(job.id, priority=7)
    expect(one.page.locator(".fact").filter(has_text="priority").locator("dd")).to_have_text("7")
    expect(field).to_have_value("1")
    field.fill("99")
    one.page.keyboard.press("Tab")
    expect(field).to_have_value("3")


def test_a_click_counts_although_the_job_has_moved_on_but_not_over_somebody_elses_wish(server: Running, windows: Windows) -> None:
    """A job's version grows with every event of its own: a person who clicks is always a little behind."""
    job = submit(server, "moving", "--steps", "100000", "--step-s", "0.05", most=3)
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    expect(one.page.locator(".job-title .state")).to_have_text("running")
    meanwhile: list[Callable[[Client], object]] = [lambda client: client.change(job.id, priority=3)]

    def late(route: Route) -> None:
        with server.client() as client:
            if meanwhile:
                meanwhile.pop()(client)
        route.continue_()

    one.page.route("**/scale", late)
    one.page.get_by_label("workers", exact=True).fill("1")
    one.page.get_by_role("button", name="Scale", exact=True).click()
    expect(one.page.get_by_role("status").filter(has_text="Wished for 1 worker")).to_be_visible()
    meanwhile.append(lambda client: client.scale(job.id, 3))
    one.page.get_by_label("workers", exact=True).fill("2")
    one.page.get_by_role("button", name="Scale", exact=True).click()
    expect(one.page.get_by_text("Somebody else has changed the job")).to_be_visible()
    with server.client() as client:
        assert client.job(job.id).wish == 3
    assert all("412" in complaint for complaint in one.complaints)
    one.complaints.clear()


def test_what_is_wrong_with_a_submit_is_said_at_its_field(server: Running, windows: Windows) -> None:
    one = windows(server.url)
    one.open("/submit", token=server.token)
    form = one.page.locator("form.submit")
    form.get_by_label("Name", exact=True).fill("Not A Name")
    form.get_by_label("Command").fill("python 'train.py")
    form.get_by_role("button", name="Submit").click()
    expect(form.locator(".field", has=one.page.get_by_label("Name", exact=True)).locator(".error")).to_contain_text("small letters")
    expect(form.locator(".field", has=one.page.get_by_label("Command")).locator(".error")).to_contain_text("is not closed")
    form.get_by_label("Name", exact=True).fill("asked")
    form.get_by_label("Command").fill("python train.py --steps 5 '--x=a b'")
    form.get_by_label("Priority").fill("1000")
    form.get_by_role("button", name="Submit").click()
    expect(form.locator(".field", has=one.page.get_by_label("Priority")).locator(".error")).to_contain_text("100")
    form.get_by_label("Priority").fill("0")
    form.get_by_label("Command").fill("torchrun job.py")
    form.get_by_role("button", name="Submit").click()
    wrong = form.locator(".field", has=one.page.get_by_label("Command")).locator(".error")
    expect(wrong).to_contain_text("stretto takes the place of torchrun")
    assert all("422" in complaint for complaint in one.complaints)
    one.complaints.clear()
    with server.client() as client:
        assert list(client.jobs(name="asked")) == []
    form.get_by_label("Command").fill("sleep 1")
    form.get_by_role("button", name="Submit").click()
    expect(one.page.get_by_test_id("explanation")).to_contain_text("`sleep 1` is not a stretto script".replace("`", ""))
    one.go("/jobs")
    expect(one.row("asked").locator(".reason")).to_have_text(NEVER_JOINED)


def test_what_another_policy_would_have_done_is_shown(server: Running, windows: Windows) -> None:
    done = [submit(server, f"past-{number}", "--steps", "40", "--step-s", "0.02", steps=40) for number in range(3)]
    with server.client() as client:
        until(lambda: all(client.job(job.id).state.ended for job in done), what="the jobs have ended")
    one = windows(server.url)
    one.open("/policies", token=server.token)
    expect(one.page.locator(".policies .is-active")).to_contain_text("fifo")
    one.page.get_by_role("combobox", name="policy").select_option("tiresias")
    one.page.get_by_role("button", name="Replay").click()
    result = one.page.get_by_test_id("what-if")
    expect(result).to_contain_text("average completion")
    expect(result.get_by_role("columnheader")).to_contain_text([re.compile("job"), "fifo", "tiresias"])


def test_a_failed_job_says_why(server: Running, windows: Windows) -> None:
    job = submit(server, "broken", "--steps", "50", "--step-s", "0.01", "--fail-at", "5")
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    expect(one.page.locator(".job-title .state")).to_have_text("failed")
    expect(one.page.get_by_role("main").get_by_role("alert")).to_contain_text("as it was told to")


def test_markup_in_names_and_logs_stays_text(server: Running, windows: Windows) -> None:
    """The page builds no HTML out of what jobs say, and the policy would not run it."""
    bait = "<img src=x onerror=alert(1)>"
    with server.client() as client:
        job = client.submit({"name": "bait", "run": ["python", "train.py", "--steps", "1"], "envs": {"BAIT": bait}})
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    one.page.get_by_text("What was asked for").click()
    expect(one.page.get_by_text(bait)).to_be_visible()
    assert one.page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_view_fits_its_screen(server: Running, windows: Windows, size: tuple[int, int], scheme: str) -> None:
    job = submit(server, f"fits-{scheme}-{size[0]}", "--steps", "100000", "--step-s", "0.05", "--report-every", "5")
    one = windows(server.url, size=size, scheme=scheme)
    one.open(token=server.token)
    for name, to in {**VIEWS, "job": f"/jobs/{job.id}"}.items():
        one.go(to)
        expect(one.page.get_by_role("heading").first).to_be_visible()
        if name == "job":
            expect(one.page.locator("figure").first).to_have_attribute("data-points", re.compile(r"\d{2,}"))
        assert one.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, name
        one.shot(f"page-{name}-{scheme}-{size[0]}")
    dark = one.page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)[0] < 128")
    assert dark == (scheme == "dark")


def test_a_keyboard_reaches_everything_and_focus_is_seen(server: Running, windows: Windows) -> None:
    job = submit(server, "keys", "--steps", "100000", "--step-s", "0.05", most=2)
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    expect(one.page.get_by_role("button", name="Pause")).to_be_enabled()
    one.page.locator("body").click(position={"x": 2, "y": 2})
    reached: set[str] = set()
    for _ in range(60):
        one.page.keyboard.press("Tab")
        name, outline = one.page.evaluate(
            """() => { const at = document.activeElement; const style = getComputedStyle(at);
                return [at.getAttribute('aria-label') ?? at.textContent.trim(), style.outlineStyle + style.outlineWidth] }"""
        )
        if name and one.page.evaluate("() => document.activeElement !== document.body"):
            assert outline == "solid2px", f"the focus on {name!r} is not seen"
            reached.add(name.split(":")[0])
    wanted = {
        "Skip to the content",
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
        "log of console",
        "What was asked for",
    }
    assert {name.replace("\u00a0", " ") for name in reached} >= wanted - {"one worker more"}


KEEP_TEXTS = """() => {
    const { fillText, clearRect } = CanvasRenderingContext2D.prototype
    const kept = window.kept = new Map()
    Object.assign(CanvasRenderingContext2D.prototype, {
        fillText(text, ...place) {
            const title = this.canvas.closest('figure')?.querySelector('h3')?.textContent
            kept.set(title, [...(kept.get(title) ?? []), text])
            return fillText.call(this, text, ...place)
        },
        clearRect(...place) {
            kept.delete(this.canvas.closest('figure')?.querySelector('h3')?.textContent)
            return clearRect.apply(this, place)
        },
    })
}"""
"""Keeps what is written into each chart since it was wiped."""


def test_marks_of_an_axis_are_as_far_apart_as_they_say(server: Running, windows: Windows) -> None:
    job = submit(server, "marked", "--steps", "43", "--step-s", "0.01", most=1)  # from 2.5 to about 2.4: a mark every 0.025
    with server.client() as client:
        until(lambda: client.job(job.id).state.ended, what="the job has ended")
    one = windows(server.url)
    one.page.add_init_script(f"({KEEP_TEXTS})()")
    one.open(f"/jobs/{job.id}", token=server.token)
    texts = "() => (window.kept.get('Loss') ?? []).filter(text => text.startsWith('2.'))"
    one.until(lambda: len(one.page.evaluate(texts)) > 2, what="the loss is drawn")
    marks = sorted(float(text) for text in one.page.evaluate(texts))
    assert {round(after - before, 6) for before, after in pairwise(marks)} == {0.025}
    counts = "() => (window.kept.get('Workers and pauses') ?? []).filter(text => /^[0-9.]+$/.test(text))"
    one.until(lambda: one.page.evaluate(counts), what="the workers are drawn")  # one chart a frame: not with the loss
    assert set(one.page.evaluate(counts)) == {"0", "1"}, "there is no half a worker"


def test_arrow_keys_read_the_points_of_a_chart(server: Running, windows: Windows) -> None:
    job = submit(server, "read", "--steps", "60", "--step-s", "0.01", most=1)
    with server.client() as client:
        until(lambda: client.job(job.id).state.ended, what="the job has ended")
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    chart = one.page.get_by_role("img", name=re.compile("^Loss:"))
    expect(chart).to_have_attribute("aria-label", re.compile(r"loss 2\.\d+"))
    chart.focus()
    one.page.keyboard.press("Home")
    expect(chart).to_have_attribute("aria-label", re.compile(r"loss 2\.5\b.* at step 0\."))
    one.page.keyboard.press("ArrowRight")
    with server.client() as client:  # of steps this short, not every one is a point
        second = client.metrics(job.id, names=["loss"]).step[1]
    expect(chart).to_have_attribute("aria-label", re.compile(rf"at step {second}\."))


DRAW_AT_ONCE = """() => new MutationObserver(changes => {
    if (!changes.some(change => change.target.matches?.('.chart-values') && change.addedNodes.length)) return
    window.drawn = (window.drawn ?? 0) + 1
    for (const box of document.querySelectorAll('.chart-box')) box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))
}).observe(document.body, { childList: true, subtree: true })"""
"""Draws all charts as soon as one of them has been given another line, before the browser does anything else."""


def test_a_chart_that_gets_another_line_may_be_drawn_at_any_moment(server: Running, windows: Windows) -> None:
    blocker = submit(server, "in-the-way", "--steps", "100000", "--step-s", "0.05", least=4, most=4)
    with server.client() as client:
        until(lambda: client.job(blocker.id).state == "running", what="all slots are taken")
    job = submit(server, "widening", "--steps", "100000", "--step-s", "0.05", "--report-every", "5")
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=server.token)
    chart = one.page.locator("figure").filter(has=one.page.get_by_role("heading", name="Noise scale and batch size", exact=True))
    expect(chart.locator(".chart-value")).to_have_count(1)
    one.page.evaluate(DRAW_AT_ONCE)
    with server.client() as client:
        client.cancel(blocker.id)
    expect(chart.locator(".chart-value")).to_have_count(2)
    expect(chart).to_have_attribute("data-points", re.compile(r"\d{2,}"))
    assert one.page.evaluate("() => window.drawn") > 0
    assert one.complaints == []
