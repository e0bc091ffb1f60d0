"""Tokens: asked for once, kept in this tab, gone from the address."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from page_harness import Window
from playwright.sync_api import expect
from server_harness import Running

Windows = Callable[..., Window]
KEPT = "() => Object.values(sessionStorage).join() + '|' + Object.values(localStorage).join() + '|' + document.cookie"


def test_the_printed_address_opens_the_page_and_loses_its_token(server: Running, windows: Windows) -> None:
    one = windows(server.url)
    one.open(token=server.token)
    expect(one.page.get_by_role("heading", name="Slots over time")).to_be_visible()
    assert server.token not in one.page.url
    assert one.page.evaluate(KEPT) == f"{server.token}||"


def test_a_token_is_entered_once_and_survives_a_reload(server: Running, windows: Windows) -> None:
    one = windows(server.url)
    one.page.goto(server.url)
    one.page.get_by_label("Token").fill(server.token)
    one.page.keyboard.press("Enter")
    expect(one.page.locator(".link-live")).to_be_visible()
    one.page.reload()
    expect(one.page.locator(".link-live")).to_be_visible()
    one.page.get_by_role("button", name="Leave").click()
    expect(one.page.get_by_label("Token")).to_be_visible()
    assert one.page.evaluate(KEPT) == "||"


def test_a_wrong_token_is_refused_with_the_server_s_words(server: Running, windows: Windows) -> None:
    one = windows(server.url)
    one.page.goto(server.url)
    one.page.get_by_label("Token").fill("st_wrong")
    one.page.get_by_role("button", name="Open").click()
    expect(one.page.get_by_role("alert")).to_contain_text("not expired or revoked")
    assert one.page.evaluate(KEPT) == "||"
    assert all("401" in complaint for complaint in one.complaints)
    one.complaints.clear()


def new_token(server: Running, scope: str) -> tuple[str, str]:
    admin = {"Authorization": f"Bearer {server.token}"}
    made = httpx.post(f"{server.url}/v1/tokens", json={"name": scope, "scope": scope}, headers=admin, trust_env=False).json()
    return made["id"], made["secret"]


def test_a_token_that_is_revoked_leads_back_to_the_door(server: Running, windows: Windows) -> None:
    number, secret = new_token(server, "viewer")
    one = windows(server.url)
    one.open("/jobs", token=secret)
    httpx.delete(f"{server.url}/v1/tokens/{number}", headers={"Authorization": f"Bearer {server.token}"}, trust_env=False)
    one.go("/policies")
    expect(one.page.get_by_label("Token")).to_be_visible()
    expect(one.page.get_by_role("alert")).to_contain_text("no longer valid")
    assert all("401" in complaint for complaint in one.complaints)
    one.complaints.clear()


def test_a_viewer_may_look_and_is_told_why_not_more(server: Running, windows: Windows) -> None:
    _, secret = new_token(server, "viewer")
    with server.client() as client:
        job = client.submit({"name": "watched", "run": ["python", "train.py", "--steps", "100000"]})
    one = windows(server.url)
    one.open(f"/jobs/{job.id}", token=secret)
    expect(one.page.get_by_text("This token may only look.")).to_be_visible()
    expect(one.page.get_by_role("button", name="Pause")).to_be_disabled()
    expect(one.page.get_by_role("button", name="Scale", exact=True)).to_be_disabled()
    one.go("/submit")
    expect(one.page.get_by_role("main").get_by_role("button", name="Submit")).to_be_disabled()
    one.go("/policies")
    expect(one.page.get_by_role("button", name="What if?").first).to_be_visible()
    expect(one.page.get_by_role("button", name="Use it")).to_have_count(0)
