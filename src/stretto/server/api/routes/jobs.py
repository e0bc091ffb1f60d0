"""Jobs: submit, list, show, change, end."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Path, Query, Response
from fastapi.responses import Response as Raw
from sqlalchemy import exc

from stretto.core.text import quantity
from stretto.server import models
from stretto.server.api import views
from stretto.server.api.problems import NotValid
from stretto.server.api.routes.auth import PROBLEMS, SUBMIT, VIEW, Caller, Guarded, Who, version_of
from stretto.server.api.sse import dump
from stretto.server.jobs.command import refusal, scales, work_of
from stretto.server.jobs.state import JobRecord, NewEvent
from stretto.server.models import ENDED, JobState
from stretto.server.spec import JobSpec
from stretto.server.storage.repository import KeyRow
from stretto.server.storage.tokens import make_id

LOOKS, LOOK_S = 20, 0.05
"""How often, and in what interval, a repeated submit looks for the job of the first one."""
AT_ONCE = 50
"""Lines of a list that are written before other requests get their turn."""

router = APIRouter(prefix="/v1/jobs", route_class=Guarded, tags=["jobs"], responses=PROBLEMS)

JobId = Annotated[models.JobId, Path(description="the job's id")]
IfMatch = Annotated[str | None, Header(description="the version that this change is meant for", max_length=64)]


def _etag(response: Response, record: JobRecord) -> None:
    response.headers["etag"] = f'"{record.version}"'


@router.get("", response_model=models.JobPage, openapi_extra=VIEW)
async def list_jobs(
    who: Who,
    state: Annotated[list[JobState] | None, Query(max_length=16)] = None,
    name: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> Raw:
    """Newest first. `name` finds jobs whose name contains it."""
    records = [record for record in who.server.book.records.values() if views.seen(record, who.tenant)]
    if state:
        records = [record for record in records if record.state in state]
    if name:
        records = [record for record in records if name in record.name]
    records.sort(key=_place, reverse=True)
    total = len(records)
    if cursor is not None:
        before = _read_cursor(cursor)
        records = [record for record in records if _place(record) < before]
    lines: list[str] = []
    for begin in range(0, min(limit, len(records)), AT_ONCE):
        some = records[begin : min(limit, begin + AT_ONCE)]
        lines += [line for record in some if (line := who.server.lines.of(record.id, who.tenant)) is not None]
        await asyncio.sleep(0)
    following = dump(_write_cursor(records[limit - 1])) if len(records) > limit else "null"
    return Raw(f'{{"items":[{",".join(lines)}],"next":{following},"total":{total}}}', media_type="application/json")


def _place(record: JobRecord) -> tuple[float, str]:
    return record.submitted_at, record.id


def _write_cursor(record: JobRecord) -> str:
    return base64.urlsafe_b64encode(json.dumps(_place(record)).encode()).decode()


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        at, job = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return float(at), str(job)
    except (ValueError, TypeError, UnicodeError):
        raise HTTPException(400, "cursor: this is not one that a list has given") from None


@router.post(
    "", response_model=models.JobDetails, status_code=201, openapi_extra=SUBMIT, responses={200: {"model": models.JobDetails}}
)
async def submit(
    who: Who,
    response: Response,
    spec: JobSpec,
    idempotency_key: Annotated[str | None, Header(max_length=128, pattern=r"^[\x21-\x7e]+$")] = None,
) -> models.JobDetails:
    """Queues a job. With an `Idempotency-Key`, a repeated request returns the job of the first one."""
    server, tenant = who.server, who.token.tenant
    digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
    if idempotency_key is not None and (old := await _repeated(who, idempotency_key, digest)) is not None:
        response.status_code = 200
        return who.view(old)
    if len(server.book.records) >= server.settings.most_jobs:
        raise HTTPException(429, f"{len(server.book.records)} jobs are kept, at most {server.settings.most_jobs}: remove old ones")
    if (text := refusal(spec)) is not None:
        raise NotValid("run", text)
    if (text := await server.cluster.check(work_of(spec), workdir=spec.workdir, env=spec.envs)) is not None:
        at, _, words = text.partition(": ")
        raise NotValid(at, words)
    job = make_id("j")
    draft = NewEvent(
        "submitted", f"submitted as '{spec.name}'", {"id": job, "tenant": tenant, "spec": spec.model_dump(mode="json")}
    )
    key: KeyRow | None = None
    if idempotency_key is not None:
        key = {"tenant": tenant, "key": idempotency_key, "digest": digest, "job": job, "t": time.time()}
    try:
        record = await server.book.append(job, [draft], key=key)
    except exc.IntegrityError:
        # The same key at the same moment: the other request was first.
        old = await _repeated(who, str(idempotency_key), digest)
        if old is None:
            raise HTTPException(409, "this Idempotency-Key is being used: try again") from None
        response.status_code = 200
        return who.view(old)
    server.conductor.trigger(f"{spec.name} arrived")
    _etag(response, record)
    response.headers["location"] = f"/v1/jobs/{job}"
    return who.view(record)


async def _repeated(who: Caller, key: str, digest: str) -> JobRecord | None:
    earlier = who.server.storage.key(who.token.tenant, key)
    if earlier is None:
        return None
    if earlier[0] != digest:
        raise HTTPException(422, "this Idempotency-Key was used for another job: make a new one for each job")
    for _ in range(LOOKS):  # stored by a request of the same moment, and about to be in the book
        record = who.server.book.records.get(earlier[1])
        if record is not None:
            break
        await asyncio.sleep(LOOK_S)
    else:
        raise HTTPException(409, f"this Idempotency-Key was used for job {earlier[1]}, which has been removed")
    return record


@router.get("/{job}", response_model=models.JobDetails, openapi_extra=VIEW)
async def show(who: Who, response: Response, job: JobId) -> models.JobDetails:
    record = who.record(job)
    _etag(response, record)
    return who.view(record)


@router.patch("/{job}", response_model=models.JobDetails, openapi_extra=SUBMIT)
async def change(who: Who, response: Response, job: JobId, body: models.JobChange, if_match: IfMatch = None) -> models.JobDetails:
    """Changes priority, deadline, price limit or plan. `{"wish": null}` removes a wish or a pin."""
    record = who.record(job)
    data: dict[str, object] = {
        key: value
        for key, value in body.model_dump(mode="json", exclude_unset=True).items()
        if key != "priority" or value is not None
    }
    if "plan" in data:
        data["plan"] = data["plan"] or list[object]()
        _check_plan(record, data["plan"])
    if not data:
        raise HTTPException(422, "nothing to change: give priority, deadline, price_limit, plan or wish")
    draft = NewEvent("changed", "changed: " + ", ".join(sorted(data)), data)
    return await _append(who, response, record, draft, if_match)


def _check_plan(record: JobRecord, plan: object) -> None:
    try:
        type(record.spec.elastic).model_validate({**record.spec.elastic.model_dump(mode="json"), "plan": plan})
    except ValueError as error:
        raise HTTPException(422, f"plan: {str(error).splitlines()[-2].strip()[:300]}") from None


@router.post("/{job}/scale", response_model=models.JobDetails, openapi_extra=SUBMIT)
async def scale(who: Who, response: Response, job: JobId, body: models.ScaleWish, if_match: IfMatch = None) -> models.JobDetails:
    """A wish that the policy respects within the limits; with `pin`, exactly this many."""
    record = who.record(job)
    if not scales(record.spec):
        raise HTTPException(422, f"job '{record.name}' is one plain process: only a script that stretto starts can be scaled")
    least, most = record.spec.elastic.min, record.spec.elastic.max
    if not least <= body.workers <= most:
        fix = "change elastic.min and elastic.max in the job file to allow more"
        raise HTTPException(422, f"workers={body.workers} is outside the job's limits {least} to {most}: {fix}")
    words = "pinned to" if body.pin else "asked for"
    draft = NewEvent("wished", f"{words} {quantity(body.workers, 'worker')}", {"workers": body.workers, "pin": body.pin})
    return await _append(who, response, record, draft, if_match)


@router.post("/{job}/pause", response_model=models.JobDetails, openapi_extra=SUBMIT)
async def pause(who: Who, response: Response, job: JobId, if_match: IfMatch = None) -> models.JobDetails:
    """Pauses a job: it gives its slots back at the next step boundary."""
    record = who.record(job)
    kind = "paused" if record.state is JobState.QUEUED else "pausing"
    draft = NewEvent(
        kind,
        "paused in the queue" if kind == "paused" else "pausing at the next step boundary",
        {"by": "user", "who": who.token.name},
    )
    return await _append(who, response, record, draft, if_match)


@router.post("/{job}/resume", response_model=models.JobDetails, openapi_extra=SUBMIT)
async def resume(who: Who, response: Response, job: JobId, if_match: IfMatch = None) -> models.JobDetails:
    return await _append(who, response, who.record(job), NewEvent("resumed", "back in the queue"), if_match)


@router.post("/{job}/cancel", response_model=models.JobDetails, openapi_extra=SUBMIT)
async def cancel(who: Who, response: Response, job: JobId, if_match: IfMatch = None) -> models.JobDetails:
    """Cancels a job. A job that has ended already stays as it is."""
    record = who.record(job)
    if record.state in ENDED or record.state is JobState.CANCELLING:
        return who.view(record)
    waiting = record.state in (JobState.QUEUED, JobState.PAUSED)
    draft = NewEvent("cancelled", "cancelled before it ran") if waiting else NewEvent("cancelling", "is being cancelled")
    return await _append(who, response, record, draft, if_match)


@router.delete("/{job}", status_code=204, openapi_extra=SUBMIT)
async def remove(who: Who, job: JobId, if_match: IfMatch = None) -> None:
    """Removes an ended job and its folders. Its events stay."""
    record = who.record(job)
    if record.state not in ENDED:
        raise HTTPException(409, f"job '{record.name}' is {record.state}: cancel it first")
    await who.server.book.remove(job, expected=version_of(if_match))
    runs = [record.id, *(f"{record.id}-{life}" for life in range(2, record.life + 1))]
    await who.server.cluster.delete(job, runs)


async def _append(who: Caller, response: Response, record: JobRecord, draft: NewEvent, if_match: str | None) -> models.JobDetails:
    after = await who.server.book.append(record.id, [draft], expected=version_of(if_match))
    who.server.conductor.trigger(f"{record.name} {draft.kind}")
    await who.server.conductor.apply()
    _etag(response, after)
    return who.view(after)
