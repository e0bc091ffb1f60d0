"""Requests to a run's agent through its control port (docs/explanation/architecture.md)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

from stretto.core.errors import StrettoError

MOST_ANSWER = 1 << 20


class AgentUnreachable(StrettoError):
    """The agent does not answer: it has not started yet, or it has ended."""


class AgentRefused(StrettoError):
    """The agent refused the request."""


async def ask(folder: Path, verb: str, *, timeout_s: float = 2.0, **fields: object) -> dict[str, object]:
    """Sends one request and returns the answer. `AgentUnreachable` if none comes in time, `AgentRefused` if the agent says no."""
    try:
        control = json.loads((folder / "control.json").read_text())
        line = json.dumps({"token": control["token"], "verb": verb, **fields}) + "\n"
        answer = json.loads(await asyncio.wait_for(_exchange(int(control["port"]), line.encode()), timeout_s))
    except (OSError, ValueError, KeyError, TypeError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise AgentUnreachable(f"the agent of run '{folder.name}' does not answer: {type(error).__name__}") from error
    if not isinstance(answer, dict) or not cast(dict[str, object], answer).get("ok"):
        text = cast(dict[str, object], answer).get("error", "?") if isinstance(answer, dict) else "?"
        raise AgentRefused(f"the agent of run '{folder.name}' refuses to {verb}: {str(text)[:500]}")
    return cast(dict[str, object], answer)


async def _exchange(port: int, line: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MOST_ANSWER)
    try:
        writer.write(line)
        await writer.drain()
        return await reader.readuntil(b"\n")
    finally:
        writer.close()
