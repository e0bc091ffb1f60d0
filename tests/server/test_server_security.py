"""Who may do what. Scopes and tenants are tested on every route that there is, from the application itself."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from server_harness import Running, job, running, until

from stretto.core.errors import UsageError
from stretto.server.api.routes import ROUTERS
from stretto.server.api.routes.auth import Guarded
from stretto.server.api.security import MOST_BODY, Buckets
from stretto.server.app import build
from stretto.server.client import Client, ServerError
from stretto.server.models import Scope
from stretto.server.settings import ServerSettings
from stretto.server.spec import MASK

ROUTES = [
    (route, method)
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
]
IDS = [f"{method} {route.path}" for route, method in ROUTES]
BODIES = {
    "POST /v1/jobs": job(),
    "POST /v1/jobs/{job}/scale": {"workers": 1},
    "PATCH /v1/jobs/{job}": {"priority": 1},
    "PATCH /v1/nodes/{name}": {"cordoned": False},
    "PUT /v1/policies/active": {"name": "fifo"},
    "POST /v1/policies/what-if": {"policy": "nothing"},
    "POST /v1/tokens": {"name": "x", "scope": "viewer"},
}


@pytest.fixture(scope="module")
def secrets(server: Running) -> dict[str, str]:
    with server.client() as admin:
        made = {scope: admin.create_token(scope, scope=scope, tenant="one").secret for scope in ("viewer", "submitter", "admin")}
        made["stranger"] = admin.create_token("stranger", scope="submitter", tenant="two").secret
    return made


@pytest.fixture(scope="module")
def theirs(server: Running, secrets: dict[str, str]) -> str:
    """A job of tenant one."""
    with server.client(secrets["submitter"]) as client:
        return client.submit(job("theirs", steps=100_000, step_s=0.2)).id


def call(server: Running, route: APIRoute, method: str, *, token: str | None, job_id: str = "j-aaaaaaaaaaaa") -> httpx.Response:
    """One request; again after a while where there were too many without a valid token, as in these tests."""
    for _ in range(60):
        response = _call(server, route, method, token=token, job_id=job_id)
        if response.status_code != 429:
            break
        time.sleep(0.6)
    return response


def _call(server: Running, route: APIRoute, method: str, *, token: str | None, job_id: str) -> httpx.Response:
    path = route.path.format(job=job_id, name="node0", token="t-aaaaaaaaaaaa")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        with http.stream(method, path, headers=headers, json=BODIES.get(f"{method} {route.path}")) as response:
            if not response.headers["content-type"].startswith("text/event-stream"):
                response.read()
            return response


@pytest.mark.parametrize(("route", "method"), ROUTES, ids=IDS)
def test_every_route_wants_a_token_and_the_scope_that_it_says(
    server: Running, secrets: dict[str, str], route: Guarded, method: str
) -> None:
    assert isinstance(route, Guarded), "a route that is not guarded"
    if route.needs is None:
        assert route.path in ("/healthz", "/readyz")
        assert call(server, route, method, token=None).status_code == 200
        return
    assert call(server, route, method, token=None).status_code == 401
    assert call(server, route, method, token="st_t-aaaaaaaaaaaa_wrong").status_code == 401
    for scope in (Scope.VIEWER, Scope.SUBMITTER, Scope.ADMIN):
        status = call(server, route, method, token=secrets[scope]).status_code
        assert (status == 403) == (not scope.covers(route.needs)), f"{scope} got {status}"
        assert status not in (401, 500)


@pytest.mark.parametrize(
    ("route", "method"), [one for one in ROUTES if "{job}" in one[0].path], ids=[name for name in IDS if "{job}" in name]
)
def test_another_tenants_job_does_not_exist(
    server: Running, secrets: dict[str, str], theirs: str, route: Guarded, method: str
) -> None:
    assert call(server, route, method, token=secrets["stranger"], job_id=theirs).status_code == 404


def test_another_tenants_job_shows_nowhere(server: Running, secrets: dict[str, str], theirs: str) -> None:
    with server.client(secrets["submitter"]) as own:
        until(lambda: own.job(theirs).state == "running", what="the job runs")
        assert theirs in [one.id for one in own.jobs()], "a control: its own tenant sees it"
    with server.client(secrets["stranger"]) as stranger:
        texts = [
            stranger._raw("GET", path).text
            for path in (
                "/v1/jobs",
                "/v1/events?limit=1000",
                "/v1/allocations",
                "/v1/allocations/history",
                "/v1/nodes",
                "/v1/decisions",
                "/v1/trace",
                "/v1/overview",
            )
        ]
        assert stranger.allocation().items[0].job == "other", "that slots are taken is everybody's business"
        with httpx.Client(base_url=server.url, trust_env=False, headers={"Authorization": f"Bearer {secrets['stranger']}"}) as http:
            with http.stream("GET", "/v1/stream", headers={"Last-Event-ID": "0"}) as response:
                texts.append(next(response.iter_text()))
    for text in texts:
        assert theirs not in text
        assert "theirs" not in text


def test_secrets_of_a_job_are_masked_wherever_it_shows(server: Running) -> None:
    secret = "hunter2-hunter2"
    with server.client() as client:
        made = client.submit(
            {
                "name": "leaky",
                "run": ["sh", "-c", "echo the token is $MY_TOKEN; exit 3"],
                "envs": {"MY_TOKEN": secret, "PLAIN": "visible"},
            }
        )
        ended = client.wait(made.id, timeout_s=120)
        assert ended.state == "failed"
        assert made.spec.envs == {"MY_TOKEN": MASK, "PLAIN": "visible"}
        assert f"the token is {MASK}" in client.log(made.id).text, "a control: the job did print it"
        everywhere = "".join(
            client._raw("GET", path).text
            for path in (
                f"/v1/jobs/{made.id}",
                f"/v1/jobs/{made.id}/events",
                f"/v1/jobs/{made.id}/logs",
                "/v1/jobs",
                "/v1/events?limit=1000",
                f"/v1/jobs/{made.id}/explanation",
            )
        )
    assert secret not in everywhere
    assert secret not in (server.home / "server.err").read_text()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost"}, 200),
    ],
)
def test_other_names_and_other_pages_are_refused(server: Running, headers: dict[str, str], status: int) -> None:
    response = httpx.get(
        f"{server.url}/v1/overview", headers={"Authorization": f"Bearer {server.token}", **headers}, trust_env=False
    )
    assert response.status_code == status


def test_a_browser_is_told_to_run_nothing_that_is_not_ours(server: Running) -> None:
    for path in ("/", "/v1/overview", "/nothing"):
        headers = httpx.get(server.url + path, headers={"Authorization": f"Bearer {server.token}"}, trust_env=False).headers
        assert "unsafe" not in headers["content-security-policy"]
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in headers


def raw(server: Running, request: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = connection.recv(65536)
            if not data:
                break
            answer += data
        return answer


def test_a_body_over_the_bound_is_refused_whatever_its_header_says(server: Running) -> None:
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
    )
    announced = raw(server, f"{head}Content-Length: {MOST_BODY + 1}\r\n\r\n".encode())
    assert b" 413 " in announced.splitlines()[0]
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    hidden = raw(server, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 17 + b"0\r\n\r\n")
    assert b" 413 " in hidden.splitlines()[0]


def test_no_request_names_a_path_that_is_opened(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("paths"))
        for source in ("../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd"):
            with pytest.raises(ServerError) as caught:
                client.log(made.id, source=source)
            assert caught.value.status == 422
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/assets/..%2f..%2fapp.py"):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        for _ in range(60):
            status = raw(server, request).splitlines()[0]
            if b" 429 " not in status:
                break
            time.sleep(0.6)  # as in `call`: the tests before this one use up what a client may send without a valid token
        assert b" 401 " in status


def test_requests_over_the_rate_are_refused_with_the_time_to_wait() -> None:
    buckets = Buckets(rate=10, burst=2)
    assert [buckets.take("a", now=0.0) > 0 for _ in range(3)] == [False, False, True]
    assert buckets.take("b", now=0.0) == 0, "others are not held up"
    assert buckets.take("a", now=0.2) == 0
    assert buckets.take("a", now=-50.0) >= 0, "a clock that jumps back opens nothing"


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("slow"), rate=5.0) as found:
        yield found


def test_a_client_that_asks_too_much_gets_429_and_the_server_goes_on(slow_server: Running) -> None:
    with httpx.Client(base_url=slow_server.url, trust_env=False, headers={"Authorization": f"Bearer {slow_server.token}"}) as http:
        answers = [http.get("/v1/overview") for _ in range(100)]
    limited = [one for one in answers if one.status_code == 429]
    assert limited
    assert int(limited[0].headers["retry-after"]) >= 1
    assert httpx.get(f"{slow_server.url}/healthz", trust_env=False).status_code == 200


def test_guessing_tokens_is_slowed_down(slow_server: Running) -> None:
    with httpx.Client(base_url=slow_server.url, trust_env=False) as http:
        statuses = [
            http.get("/v1/overview", headers={"Authorization": f"Bearer st_t-aaaaaaaaaaaa_{n}"}).status_code for n in range(200)
        ]
    assert statuses[0] == 401
    assert 429 in statuses


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"host": "0.0.0.0"}, "--tls-cert"),
        ({"host": "192.0.2.1"}, "--tls-cert"),
        ({"tls_cert": Path("c.pem")}, "belong together"),
        ({"tls_cert": Path("/no/c.pem"), "tls_key": Path("/no/k.pem")}, "does not exist"),
        ({"slots": 0}, "--slots 0"),
        ({"port": 70000}, "--port 70000"),
        ({"nodes": 0}, "--nodes 0"),
        ({"interval_s": 0.0}, "--interval 0"),
    ],
)
def test_a_setup_that_is_unsafe_or_impossible_is_refused_with_the_option_to_change(
    tmp_path: Path, more: dict[str, object], words: str
) -> None:
    home = tmp_path / "home"
    with pytest.raises(UsageError, match=words):
        build(ServerSettings(**{"home": home, **more}))  # type: ignore[arg-type]
    assert not home.exists(), "refused before anything was made"


def test_home_and_login_are_for_their_owner_alone(server: Running) -> None:
    assert server.home.stat().st_mode & 0o077 == 0
    login = server.home / "login.json"
    assert login.stat().st_mode & 0o077 == 0
    assert json.loads(login.read_text())["token"] == server.token


def test_a_client_shows_no_secret_when_it_is_printed(server: Running) -> None:
    client = Client(server.url, token=server.token)
    assert server.token not in repr(client)
    assert server.token not in str(vars(client))


def test_a_token_cannot_revoke_itself_and_a_revoked_one_is_refused(server: Running) -> None:
    with server.client() as admin:
        with pytest.raises(ServerError, match="this very request"):
            admin.revoke_token(admin.me().id)
        made = admin.create_token("short", scope="viewer")
        with server.client(made.secret) as short:
            assert short.me().name == "short"
            admin.revoke_token(made.id)
            with pytest.raises(ServerError) as caught:
                short.me()
            assert caught.value.status == 401
