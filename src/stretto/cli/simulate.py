"""`stretto simulate`: what a policy would make of a workload, on virtual time."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.options import Output, OutputFormat
from stretto.cli.printing import emit
from stretto.core.errors import UsageError

if TYPE_CHECKING:
    from stretto.simulation.cluster.engine import SimulationResult, SimulationSettings
    from stretto.simulation.cluster.trace import TraceJob

COLUMNS = (
    ("average", "average_s", "time"),
    ("median", "median_s", "time"),
    ("p99", "p99_s", "time"),
    ("maximum", "maximum_s", "time"),
    ("makespan", "makespan_s", "time"),
    ("utilisation", "utilisation", "share"),
    ("restarts", "restarts", "count"),
    ("GPU-hours", "slot_hours", "number"),
    ("cost", "cost", "number"),
    ("worst fairness", "fairness_worst", "number"),
    ("unfair > 2", "fairness_above_2", "share"),
    ("a decision", "decision_s", "milliseconds"),
)


def command(
    workload: Annotated[Path | None, typer.Argument(metavar="WORKLOAD.csv", help="A row for each job.", show_default=False)] = None,
    policy: Annotated[str, typer.Option("--policy", help="Policies, separated by commas.")] = "goodput",
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="COUNTxSLOTS[:KIND][@PRICE][*SPEED][~RECLAIMS], … [default: 16x4]")
    ] = None,
    restart_cost: Annotated[
        str, typer.Option("--restart-cost", help="Seconds that a change stops a job, or `measured`: stretto's own.")
    ] = "30",
    pause: Annotated[float, typer.Option("--pause", help="With `measured`: seconds that the others pause at a change.")] = 0.3,
    start_up: Annotated[float, typer.Option("--start-up", help="With `measured`: seconds until a newcomer is ready.")] = 10.0,
    declared: Annotated[bool, typer.Option("--declared", help="Jobs declare their lengths; policies may use them.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Policies are told how much work finished jobs of the same application took.")
    ] = False,
    batching: Annotated[
        str | None, typer.Option("--batch", help="fixed, linear or adaptive [default: what the policy presupposes]")
    ] = None,
    period: Annotated[float, typer.Option("--period", help="Seconds between decisions.")] = 60.0,
    on_events: Annotated[bool, typer.Option("--on-events", help="Decide also when jobs come and go.")] = False,
    as_server: Annotated[
        bool,
        typer.Option(
            "--as-server",
            help="Decide as the job server does: with room for waiting jobs, turns and guards; --from-server always does.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="For noise, failures, reclaims and random policies.")] = 0,
    noise: Annotated[float, typer.Option("--noise", help="Relative error of what jobs measure.")] = 0.0,
    failures: Annotated[float, typer.Option("--failures", help="Failures of each node in a day.")] = 0.0,
    interference: Annotated[float, typer.Option("--interference", help="Speed lost by spread jobs that share a node.")] = 0.0,
    profiles: Annotated[Path | None, typer.Option("--profiles", help="Folder of measured applications.")] = None,
    server: Annotated[str | None, typer.Option("--from-server", metavar="URL", help="Replay what a job server recorded.")] = None,
    hours: Annotated[float | None, typer.Option("--hours", help="With --from-server: how far back.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw completion times and Gantt charts.")] = None,
    output: Output = OutputFormat.TABLE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    # The fits are tiny: threads of the linear algebra would only get in each other's way. Read when numpy is first loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stretto.scheduling.pipeline import PipelineSettings
    from stretto.simulation.cluster.cluster_spec import read_cluster
    from stretto.simulation.cluster.report import figures

    names = _policies(policy)
    if batching not in (None, "fixed", "linear", "adaptive"):
        raise UsageError(f"--batch {batching}: write fixed, linear or adaptive")
    trace, own_nodes = _trace(workload, server, profiles, hours)
    cluster = read_cluster(nodes or "16x4")
    machines = cluster.nodes if nodes is not None or not own_nodes else own_nodes
    settings = _settings(restart_cost, pause, start_up, period, on_events, seed, noise, failures, interference, cluster)
    settings = replace(settings, history=history)
    if as_server or server is not None:
        settings = replace(settings, pipeline=PipelineSettings())
    outcomes: dict[str, SimulationResult] = {}
    for name in names:
        outcomes[name] = _run(name, trace, machines, settings, declared, batching, seed, quiet or not sys.stderr.isatty())
    results = {name: figures(outcome).document() for name, outcome in outcomes.items()}
    if plot is not None:
        from stretto.simulation.cluster.plot import plot as draw

        draw(outcomes, plot)
    if output is OutputFormat.TABLE:
        return _table(results, f"{server or workload}: {len(trace)} jobs on {sum(node.slots for node in machines)} slots")
    own = ", ".join(f"{node.name}:{node.slots}" for node in own_nodes)
    emit(
        {
            "workload": server or str(workload),
            "nodes": nodes or own or "16x4",
            "restart_cost": restart_cost,
            "declared": declared,
            "history": history,
            "seed": seed,
            "policies": results,
        },
        output,
    )


def _policies(text: str) -> list[str]:
    from stretto.scheduling.registry import names

    known = names()
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise UsageError(f"--policy {name}: there is no such policy: use {', '.join(known)}")
    if not chosen:
        raise UsageError(f"--policy is empty: use one or more of {', '.join(known)}")
    return list(dict.fromkeys(chosen))


def _trace(
    workload: Path | None, server: str | None, profiles: Path | None, hours: float | None
) -> tuple[list[TraceJob], tuple[Any, ...]]:
    if (workload is None) == (server is None):
        raise UsageError("give either a WORKLOAD.csv or --from-server URL")
    if server is not None:
        from stretto.server.client import find_server
        from stretto.simulation.cluster.recorded_trace import from_server

        found = find_server(server)
        recorded = from_server(server, token=found[1] if found else None, hours=hours)
        if recorded.left_out:
            typer.echo(f"{len(recorded.left_out)} jobs are left out: no steps, batch or speed of theirs was recorded", err=True)
        return list(recorded.jobs), recorded.nodes
    from stretto.simulation.cluster.trace import read_trace

    assert workload is not None
    return read_trace(workload, profiles_folder=profiles), ()


def _settings(
    restart_cost: str,
    pause: float,
    start_up: float,
    period: float,
    on_events: bool,
    seed: int,
    noise: float,
    failures: float,
    interference: float,
    cluster: Any,
) -> SimulationSettings:
    from stretto.simulation.cluster.engine import SimulationSettings
    from stretto.simulation.cluster.faults import FaultModel
    from stretto.simulation.cluster.job import RestartCost, StopFree

    for name, value, high in (
        ("--pause", pause, 1e6),
        ("--start-up", start_up, 1e6),
        ("--noise", noise, 1.0),
        ("--failures", failures, 1e3),
        ("--interference", interference, 0.99),
    ):
        if not 0 <= value <= high:
            raise UsageError(f"{name} {value:g}: it has to be from 0 to {high:g}")
    if not 1 <= period <= 86400:
        raise UsageError(f"--period {period:g}: it has to be from 1 to 86400 seconds")
    if seed < 0:
        raise UsageError(f"--seed {seed}: it has to be 0 or more")
    if restart_cost == "measured":
        costs = StopFree(pause_s=pause, start_s=start_up)
    else:
        try:
            seconds = float(restart_cost)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= 1e6:
            raise UsageError(f"--restart-cost {restart_cost}: write seconds, for instance 30, or `measured`")
        costs = RestartCost(seconds)
    weather = FaultModel(seed=seed, noise=noise, failures_per_day=failures, reclaims_per_hour=cluster.reclaims_per_hour)
    return SimulationSettings(
        period_s=period, on_events=on_events, costs=costs, weather=weather, interference=interference, speeds=cluster.speeds
    )


def _run(
    name: str,
    trace: list[TraceJob],
    machines: Any,
    settings: SimulationSettings,
    declared: bool,
    batching: str | None,
    seed: int,
    quiet: bool,
) -> SimulationResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stretto.scheduling.registry import load
    from stretto.simulation.cluster.build import build
    from stretto.simulation.cluster.engine import Simulation

    jobs = build(trace, policy=name, batching=batching, declared=declared, costs=settings.costs)
    simulation = Simulation(jobs, machines, load(name, seed=seed), settings)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[clock]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=len(jobs), clock="")
        return simulation.run(lambda now, done, _: bar.update(task, completed=done, clock=f"hour {now / 3600:.1f}"))


def _table(results: dict[str, dict[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")
    for label, key, form in COLUMNS:
        table.add_row(label, *(_figure(values[key], form) for values in results.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _figure(value: float, form: str) -> str:
    if form == "time":
        return f"{value:.0f} s" if value < 3600 else f"{value / 3600:.2f} h"
    if form == "share":
        return f"{value:.1%}"
    if form == "milliseconds":
        return f"{value * 1e3:.1f} ms"
    return f"{value:,.0f}" if form == "count" else f"{value:,.2f}"
