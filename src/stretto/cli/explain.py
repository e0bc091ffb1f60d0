"""`stretto explain`: explains the batch sizes and worker counts of a run."""

from __future__ import annotations

from typing import Any, TypedDict

from rich.console import Console
from rich.table import Table

from stretto.cli import server_commands
from stretto.cli.options import Json, Output, OutputFormat, Run, Runs, Server, output_format
from stretto.cli.printing import emit
from stretto.cli.targets import folder_of, on_server
from stretto.core.journal import Commit, JournalEvent, JournalReport, Plan, Record, Switch, lives
from stretto.core.text import quantity

TOLD = ("autoscale", "straggler", "skipped", "scale", "memory")
SHOWN = 200


def command(run: Run, *, runs: Runs = None, json: Json = False, server: Server = None, output: Output = OutputFormat.TABLE) -> None:
    """Explains a local run from its journal, or a job of the server by its last decision."""
    output = output_format(json, output)
    if on_server(server, runs, run):
        return server_commands.explain(run, server, output)
    folder = folder_of(run, runs)
    records = lives(folder.records())
    lines = decisions(records)
    reports = [record for record in records if isinstance(record, JournalReport) and record.of == "job"]
    measured: dict[str, Any] | None = dict(reports[-1].metrics) if reports else None
    if output is not OutputFormat.TABLE:
        return emit({"run": folder.name, "decisions": lines, "measured": measured}, output)
    console = Console(highlight=False)
    console.print(_table(lines[-SHOWN:]) if lines else "nothing was decided: a fixed batch, and nobody asked for other workers")
    if measured is not None:
        console.print()
        console.print(_measured(measured))


class DecisionRow(TypedDict):
    """A decision about batch or workers."""

    seconds: float
    step: int
    what: str
    text: str


def decisions(records: list[Record]) -> list[DecisionRow]:
    """All decisions about batch and workers, in order, with their steps."""
    began = records[0].t if records else 0.0
    step = 0
    rows: list[DecisionRow] = []
    for record in records:
        match record:
            case Commit():
                step = record.step
            case Plan():
                parts = f" in {record.parts} parts a slice" if record.parts > 1 else ""
                factor = f", rate x{record.factor:.3g}" if record.factor != 1 else ""
                rows.append(_line(record.t - began, record.step, "batch", f"{record.batch}{parts}{factor}: {record.reason}"))
            case JournalEvent() if record.what in TOLD:
                rows.append(_line(record.t - began, step, record.what, record.text))
            case Switch() if record.cause in ("join", "leave", "balance"):
                pause = f", pause {record.pause_ms:.1f} ms" if record.pause_ms is not None else ""
                text = f"{quantity(record.workers, 'worker')}{pause}"
                rows.append(_line(record.t - began, record.step, record.cause, text))
            case _:
                pass
    return rows


def _line(seconds: float, step: int, what: str, text: str) -> DecisionRow:
    return {"seconds": round(seconds, 3), "step": step, "what": what, "text": text}


def _table(lines: list[DecisionRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("seconds", "step", "what", "why"):
        table.add_column(title, justify="right" if title in ("seconds", "step") else "left", overflow="fold")
    for line in lines:
        table.add_row(f"{line['seconds']:.2f}", str(line["step"]), line["what"], line["text"])
    return table


def _measured(metrics: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    noise, model, left = metrics.get("noise"), metrics.get("throughput"), metrics.get("remaining")
    table.add_row("progress", f"{metrics['progress']:.1f} steps of batch {metrics['range']['initial']}")
    table.add_row(
        "speed",
        f"{metrics['samples_per_s']:.1f} samples/s, goodput {metrics['goodput']:.1f} at efficiency {metrics['efficiency']:.3f}",
    )
    if noise:
        table.add_row("noise scale", f"{noise['scale']:.4g} samples, from {noise['measured']} steps ({noise['ignored']} ignored)")
    if model:
        table.add_row(
            "step time",
            f"{model['alpha_grad']:.3g} s + {model['beta_grad']:.3g} s a sample; exchange "
            f"{model['alpha_within']:.3g} s; confidence {model['confidence']:.2f}",
        )
    if left and left.get("seconds") is not None:
        table.add_row("remaining", f"{left['samples']} samples, about {left['seconds']:.0f} s")
    return table
