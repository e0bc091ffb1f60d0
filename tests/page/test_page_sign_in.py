"""Signing in: the token is entered once, kept in this tab, and removed from the address."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from page_harness import Window
from playwright.sync_api import expect
from server_harness import Running

Windows = Callable[..., Window]
STORED = "() => Object.values(sessionStorage).join() + '|' + Object.values(localStorage).join() + '|' + document.cookie"


def test_the_printed_address_signs_in_and_drops_its_token(server: Running, windows: Windows) -> None:
    window = windows(server.url)
    window.open(token=server.token)
    expect(window.page.get_by_role("heading", name="Slots over time")).to_be_visible()
    assert server.token not in window.page.url
    assert window.page.evaluate(STORED) == f"{server.token}||"


def test_a_token_is_entered_once_and_survives_a_reload(server: Running, windows: Windows) -> None:
    window = windows(server.url)
    window.page.goto(server.url)
    window.page.get_by_label("Token").fill(server.token)
    window.page.keyboard.press("Enter")
    expect(window.page.locator(".connection-live")).to_be_visible()
    window.page.reload()
    expect(window.page.locator(".connection-live")).to_be_visible()
    window.page.get_by_role("button", name="Sign out").click()
    expect(window.page.get_by_label("Token")).to_be_visible()
    expect(window.page.get_by_role("alert")).to_have_count(0)
    assert window.page.evaluate(STORED) == "||"


def test_a_wrong_token_is_refused_with_the_servers_message(server: Running, windows: Windows) -> None:
    window = windows(server.url)
    window.page.goto(server.url)
    window.page.get_by_label("Token").fill("st_wrong")
    window.page.get_by_role("button", name="Sign in").click()
    expect(window.page.get_by_role("alert")).to_contain_text("not expired or revoked")
    assert window.page.evaluate(STORED) == "||"
    assert all("401" in error for error in window.console_errors)
    window.console_errors.clear()


def new_token(server: Running, scope: str) -> tuple[str, str]:
    admin = {"Authorization": f"Bearer {server.token}"}
    made = httpx.post(f"{server.url}/v1/tokens", json={"name": scope, "scope": scope}, headers=admin, trust_env=False).json()
    return made["id"], made["secret"]


def test_a_revoked_token_leads_back_to_sign_in(server: Running, windows: Windows) -> None:
    number, secret = new_token(server, "viewer")
    window = windows(server.url)
    window.open("/jobs", token=secret)
    httpx.delete(f"{server.url}/v1/tokens/{number}", headers={"Authorization": f"Bearer {server.token}"}, trust_env=False)
    window.go("/policies")
    expect(window.page.get_by_label("Token")).to_be_visible()
    expect(window.page.get_by_role("alert")).to_contain_text("no longer valid")
    assert all("401" in error for error in window.console_errors)
    window.console_errors.clear()


def test_a_viewer_sees_everything_and_why_it_can_change_nothing(server: Running, windows: Windows) -> None:
    _, secret = new_token(server, "viewer")
    with server.client() as client:
        job = client.submit({"name": "watched", "run": ["python", "train.py", "--steps", "100000"]})
    window = windows(server.url)
    window.open(f"/jobs/{job.id}", token=secret)
    expect(window.page.get_by_text("This token is read-only.")).to_be_visible()
    expect(window.page.get_by_role("button", name="Pause")).to_be_disabled()
    expect(window.page.get_by_role("button", name="Scale", exact=True)).to_be_disabled()
    window.go("/submit")
    expect(window.page.get_by_role("main").get_by_role("button", name="Submit")).to_be_disabled()
    window.go("/policies")
    expect(window.page.get_by_role("button", name="What if?").first).to_be_visible()
    expect(window.page.get_by_role("button", name="Activate")).to_have_count(0)
