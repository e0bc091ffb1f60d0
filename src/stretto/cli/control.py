"""Verbs that change a run or a job: scale, stop, drain, pause, cancel, rm."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from typer import Argument, Option

from stretto.agent.control_server import ask
from stretto.agent.records.run_folder import RunFolder
from stretto.cli import server_commands
from stretto.cli.options import (
    JobName,
    Json,
    Output,
    OutputFormat,
    Pin,
    Run,
    Runs,
    Server,
    Store,
    StoreCa,
    StoreCert,
    StoreKey,
    StoreToken,
    Wait,
    output_format,
    store_options,
)
from stretto.cli.printing import emit, show
from stretto.cli.targets import Document, client, folder_of, on_server, run_status
from stretto.core.errors import JobFailed
from stretto.core.json_types import to_int, to_list
from stretto.core.text import quantity

POLL_S = 0.1


def scale(
    run: Run,
    workers: Annotated[int, Argument(help="The new number of workers.")],
    *,
    wait: Annotated[bool, Option("--wait", help="Return when the run trains with this number.")] = False,
    timeout: Wait = 300.0,
    runs: Runs = None,
    json: Json = False,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
    pin: Pin = False,
    store: Store = None,
    store_token: StoreToken = None,
    store_ca: StoreCa = None,
    store_cert: StoreCert = None,
    store_key: StoreKey = None,
) -> None:
    """Changes the number of workers of a local run, of a job of the server, or of a job on several hosts."""
    output = output_format(json, output)
    if store is not None:
        from stretto.cli import store_commands

        shared = store_options(store, run, token=store_token, ca=store_ca, cert=store_cert, key=store_key)
        return asyncio.run(store_commands.scale(shared, run, workers, output, wait=wait, timeout_s=timeout))
    if on_server(server, runs, run):
        return server_commands.scale(run, workers, server, output, pin=pin)
    folder = folder_of(run, runs)
    status = ask(folder, "scale", workers=workers)
    if wait:
        status = _wait_for_workers(folder, workers, timeout_s=timeout)
    if output is not OutputFormat.TABLE:
        return emit(status, output)
    if wait:
        return print(f"{folder.name}: {quantity(to_int(status['members']), 'worker')}")
    same = status["members"] == workers and status.get("settled", True)
    print(f"{folder.name}: {'already at ' if same else ''}{quantity(workers, 'worker')}{'' if same else ' wanted'}")


def _wait_for_workers(folder: RunFolder, workers: int, *, timeout_s: float) -> Document:
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


def stop(
    run: Run,
    *,
    now: Annotated[bool, Option("--now", help="Do not wait for the current step.")] = False,
    wait: Annotated[bool, Option("--wait", help="Return when it has ended.")] = False,
    timeout: Wait = 120.0,
    runs: Runs = None,
    json: Json = False,
    store: Store = None,
    store_token: StoreToken = None,
    store_ca: StoreCa = None,
    store_cert: StoreCert = None,
    store_key: StoreKey = None,
) -> None:
    """Ends a local run or a job on several hosts."""
    output = output_format(json, OutputFormat.TABLE)
    if store is not None:
        from stretto.cli import store_commands

        shared = store_options(store, run, token=store_token, ca=store_ca, cert=store_cert, key=store_key)
        return asyncio.run(store_commands.stop(shared, run, output, now=now, wait=wait, timeout_s=timeout))
    folder = folder_of(run, runs)
    ask(folder, "stop", now=now)
    deadline = time.monotonic() + timeout
    while wait and folder.read(folder.result) is None:
        if time.monotonic() > deadline:
            raise JobFailed(f"run {folder.name!r} has not ended after {timeout:g} s: try `stretto stop --now {folder.name}`")
        time.sleep(POLL_S)
    if json:
        return emit(run_status(folder))
    print(f"{folder.name}: {run_status(folder)['state'] if wait else 'stopping'}")


def drain(
    run: Run,
    *,
    agent: Annotated[str | None, Option(help="The agent to drain [default: the one that answers].", show_default=False)] = None,
    runs: Runs = None,
    json: Json = False,
    store: Store = None,
    store_token: StoreToken = None,
    store_ca: StoreCa = None,
    store_cert: StoreCert = None,
    store_key: StoreKey = None,
) -> None:
    """An agent's workers leave at the next step boundary; the last agent saves a checkpoint and stops the job."""
    if store is not None:
        from stretto.cli import store_commands

        shared = store_options(store, run, token=store_token, ca=store_ca, cert=store_cert, key=store_key)
        return asyncio.run(store_commands.drain(shared, run, output_format(json, OutputFormat.TABLE), agent=agent))
    answer = ask(folder_of(run, runs), "drain", agent=agent)
    if json:
        return emit(answer)
    if not answer["stops"]:
        print(f"agent {answer['agent']}: {quantity(len(to_list(answer['leaving'])), 'worker')} to leave at the next step boundary")
    elif answer["checkpoint"]:
        print(f"agent {answer['agent']} is the last one: the job stops at the next step boundary, with a checkpoint")
    else:
        print(f"agent {answer['agent']} is the last one: the job stops at the next step boundary; there is no --checkpoint")


def pause(job: JobName, *, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """Pauses a job of the server."""
    with client(server) as api:
        server_commands.print_state(api.pause(job), output)


def cancel(job: JobName, *, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """Cancels a job of the server."""
    with client(server) as api:
        server_commands.print_state(api.cancel(job), output)


def remove(
    jobs: Annotated[list[str], Argument(metavar="JOB…", help="Ids or names.", show_default=False)],
    *,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Removes ended jobs and their folders."""
    with client(server) as api:
        removed = [api.job(job) for job in jobs]
        for job, named in zip(removed, jobs, strict=True):
            api.remove(job.id)
            if output is OutputFormat.TABLE:
                print(f"{named} is removed")
    show(removed, output)
