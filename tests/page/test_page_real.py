"""A user's afternoon: `stretto serve`, the page, a real job that trains a real model."""

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
    with serving(tmp_path / "home", "--slots", "2", "--interval", "1", "--cooldown", "0", "--policy", "goodput") as found:
        yield found


STEADY = "python tests/server/train_small.py 100000 0.03"
"""Trains a small model and waits in every slice: two workers are faster on a busy machine too, so the policy wants two."""


def fill(form: Locator, *, name: str, command: str, least: str, most: str) -> None:
    form.get_by_label("Name", exact=True).fill(name)
    form.get_by_label("Command").fill(command)
    form.get_by_label("Folder").fill(str(ROOT))
    form.get_by_label("Fewest workers").fill(least)
    form.get_by_label("Most workers").fill(most)


def alone(epochs: int) -> str:
    """The digest of plain `python examples/digits.py`."""
    command = [sys.executable, "examples/digits.py", "--epochs", str(epochs)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split("digest ")[1].split()[0]


@pytest.mark.timeout(900)
def test_a_real_job_is_submitted_grown_scaled_lost_and_regained(served: Served, windows: Windows) -> None:
    one = windows(served.url)
    one.open("/submit", token=served.token)
    form = one.page.locator("form.submit")
    fill(form, name="steady", command=STEADY, least="1", most="2")
    form.get_by_role("button", name="Submit").click()

    state, workers = one.page.locator(".job-title .state"), one.page.locator(".facts .workers b")
    expect(state).to_have_text("running")
    expect(workers).to_have_text("2")
    why = one.page.get_by_test_id("explanation")
    expect(why).to_contain_text("has 2 workers")
    loss = one.page.locator("figure").first
    expect(loss).to_have_attribute("data-points", re.compile(r"\d{2,}"))
    one.shot("real-1-grown")

    one.page.get_by_role("button", name="one worker less").click()
    one.page.get_by_label("pin").check()
    one.page.get_by_role("button", name="Scale", exact=True).click()
    expect(workers).to_have_text("1")
    expect(why).to_contain_text("pinned")
    expect(one.page.get_by_role("list", name="events, newest first")).to_contain_text("2 → 1 worker")
    one.shot("real-2-scaled")

    served.kill()
    expect(one.page.get_by_test_id("lost")).to_contain_text("Connection lost, retrying.")
    one.shot("real-3-lost")
    served.start()
    expect(one.page.get_by_test_id("back")).to_be_visible()
    before = int(loss.get_attribute("data-points") or 0)
    one.until(lambda: int(loss.get_attribute("data-points") or 0) > before, what="the curve goes on after the server is back")
    expect(workers).to_have_text("1")

    one.page.get_by_role("button", name="Unpin").click()
    expect(workers).to_have_text("2")
    one.page.get_by_role("button", name="Cancel", exact=True).click()
    one.page.get_by_role("button", name="Cancel the job").click()
    expect(state).to_have_text("cancelled")
    one.shot("real-4-cancelled")
    one.complaints[:] = [text for text in one.complaints if "ERR_" not in text]


@pytest.mark.timeout(900)
def test_a_real_job_ends_with_the_digest_of_the_plain_script(served: Served, windows: Windows) -> None:
    one = windows(served.url)
    one.open("/submit", token=served.token)
    fill(one.page.locator("form.submit"), name="short", command="python examples/digits.py --epochs 4", least="1", most="2")
    one.page.locator("form.submit").get_by_role("button", name="Submit").click()
    expect(one.page.locator(".job-title .state")).to_have_text("finished")
    expect(one.page.locator(".digest code")).to_have_text(alone(4))
    expect(one.page.locator(".fact").filter(has_text="samples lost").locator("dd")).to_have_text("0")
    expect(one.page.get_by_label("log of console")).not_to_contain_text("Nothing has been printed yet.")
    one.go("/")
    expect(one.page.get_by_role("list", name="jobs in the picture")).to_contain_text("short")
    assert json.loads(one.page.evaluate("() => JSON.stringify(performance.getEntriesByName('stretto-ready').length)")) == 1
