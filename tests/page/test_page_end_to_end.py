"""`stretto serve`, the page, and real jobs that train real models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_harness import ROOT, Served, Window, serving
from playwright.sync_api import Locator, expect

Windows = Callable[..., Window]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "home", "--slots", "2", "--interval", "1", "--cooldown", "0", "--policy", "goodput") as server:
        yield server


STEADY = "python tests/server/train_small.py 100000 0.03"
"""Trains a small model and waits in every slice: two workers are faster even on a busy machine, so the policy chooses two."""


def fill(form: Locator, *, name: str, command: str, least: str, most: str) -> None:
    form.get_by_label("Name", exact=True).fill(name)
    form.get_by_label("Command").fill(command)
    form.get_by_label("Working directory").fill(str(ROOT))
    form.get_by_label("Minimum workers").fill(least)
    form.get_by_label("Maximum workers").fill(most)


def plain_digest(epochs: int) -> str:
    """The digest of plain `python examples/digits.py`."""
    command = [sys.executable, "examples/digits.py", "--epochs", str(epochs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split("digest ")[1].split()[0]


@pytest.mark.timeout(900)
def test_a_real_job_is_submitted_scaled_and_survives_the_server(served: Served, windows: Windows) -> None:
    window = windows(served.url)
    window.open("/submit", token=served.token)
    form = window.page.locator("form.submit")
    fill(form, name="steady", command=STEADY, least="1", most="2")
    form.get_by_role("button", name="Submit").click()

    state, workers = window.page.locator(".job-title .state"), window.page.locator(".facts .workers b")
    expect(state).to_have_text("running")
    expect(workers).to_have_text("2")
    why = window.page.get_by_test_id("explanation")
    expect(why).to_contain_text("has 2 workers")
    loss = window.page.locator("figure").first
    expect(loss).to_have_attribute("data-points", re.compile(r"\d{2,}"))
    window.screenshot("real-1-grown")

    window.page.get_by_role("button", name="one worker fewer").click()
    window.page.get_by_label("pin").check()
    window.page.get_by_role("button", name="Scale", exact=True).click()
    expect(workers).to_have_text("1")
    expect(why).to_contain_text("pinned")
    expect(window.page.get_by_role("list", name="events, newest first")).to_contain_text("2 → 1 worker")
    window.screenshot("real-2-scaled")

    served.kill()
    expect(window.page.get_by_test_id("lost")).to_contain_text("Connection lost, retrying.")
    window.screenshot("real-3-lost")
    served.start()
    expect(window.page.get_by_test_id("reconnected")).to_be_visible()
    before = int(loss.get_attribute("data-points") or 0)
    window.until(lambda: int(loss.get_attribute("data-points") or 0) > before, what="the curve goes on after the server is back")
    expect(workers).to_have_text("1")

    window.page.get_by_role("button", name="Unpin").click()
    expect(workers).to_have_text("2")
    window.page.get_by_role("button", name="Cancel", exact=True).click()
    window.page.get_by_role("button", name="Cancel the job").click()
    expect(state).to_have_text("cancelled")
    window.screenshot("real-4-cancelled")
    window.console_errors[:] = [text for text in window.console_errors if "ERR_" not in text]


@pytest.mark.timeout(900)
def test_a_real_job_ends_with_the_digest_of_the_plain_script(served: Served, windows: Windows) -> None:
    window = windows(served.url)
    window.open("/submit", token=served.token)
    fill(window.page.locator("form.submit"), name="short", command="python examples/digits.py --epochs 4", least="1", most="2")
    window.page.locator("form.submit").get_by_role("button", name="Submit").click()
    expect(window.page.locator(".job-title .state")).to_have_text("finished")
    expect(window.page.locator(".digest code")).to_have_text(plain_digest(4))
    expect(window.page.locator(".fact").filter(has_text="samples lost").locator("dd")).to_have_text("0")
    expect(window.page.get_by_label("console log")).not_to_contain_text("No output yet.")
    window.go("/")
    expect(window.page.get_by_role("list", name="jobs in the timeline")).to_contain_text("short")
    assert json.loads(window.page.evaluate("() => JSON.stringify(performance.getEntriesByName('stretto-ready').length)")) == 1
