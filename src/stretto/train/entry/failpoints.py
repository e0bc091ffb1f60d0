"""Named places where tests make a worker die: `STRETTO_FAILPOINT=name[:nth[:worker]]` kills it the nth time it passes there."""

from __future__ import annotations

import os
import signal

_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Dies here if told to."""
    wanted = os.environ.get("STRETTO_FAILPOINT")
    if not wanted:
        return
    parts = wanted.split(":")
    if parts[0] != name or (len(parts) > 2 and parts[2] != os.environ.get("STRETTO_WORKER")):
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] >= (int(parts[1]) if len(parts) > 1 else 1):
        os.kill(os.getpid(), signal.SIGKILL)
