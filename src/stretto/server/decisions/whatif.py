"""What another policy would have done: the last hours, replayed in a process with a time limit, a few at a time."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from stretto.core.text import quantity
from stretto.server import models
from stretto.server.decisions.traces import trace_of

if TYPE_CHECKING:
    from stretto.server.app import Server

LIMIT_S = 60.0
AT_ONCE = 2
MOST_ANSWER = 16 << 20

_running = 0


async def what_if(server: Server, *, tenant: str | None, policy: str, baseline: str, hours: float) -> models.WhatIf:
    global _running
    if _running >= AT_ONCE:
        raise HTTPException(429, f"{AT_ONCE} questions of this kind are being answered: try again in a minute")
    trace = trace_of(server, tenant=tenant, hours=hours)
    request = {
        "rows": [row.model_dump(mode="json") for row in trace.items],
        "nodes": trace.nodes,
        "kinds": trace.kinds,
        "policies": [baseline, policy],
        "period_s": server.settings.interval_s,
        "cooldown_s": server.settings.cooldown_s,
        "turn_s": server.settings.turn_s,
        "quota": server.settings.quota,
    }
    _running += 1
    try:
        answer = await _replay(json.dumps(request).encode())
    finally:
        _running -= 1
    if "error" in answer:
        raise HTTPException(422, f"the replay has failed: {str(answer['error'])[:500]}")
    first, second = (models.Outcome(**outcome) for outcome in answer["answers"])
    ratio = second.average_s / first.average_s if first.average_s else 1.0
    return models.WhatIf(
        hours=hours, jobs=len(first.jobs), baseline=first, other=second, ratio=ratio, sentence=_sentence(first, second, ratio)
    )


async def _replay(request: bytes) -> dict[str, Any]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "stretto.server.decisions.replay",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MOST_ANSWER,
    )
    try:
        out, _ = await asyncio.wait_for(child.communicate(request), LIMIT_S)
        return json.loads(out)
    except TimeoutError:
        raise HTTPException(422, f"the replay took more than {LIMIT_S:g} s: ask for fewer hours") from None
    except ValueError:
        raise HTTPException(422, "the replay has ended without an answer") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def _sentence(first: models.Outcome, second: models.Outcome, ratio: float) -> str:
    if not first.jobs:
        return "Nothing was measured in these hours: let some jobs run first."
    words = (
        "the same average completion time"
        if abs(ratio - 1) < 0.005
        else (f"an average completion time {abs(1 - ratio):.0%} {'shorter' if ratio < 1 else 'longer'}")
    )
    return f"With '{second.policy}' instead of '{first.policy}', {quantity(len(first.jobs), 'job')} would have had {words}."
