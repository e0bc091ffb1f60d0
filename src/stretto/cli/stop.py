"""`stretto stop`: ends a run at its next step boundary, or now."""

from __future__ import annotations

import time
from typing import Annotated

from typer import Option

from stretto.agent.control_server import ask
from stretto.cli.common import Json, Run, Runs, emit, folder_of, standing
from stretto.core.errors import JobFailed

POLL_S = 0.1


def command(
    run: Run,
    *,
    now: Annotated[bool, Option("--now", help="Do not wait for the step in flight.")] = False,
    wait: Annotated[bool, Option("--wait", help="Return when it has ended.")] = False,
    timeout: Annotated[float, Option(help="Seconds to wait at most.")] = 120.0,
    runs: Runs = None,
    json: Json = False,
) -> None:
    folder = folder_of(run, runs)
    ask(folder, "stop", now=now)
    deadline = time.monotonic() + timeout
    while wait and folder.read(folder.result) is None:
        if time.monotonic() > deadline:
            raise JobFailed(f"run {folder.name!r} has not ended after {timeout:g} s: try `stretto stop --now {folder.name}`")
        time.sleep(POLL_S)
    if json:
        return emit(standing(folder))
    print(f"{folder.name}: {standing(folder)['state'] if wait else 'stopping'}")
