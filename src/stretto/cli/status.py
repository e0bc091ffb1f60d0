"""Verbs that list runs and show one: ps, show."""

from __future__ import annotations

import asyncio
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Option

from stretto.agent.records.run_folder import RunFolder, every
from stretto.cli import server_commands
from stretto.cli.options import (
    Json,
    Output,
    OutputFormat,
    Run,
    Runs,
    Server,
    Store,
    StoreCa,
    StoreCert,
    StoreKey,
    StoreToken,
    output_format,
    store_options,
)
from stretto.cli.printing import emit, table
from stretto.cli.targets import Document, folder_of, mention_server, on_server, run_status, runs_folder
from stretto.core.errors import UsageError
from stretto.core.journal import JournalEvent, Record, Switch

LISTED = 20
SHOWN = 40
ROUTINE = {"started", "ready", "finished"}
"""Events that `show` leaves out."""


def ps(
    *,
    runs: Runs = None,
    all: Annotated[bool, Option("--all", "-a", help=f"All, not only the last {LISTED}.")] = False,
    json: Json = False,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
    store: Store = None,
    store_token: StoreToken = None,
    store_ca: StoreCa = None,
    store_cert: StoreCert = None,
    store_key: StoreKey = None,
) -> None:
    """Lists local runs, jobs of the server, or jobs of a store."""
    output = output_format(json, output)
    if store is not None:
        from stretto.cli import store_commands

        shared = store_options(store, None, token=store_token, ca=store_ca, cert=store_cert, key=store_key)
        return asyncio.run(store_commands.ps(shared, output))
    if on_server(server, runs, None):
        return server_commands.ps(server, output, all=all)
    if runs is not None and not runs.is_dir():
        kind = "is not a folder" if runs.exists() else "does not exist"
        raise UsageError(f"--runs {runs} {kind}: name the folder that the runs are in")
    folders = list(every(runs_folder(runs)))
    rows = [_status_or_damage(folder) for folder in (folders if all else folders[-LISTED:])]
    if output is not OutputFormat.TABLE:
        return emit(rows, output)
    if rows:
        table(("run", "state", "workers", "step", "steps/s", "metrics"), [_cells(row) for row in rows])
    else:
        print(f"no runs in {runs_folder(runs)}")
    if runs is None:
        mention_server()


def _status_or_damage(folder: RunFolder) -> Document:
    """The line of a run; one with damaged files does not hide the others."""
    try:
        return run_status(folder)
    except UsageError as error:
        return {"name": folder.name, "state": "damaged", "error": str(error)}


def _metrics(status: Document) -> dict[str, float]:
    return status.get("metrics") or {}


def _cells(row: Document) -> list[str]:
    running = "members" in row
    workers = f"{row['members']} of {row['least']}:{row['most']}" if running else ""
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in list(_metrics(row).items())[:3])
    rate = f"{row['steps_per_s']:.1f}" if running else ""
    if row.get("stalled"):
        metrics = f"stalled: {row['stalled']}"
    return [str(row["name"]), str(row["state"]), workers, str(row.get("steps", "")), rate, metrics]


def show(run: Run, *, runs: Runs = None, json: Json = False, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """Shows one local run, from its folder and its agent, or one job of the server."""
    output = output_format(json, output)
    if on_server(server, runs, run):
        return server_commands.show_job(run, server, output)
    folder = folder_of(run, runs)
    request, now, records = folder.read(folder.request) or {}, run_status(folder), folder.records()
    switches = [record for record in records if isinstance(record, Switch)]
    if output is not OutputFormat.TABLE:
        return emit({**now, "asked": request, "switches": [_switch(switch) for switch in switches]}, output)
    console = Console(highlight=False)
    console.print(_facts(folder, request, now))
    if switches:
        console.print()
        console.print(_changes(switches))
    events = [record for record in records if isinstance(record, JournalEvent) and record.what not in ROUTINE][-SHOWN:]
    if events:
        console.print()
        console.print(_events(records, events))


def _facts(folder: RunFolder, request: Document, now: Document) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    facts = {
        "run": folder.name,
        "folder": str(folder.path),
        "state": now["state"],
        "script": " ".join([str(request.get("script", "")), *request.get("args", [])]),
        "workers": _workers(request, now),
        "steps": now.get("steps"),
        "metrics": ", ".join(f"{name} {value:.6g}" for name, value in _metrics(now).items()),
        "digest": now.get("digest"),
        "seconds": now.get("seconds"),
        "restarts": now.get("restarts"),
        "stalled": now.get("stalled"),
        "error": now.get("error"),
        "lost": now.get("lost"),
    }
    for name, value in facts.items():
        if value not in (None, ""):
            table.add_row(name, str(value))
    return table


def _workers(request: Document, now: Document) -> str:
    bounds = f"{request.get('least')} to {request.get('most')}"
    if "members" not in now:
        return bounds
    names = ", ".join(f"{worker['worker']} (pid {worker['pid']}, {worker['phase']})" for worker in now["workers"])
    return f"{now['members']} ({bounds}): {names}"


def _switch(switch: Switch) -> Document:
    return {
        "number": switch.number,
        "step": switch.step,
        "workers": switch.workers,
        "cause": switch.cause,
        "joined": switch.joined,
        "left": switch.left,
        "pause_ms": switch.pause_ms,
        "switch_ms": switch.switch_ms,
    }


def _changes(switches: list[Switch]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("roster", "from step", "workers", "why", "joined", "left", "pause (ms)"):
        table.add_column(title, justify="left" if title in ("why", "joined", "left") else "right")
    for switch in switches[-SHOWN:]:
        table.add_row(
            str(switch.number),
            str(switch.step),
            str(switch.workers),
            switch.cause,
            " ".join(switch.joined),
            " ".join(switch.left),
            f"{switch.pause_ms:.1f}" if switch.cause != "start" and switch.pause_ms is not None else "",
        )
    return table


def _events(records: list[Record], events: list[JournalEvent]) -> Table:
    began = records[0].t if records else 0.0
    table = Table(box=None, pad_edge=False)
    for title in ("seconds", "what", "who", "text"):
        table.add_column(title, justify="right" if title == "seconds" else "left", overflow="fold")
    for event in events:
        table.add_row(f"{event.t - began:.2f}", event.what, event.worker or "", event.text)
    return table
