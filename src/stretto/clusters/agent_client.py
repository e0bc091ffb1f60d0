"""Asking a run's agent through its control port (docs/explanation/architecture.md)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from stretto.core.errors import StrettoError

MOST_ANSWER = 1 << 20


class AgentUnreachable(StrettoError):
    """The agent could not be asked: it is not there yet, or not any more."""


class Denied(StrettoError):
    """The agent has said no."""


async def ask(folder: Path, verb: str, *, timeout_s: float = 2.0, **more: Any) -> dict[str, Any]:
    """The agent's answer. `AgentUnreachable` if there is none in time, `Denied` if it refuses."""
    try:
        control = json.loads((folder / "control.json").read_text())
        line = json.dumps({"token": control["token"], "verb": verb, **more}) + "\n"
        answer = json.loads(await asyncio.wait_for(_exchange(int(control["port"]), line.encode()), timeout_s))
    except (OSError, ValueError, KeyError, TypeError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise AgentUnreachable(f"the agent of run '{folder.name}' does not answer: {type(error).__name__}") from error
    if not isinstance(answer, dict) or not answer.get("ok"):
        text = answer.get("error", "?") if isinstance(answer, dict) else "?"
        raise Denied(f"the agent of run '{folder.name}' refuses to {verb}: {str(text)[:500]}")
    return answer


async def _exchange(port: int, line: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MOST_ANSWER)
    try:
        writer.write(line)
        await writer.drain()
        return await reader.readuntil(b"\n")
    finally:
        writer.close()
