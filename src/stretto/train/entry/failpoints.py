"""Named places where tests make a worker die or wait.

`STRETTO_FAILPOINT=name[:nth[:worker]]` kills it the nth time it passes there. `STRETTO_FAILPOINT_PACE=name:file` makes every worker
sleep there for as many seconds as the file says, so that a test has time to change the workers of a script that trains in
milliseconds.
"""

from __future__ import annotations

import os
import signal
import time

_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Sleeps or dies here if told to."""
    place, _, file = os.environ.get("STRETTO_FAILPOINT_PACE", "").partition(":")
    if place == name:
        with open(file) as pace:
            time.sleep(float(pace.read()))
    wanted = os.environ.get("STRETTO_FAILPOINT")
    if not wanted:
        return
    parts = wanted.split(":")
    if parts[0] != name or (len(parts) > 2 and parts[2] != os.environ.get("STRETTO_WORKER")):
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] >= (int(parts[1]) if len(parts) > 1 else 1):
        os.kill(os.getpid(), signal.SIGKILL)
