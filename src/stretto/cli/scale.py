"""`stretto scale`: another number of workers, while the run trains."""

from __future__ import annotations

import time
from typing import Annotated, Any

from typer import Argument, Option

from stretto.agent.control_server import ask
from stretto.agent.records.run_folder import RunFolder
from stretto.cli.common import Json, Run, Runs, emit, folder_of
from stretto.core.errors import JobFailed
from stretto.core.text import quantity

POLL_S = 0.1


def command(
    run: Run,
    workers: Annotated[int, Argument(help="How many workers it shall have.")],
    *,
    wait: Annotated[bool, Option("--wait", help="Return when the run trains with so many.")] = False,
    timeout: Annotated[float, Option(help="Seconds to wait at most.")] = 300.0,
    runs: Runs = None,
    json: Json = False,
) -> None:
    folder = folder_of(run, runs)
    status = ask(folder, "scale", workers=workers)
    if wait:
        status = _wait(folder, workers, timeout_s=timeout)
    if json:
        return emit(status)
    if wait:
        return print(f"{folder.name}: {quantity(status['members'], 'worker')}")
    same = status["members"] == workers and status.get("settled", True)
    print(f"{folder.name}: {'already at ' if same else ''}{quantity(workers, 'worker')}{'' if same else ' wanted'}")


def _wait(folder: RunFolder, workers: int, *, timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        status = ask(folder, "status")
        if status["members"] == workers and status["settled"]:
            return status
        if time.monotonic() > deadline:
            raise JobFailed(
                f"run {folder.name!r} does not train with {quantity(workers, 'worker')} after {timeout_s:g} s (it has "
                f"{status['members']}): see `stretto logs {folder.name}`"
            )
        time.sleep(POLL_S)
