"""`stretto drain`: an agent's workers leave at the next step boundary; the last agent takes a checkpoint and stops the job."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from stretto.agent.control_server import ask
from stretto.cli.common import Json, Run, Runs, emit, folder_of
from stretto.core.text import quantity


def command(
    run: Run,
    *,
    agent: Annotated[str | None, Option(help="Which agent [default: the one that answers].", show_default=False)] = None,
    runs: Runs = None,
    json: Json = False,
) -> None:
    answer = ask(folder_of(run, runs), "drain", agent=agent)
    if json:
        return emit(answer)
    if not answer["stops"]:
        print(f"agent {answer['agent']}: {quantity(len(answer['leaving']), 'worker')} to leave at the next step boundary")
    elif answer["checkpoint"]:
        print(f"agent {answer['agent']} is the last one: the job stops at the next step boundary, with a checkpoint")
    else:
        print(f"agent {answer['agent']} is the last one: the job stops at the next step boundary; there is no --checkpoint")
