"""Malformed and hostile requests over the whole OpenAPI document: no 5xx, no hang, memory flat.

STRETTO_FUZZ_REQUESTS says how many (2,000 in the suite, 100,000 by `make test-fuzz`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_harness import until

REQUESTS = int(os.environ.get("STRETTO_FUZZ_REQUESTS", "2000"))
OPERATIONS = 35
SENDERS = 2
FILLED = 20_000
"""Requests after which everything that the server keeps a bounded number of (recent events, statements, tables) is full."""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, int, Path]]:
    home = tmp_path_factory.mktemp("fuzz")
    errors = home / "server.err"
    with errors.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("instant_server.py")), str(home)],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, errors.read_text()
    url, token = json.loads(line)
    until(lambda: _ready(url), what="the server is ready")
    # Whoever sends the requests waits ten seconds for the document and no longer, on a machine that may be very busy.
    httpx.get(f"{url}/v1/openapi.json", headers={"Authorization": f"Bearer {token}"}, timeout=120, trust_env=False)
    yield url, token, process.pid, errors
    process.terminate()
    process.wait(30)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def send(url: str, token: str, *, wanted: int, run: int, folder: Path) -> tuple[int, str]:
    """Lets schemathesis send about so many requests: how many it sent, and what it found (nothing: an empty text)."""
    phases = "coverage,fuzzing,stateful" if run == 0 else "fuzzing,stateful"
    result = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{url}/v1/openapi.json",
            "--header",
            f"Authorization: Bearer {token}",
            "--checks",
            CHECKS,
            "--phases",
            phases,
            "--max-examples",
            str(max(2, min(400, wanted // (2 * OPERATIONS)))),
            "--seed",
            str(run),
            "--request-timeout",
            "60",
            "--exclude-path",
            "/v1/stream",
            "--suppress-health-check",
            "all",
            "--no-shrink",
            "--warnings",
            "off",
            "--generation-database",
            "none",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
        check=False,
    )
    count = re.search(r"(\d[\d,]*) generated", result.stdout)
    if result.returncode != 0 or count is None:
        return 0, result.stdout[-6000:] + result.stderr[-1000:]
    return int(count[1].replace(",", "")), ""


@pytest.mark.timeout(0 if REQUESTS > 2000 else 600)
@pytest.mark.slow
def test_hostile_requests_cause_no_server_error_no_hang_and_no_growth(target: tuple[str, str, int, Path], tmp_path: Path) -> None:
    """Two senders at once: making up requests costs more than answering them, and servers have more than one client."""
    url, token, pid, errors = target
    before = memory_mb(pid)
    sent, runs = 0, 0
    full: float | None = None
    with ThreadPoolExecutor(SENDERS) as senders:
        while sent < REQUESTS:
            wanted = max(REQUESTS - sent, REQUESTS // 5) // SENDERS  # not many short runs for the last few
            asked = [
                senders.submit(send, url, token, wanted=wanted, run=run, folder=tmp_path) for run in range(runs, runs + SENDERS)
            ]
            for one in asked:
                count, found = one.result()
                assert not found, found + errors.read_text()[-2000:]
                sent += count
            runs += SENDERS
            print(f"{sent} requests in {runs} runs, {memory_mb(pid) - before:.0f} MB more", flush=True)
            if full is None and sent >= FILLED:
                full = memory_mb(pid)
    until(lambda: _ready(url), what="it still answers")
    grown = memory_mb(pid) - before
    assert grown < 40, f"{sent} requests have cost {grown:.0f} MB"
    if full is not None:
        more = memory_mb(pid) - full
        assert more < 10, f"what is bounded was full after {FILLED} requests, and {more:.0f} MB came after that"
    assert "Traceback" not in errors.read_text()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    job=st.none() | st.text(max_size=20),
    last=st.none() | st.text(max_size=30),
    header=st.none() | st.text("0123456789-x", max_size=30),
)
def test_the_stream_takes_any_beginning(
    target: tuple[str, str, int, Path], job: str | None, last: str | None, header: str | None
) -> None:
    url, token, _, _ = target
    headers = {"Authorization": f"Bearer {token}", **({"Last-Event-ID": header} if header is not None else {})}
    query = {key: value for key, value in (("job", job), ("last_event_id", last)) if value is not None}
    with (
        httpx.Client(trust_env=False, timeout=60) as http,
        http.stream("GET", f"{url}/v1/stream", params=query, headers=headers) as answer,
    ):
        assert answer.status_code in (200, 404, 422)
        if answer.status_code == 200:
            assert next(answer.iter_lines()).startswith(("id:", "event: hello"))


def test_streams_are_bounded(target: tuple[str, str, int, Path]) -> None:
    url, token, _, _ = target
    from stretto.server.api.sse import MOST_STREAMS

    with httpx.Client(
        trust_env=False, timeout=60, limits=httpx.Limits(max_connections=None), headers={"Authorization": f"Bearer {token}"}
    ) as http:
        held = []
        try:
            for _ in range(MOST_STREAMS + 1):
                held.append(http.send(http.build_request("GET", f"{url}/v1/stream"), stream=True))
            assert held[0].status_code == 200
            assert held[-1].status_code == 429
        finally:
            for one in held:
                one.close()
        end = time.monotonic() + 60
        while time.monotonic() < end and http.send(http.build_request("GET", f"{url}/v1/stream"), stream=True).status_code != 200:
            time.sleep(0.5)
        assert time.monotonic() < end, "closed streams give their places back"
