"""A typed client of the job server; the command line is built on it.

client = stretto.Client()                      # STRETTO_SERVER and STRETTO_TOKEN, or the saved login
job = client.submit({"name": "digits", "run": ["python", "train.py"], "elastic": {"min": 1, "max": 4}})
for event in client.stream():
    print(event.kind, event.data)
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack

import httpx
from pydantic import BaseModel

from stretto.core.errors import StrettoError, UsageError
from stretto.server import models
from stretto.server.settings import read_login
from stretto.server.spec import JobSpec

T = TypeVar("T", bound=BaseModel)
DEFAULT_HOME = Path("~/.stretto")
RETRIES = 3
Query = dict[str, str | int | float | list[str] | None]


class Request(TypedDict, total=False):
    """Parts of a request, as httpx calls them."""

    json: object
    params: Mapping[str, str | int | float | list[str] | None]
    headers: Mapping[str, str]
    timeout: float


class ServerError(StrettoError):
    """The server refused a request, or could not be reached; then `status` is 0."""

    def __init__(self, text: str, *, status: int = 0, errors: list[dict[str, str]] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.errors = errors or []


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of the stream."""

    kind: str
    data: dict[str, Any]
    id: int | None = None


def _home() -> Path:
    return Path(os.environ.get("STRETTO_HOME") or DEFAULT_HOME).expanduser()


def find_server(url: str | None = None, token: str | None = None) -> tuple[str, str] | None:
    """(URL, token) from the arguments, the environment or the saved login; None if there is none.

    The saved token is for the server that saved it: no other address ever gets it.
    """
    saved = read_login(_home() / "login.json")
    where = url or os.environ.get("STRETTO_SERVER") or (saved[0] if saved else None)
    own = saved is not None and where is not None and where.rstrip("/") == saved[0].rstrip("/")
    secret = token or os.environ.get("STRETTO_TOKEN") or (saved[1] if saved is not None and own else None)
    return (where.rstrip("/"), secret) if where and secret else None


class Client:
    """Raises `ServerError` with the server's own words. Reads are repeated when the connection fails, changes are not."""

    def __init__(
        self, url: str | None = None, *, token: str | None = None, timeout_s: float = 30.0, verify: bool | str = True
    ) -> None:
        login = find_server(url, token)
        if login is None:
            where = url or os.environ.get("STRETTO_SERVER")
            raise UsageError(
                f"no token is known for the job server {where}: set STRETTO_TOKEN (a saved login is for its own server only)"
                if where
                else f"{_home() / 'login.json'} is damaged: start `stretto serve` again, which writes a new one"
                if (_home() / "login.json").exists()
                else f"no job server is known: there is no login in {_home()}. Start one with `stretto serve`; for one that was "
                "started with `--home DIR`, set STRETTO_HOME=DIR; for one elsewhere, set STRETTO_SERVER and STRETTO_TOKEN"
            )
        self.url, secret = login
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"the job server {self.url!r} is not a URL: write http://{self.url} (--server, or STRETTO_SERVER)")
        if not secret.isascii() or not secret.isprintable():
            fix = "set STRETTO_TOKEN to what `stretto serve` or `stretto tokens create` has printed"
            raise UsageError(f"the token has characters that no token has: {fix}")
        self._http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {secret}"}, timeout=timeout_s, verify=verify, trust_env=False
        )

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec | Mapping[str, object], *, key: str | None = None) -> models.JobDetails:
        """Queues a job. With a `key`, repeating the call is harmless."""
        body = spec.model_dump(mode="json") if isinstance(spec, JobSpec) else dict(spec)
        headers = {"Idempotency-Key": key} if key else {}
        return self._call(models.JobDetails, "POST", "/v1/jobs", json=body, headers=headers, again=key is not None)

    def jobs(self, *, state: list[str] | None = None, name: str | None = None) -> Iterator[models.JobSummary]:
        """All jobs, newest first."""
        cursor: str | None = None
        while True:
            query: Query = {"limit": 500, "state": state, "name": name, "cursor": cursor}
            page = self._call(models.JobPage, "GET", "/v1/jobs", params={k: v for k, v in query.items() if v is not None})
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def job(self, job: str) -> models.JobDetails:
        """By id, or by a name that only one job has (of several, the newest that has not ended)."""
        return self._call(models.JobDetails, "GET", f"/v1/jobs/{self.resolve(job)}")

    def resolve(self, job: str) -> str:
        """The id of a job that is given by id or by name."""
        if job.startswith("j-") and len(job) == 14:
            return job
        matches = [match for match in self.jobs(name=job) if match.name == job]
        living = [match for match in matches if not match.state.ended]
        if len(living) > 1 or (not living and len(matches) > 1):
            names = ", ".join(match.id for match in (living or matches)[:5])
            raise UsageError(f"{len(living or matches)} jobs are called '{job}' ({names}): use the id")
        if not matches:
            raise UsageError(f"there is no job '{job}': see `stretto ps`")
        return (living or matches)[0].id

    def scale(self, job: str, workers: int, *, pin: bool = False, version: int | None = None) -> models.JobDetails:
        return self._change(job, "scale", {"workers": workers, "pin": pin}, version)

    def pause(self, job: str, *, version: int | None = None) -> models.JobDetails:
        return self._change(job, "pause", None, version)

    def resume(self, job: str, *, version: int | None = None) -> models.JobDetails:
        return self._change(job, "resume", None, version)

    def cancel(self, job: str, *, version: int | None = None) -> models.JobDetails:
        return self._change(job, "cancel", None, version)

    def _change(self, job: str, verb: str, body: Mapping[str, object] | None, version: int | None) -> models.JobDetails:
        headers = {"If-Match": f'"{version}"'} if version is not None else {}
        return self._call(models.JobDetails, "POST", f"/v1/jobs/{self.resolve(job)}/{verb}", json=body, headers=headers)

    def change(self, job: str, *, version: int | None = None, **fields: object) -> models.JobDetails:
        """priority=, deadline=, price_limit=, plan=, wish=None."""
        headers = {"If-Match": f'"{version}"'} if version is not None else {}
        return self._call(models.JobDetails, "PATCH", f"/v1/jobs/{self.resolve(job)}", json=fields, headers=headers)

    def remove(self, job: str) -> None:
        self._raw("DELETE", f"/v1/jobs/{self.resolve(job)}")

    def explain(self, job: str) -> models.Explanation:
        return self._call(models.Explanation, "GET", f"/v1/jobs/{self.resolve(job)}/explanation")

    def events(self, job: str | None = None, *, after: int = 0, limit: int = 1000) -> models.EventPage:
        path = f"/v1/jobs/{self.resolve(job)}/events" if job else "/v1/events"
        return self._call(models.EventPage, "GET", path, params={"after": after, "limit": limit})

    def metrics(self, job: str, *, names: list[str] | None = None, after: int = -1, points: int = 2000) -> models.Series:
        query: Query = {"after": after, "points": points, **({"names": ",".join(names)} if names else {})}
        return self._call(models.Series, "GET", f"/v1/jobs/{self.resolve(job)}/metrics", params=query)

    def sizes(self, job: str) -> models.Sizes:
        return self._call(models.Sizes, "GET", f"/v1/jobs/{self.resolve(job)}/sizes")

    def log(self, job: str, *, source: str = "console", offset: int = 0, tail: int | None = None) -> models.LogPart:
        query: Query = {"source": source, "offset": offset, **({"tail": tail} if tail else {})}
        return self._call(models.LogPart, "GET", f"/v1/jobs/{self.resolve(job)}/logs", params=query)

    def follow(self, job: str, *, source: str = "console", every_s: float = 0.5) -> Iterator[str]:
        """The log, until the job has ended."""
        job, offset = self.resolve(job), 0
        while True:
            part = self.log(job, source=source, offset=offset)
            if part.text:
                yield part.text
            if part.end:
                return
            if part.next == offset:
                time.sleep(every_s)
            offset = part.next

    def wait(self, job: str, *, timeout_s: float | None = None, every_s: float = 0.3) -> models.JobDetails:
        """The job once it has ended."""
        job = self.resolve(job)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            current = self.job(job)
            if current.state.ended:
                return current
            if until is not None and time.monotonic() > until:
                raise ServerError(f"job '{current.name}' has not ended within {timeout_s:g} s: it is {current.state}")
            time.sleep(every_s)

    # -- the cluster ---------------------------------------------------------------------------------------------

    def overview(self) -> models.Overview:
        return self._call(models.Overview, "GET", "/v1/overview")

    def nodes(self) -> models.Nodes:
        return self._call(models.Nodes, "GET", "/v1/nodes")

    def cordon(self, node: str, *, cordoned: bool = True) -> models.Node:
        return self._call(models.Node, "PATCH", f"/v1/nodes/{node}", json={"cordoned": cordoned})

    def allocation(self) -> models.ClusterAllocation:
        return self._call(models.ClusterAllocation, "GET", "/v1/allocations")

    def history(self, *, since: float, until: float) -> models.History:
        return self._call(models.History, "GET", "/v1/allocations/history", params={"since": since, "until": until})

    def decisions(self, *, limit: int = 50) -> models.DecisionPage:
        return self._call(models.DecisionPage, "GET", "/v1/decisions", params={"limit": limit})

    def policies(self) -> models.Policies:
        return self._call(models.Policies, "GET", "/v1/policies")

    def use_policy(self, name: str) -> models.Policies:
        return self._call(models.Policies, "PUT", "/v1/policies/active", json={"name": name})

    def what_if(self, policy: str, *, hours: float = 6.0, baseline: str | None = None) -> models.WhatIf:
        body = {"policy": policy, "hours": hours, "baseline": baseline}
        return self._call(models.WhatIf, "POST", "/v1/policies/what-if", json=body, timeout=90.0)

    def trace(self, *, hours: float = 24.0) -> models.Trace:
        return self._call(models.Trace, "GET", "/v1/trace", params={"hours": hours})

    def tokens(self) -> models.Tokens:
        return self._call(models.Tokens, "GET", "/v1/tokens")

    def me(self) -> models.Token:
        return self._call(models.Token, "GET", "/v1/tokens/me")

    def create_token(self, name: str, *, scope: str, tenant: str = "default", expires_s: float | None = None) -> models.NewToken:
        body = {"name": name, "scope": scope, "tenant": tenant, "expires_s": expires_s}
        return self._call(models.NewToken, "POST", "/v1/tokens", json=body)

    def revoke_token(self, token: str) -> None:
        self._raw("DELETE", f"/v1/tokens/{token}")

    def stream(self, *, job: str | None = None, last_event_id: int | None = None) -> Iterator[Frame]:
        """Messages, until the connection ends. Resume with the last `id` that was seen."""
        headers = {"Last-Event-ID": str(last_event_id)} if last_event_id is not None else {}
        query = {"job": self.resolve(job)} if job else {}
        timeout = httpx.Timeout(30.0, read=30.0)
        try:
            with self._http.stream("GET", "/v1/stream", headers=headers, params=query, timeout=timeout) as response:
                if response.status_code != 200:
                    response.read()
                    raise _error(response)
                yield from frames(response.iter_lines())
        except httpx.HTTPError as error:
            raise ServerError(f"the stream of {self.url} has ended: {error}") from error

    # -- asking --------------------------------------------------------------------------------------------------

    def _call(self, shape: type[T], method: str, path: str, *, again: bool | None = None, **request: Unpack[Request]) -> T:
        response = self._raw(method, path, again=again, **request)
        return shape.model_validate_json(response.content)

    def _raw(self, method: str, path: str, *, again: bool | None = None, **request: Unpack[Request]) -> httpx.Response:
        again = method == "GET" if again is None else again
        for attempt in range(RETRIES if again else 1):
            try:
                response = self._http.request(method, path, **request)
            except httpx.HTTPError as error:
                if attempt + 1 < (RETRIES if again else 1):
                    time.sleep(0.3 * (attempt + 1))
                    continue
                fix = "is it http://, not https://?" if "SSL" in str(error) else "is `stretto serve` running?"
                raise ServerError(f"the job server at {self.url} cannot be reached ({error}): {fix}") from error
            if response.status_code == 429 and attempt + 1 < (RETRIES if again else 1):
                time.sleep(min(5.0, float(response.headers.get("retry-after", "1"))))
                continue
            if response.status_code >= 400:
                raise _error(response)
            return response
        raise AssertionError("not reached")


def _error(response: httpx.Response) -> ServerError:
    where = f"{response.request.url.scheme}://{response.request.url.netloc.decode()}"
    if response.status_code == 401:
        text = f"the job server {where} does not accept this token: it is wrong, expired or revoked. Set STRETTO_TOKEN, or ask an "
        return ServerError(text + "administrator for another one (`stretto tokens create`)", status=401)
    try:
        body = response.json()
        return ServerError(str(body["detail"]), status=response.status_code, errors=list(body.get("errors", [])))
    except (ValueError, KeyError, TypeError):
        text = f"{where} answered {response.status_code}, and not as a stretto job server does: is the address right?"
        return ServerError(text, status=response.status_code)


def frames(lines: Iterator[str]) -> Iterator[Frame]:
    """Server-sent events from lines."""
    kind, data, number = "message", "", None
    for line in lines:
        if not line:
            if data:
                yield Frame(kind, json.loads(data), number)
            kind, data, number = "message", "", None
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            data += line[6:]
        elif line.startswith("id: ") and line[4:].isdigit():
            number = int(line[4:])
