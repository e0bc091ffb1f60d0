"""`stretto show`: one run, from its folder and from its agent."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from stretto.agent.records.run_folder import RunFolder
from stretto.cli.common import Json, Run, Runs, emit, folder_of, standing
from stretto.core.journal import JournalEvent, Record, Switch

SHOWN = 40
QUIET = {"started", "ready", "finished"}


def command(run: Run, *, runs: Runs = None, json: Json = False) -> None:
    folder = folder_of(run, runs)
    asked, now, records = folder.read(folder.request) or {}, standing(folder), folder.records()
    switches = [one for one in records if isinstance(one, Switch)]
    if json:
        return emit({**now, "asked": asked, "switches": [_switch(one) for one in switches]})
    console = Console(highlight=False)
    console.print(_facts(folder, asked, now))
    if switches:
        console.print()
        console.print(_changes(switches))
    told = [one for one in records if isinstance(one, JournalEvent) and one.what not in QUIET][-SHOWN:]
    if told:
        console.print()
        console.print(_events(records, told))


def _facts(folder: RunFolder, asked: dict[str, Any], now: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    facts = {
        "run": folder.name,
        "folder": str(folder.path),
        "state": now["state"],
        "script": " ".join([str(asked.get("script", "")), *asked.get("args", [])]),
        "workers": _workers(asked, now),
        "steps": now.get("steps"),
        "metrics": ", ".join(f"{name} {value:.6g}" for name, value in (now.get("metrics") or {}).items()),
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


def _workers(asked: dict[str, Any], now: dict[str, Any]) -> str:
    bounds = f"{asked.get('least')} to {asked.get('most')}"
    if "members" not in now:
        return bounds
    names = ", ".join(f"{one['worker']} (pid {one['pid']}, {one['phase']})" for one in now["workers"])
    return f"{now['members']} ({bounds}): {names}"


def _switch(one: Switch) -> dict[str, Any]:
    return {
        "number": one.number,
        "step": one.step,
        "workers": one.workers,
        "cause": one.cause,
        "joined": one.joined,
        "left": one.left,
        "pause_ms": one.pause_ms,
        "switch_ms": one.switch_ms,
    }


def _changes(switches: list[Switch]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("roster", "from step", "workers", "why", "joined", "left", "pause (ms)"):
        table.add_column(title, justify="left" if title in ("why", "joined", "left") else "right")
    for one in switches[-SHOWN:]:
        table.add_row(
            str(one.number),
            str(one.step),
            str(one.workers),
            one.cause,
            " ".join(one.joined),
            " ".join(one.left),
            f"{one.pause_ms:.1f}" if one.cause != "start" and one.pause_ms is not None else "",
        )
    return table


def _events(records: list[Record], told: list[JournalEvent]) -> Table:
    began = records[0].t if records else 0.0
    table = Table(box=None, pad_edge=False)
    for title in ("seconds", "what", "who", "text"):
        table.add_column(title, justify="right" if title == "seconds" else "left", overflow="fold")
    for one in told:
        table.add_row(f"{one.t - began:.2f}", one.what, one.worker or "", one.text)
    return table
