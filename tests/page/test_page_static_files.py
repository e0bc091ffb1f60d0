"""How the server serves the page's files."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest
from server_harness import Running
from starlette.applications import Starlette
from starlette.testclient import TestClient

from stretto.server.api.static_files import Pages


def get(server: Running, path: str, **headers: str) -> httpx.Response:
    return httpx.get(server.url + path, headers=headers, trust_env=False)


def test_the_page_needs_no_token_but_its_data_does(server: Running) -> None:
    assert get(server, "/").headers["content-type"].startswith("text/html")
    assert get(server, "/app.js").headers["content-type"].startswith("text/javascript")
    assert get(server, "/v1/overview").status_code == 401


@pytest.mark.parametrize("path", ["/", "/app.js", "/app.css", "/icon.svg"])
def test_the_content_security_policy_forbids_foreign_and_inline_code(server: Running, path: str) -> None:
    policy = get(server, path).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self'"
    assert rules["style-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe" not in policy


def test_an_unchanged_file_is_not_sent_again(server: Running) -> None:
    first = get(server, "/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = get(server, "/app.js", **{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert get(server, "/app.js", **{"If-None-Match": '"another"'}).status_code == 200


def test_files_are_gzipped_for_clients_that_accept_it(server: Running) -> None:
    packed = get(server, "/app.js", **{"Accept-Encoding": "gzip"})
    plain = get(server, "/app.js", **{"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert len(gzip.compress(plain.content)) < len(plain.content) / 2


@pytest.mark.parametrize("path", ["/../app.py", "/..%2fapp.py", "/static/app.js", "//etc/passwd", "/app.js/", "/.env"])
def test_no_other_file_is_served(server: Running, path: str) -> None:
    assert get(server, path).status_code in (401, 404)


def test_a_missing_build_says_how_to_make_it(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("not for the web")
    client = TestClient(Starlette(routes=[*Pages(tmp_path).routes()]))
    assert "make web" in client.get("/").text
    assert client.get("/secret.key").status_code == 404
