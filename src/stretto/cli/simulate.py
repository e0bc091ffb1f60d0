"""`stretto simulate`: runs policies on a workload, in virtual time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.options import Output, OutputFormat, verb_of
from stretto.cli.printing import emit
from stretto.core.errors import UsageError

if TYPE_CHECKING:
    from stretto.scheduling.types import ClusterNode
    from stretto.simulation.cluster.cluster_spec import ClusterSpec
    from stretto.simulation.cluster.engine import SimulationResult, SimulationSettings
    from stretto.simulation.cluster.job import RestartCost, StopFree
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


@dataclass(frozen=True, slots=True)
class SimulateFlags:
    """The options of `stretto simulate`: each field is an option, with its default."""

    workload: Annotated[Path | None, typer.Argument(metavar="WORKLOAD.csv", help="A row for each job.", show_default=False)] = None
    policy: Annotated[str, typer.Option("--policy", help="Policies, separated by commas.")] = "goodput"
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="COUNTxSLOTS[:KIND][@PRICE][*SPEED][~RECLAIMS], … [default: 16x4]")
    ] = None
    restart_cost: Annotated[
        str, typer.Option("--restart-cost", help="Seconds that a resize stops a job, or `measured`: as measured with stretto.")
    ] = "30"
    pause: Annotated[float, typer.Option("--pause", help="With `measured`: seconds that the other workers pause at a resize.")] = (
        0.3
    )
    start_up: Annotated[float, typer.Option("--start-up", help="With `measured`: seconds until a new worker is ready.")] = 10.0
    declared: Annotated[bool, typer.Option("--declared", help="Jobs declare their lengths; policies may use them.")] = False
    history: Annotated[
        bool, typer.Option("--history", help="Let policies see how much work finished jobs of the same application took.")
    ] = False
    batching: Annotated[
        str | None, typer.Option("--batch", help="fixed, linear or adaptive [default: what the policy presupposes]")
    ] = None
    period: Annotated[float, typer.Option("--period", help="Seconds between decisions.")] = 60.0
    on_events: Annotated[bool, typer.Option("--on-events", help="Also decide when jobs arrive and end.")] = False
    as_server: Annotated[
        bool,
        typer.Option(
            "--as-server",
            help="Decide as the job server does: with room for waiting jobs, turns and guards; --from-server always does.",
        ),
    ] = False
    seed: Annotated[int, typer.Option("--seed", help="For noise, failures, reclaims and random policies.")] = 0
    noise: Annotated[float, typer.Option("--noise", help="Relative error of measurements.")] = 0.0
    failures: Annotated[float, typer.Option("--failures", help="Failures per node and day.")] = 0.0
    interference: Annotated[float, typer.Option("--interference", help="Speed lost by spread jobs that share a node.")] = 0.0
    profiles: Annotated[Path | None, typer.Option("--profiles", help="Folder of measured applications.")] = None
    server: Annotated[str | None, typer.Option("--from-server", metavar="URL", help="Replay what a job server recorded.")] = None
    hours: Annotated[float | None, typer.Option("--hours", help="With --from-server: how far back.")] = None
    plot: Annotated[Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw completion times and Gantt charts.")] = None
    output: Output = OutputFormat.TABLE
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False


def simulate(_: typer.Context, flags: SimulateFlags) -> None:
    """Runs the workload under each policy, and prints their figures side by side."""
    # The fits are tiny: threads of the linear algebra would only get in each other's way. Read when numpy is first loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stretto.simulation.cluster.cluster_spec import read_cluster
    from stretto.simulation.cluster.report import figures

    names = _policies(flags.policy)
    if flags.batching not in (None, "fixed", "linear", "adaptive"):
        raise UsageError(f"--batch {flags.batching}: write fixed, linear or adaptive")
    trace, own_nodes = _trace(flags)
    cluster = read_cluster(flags.nodes or "16x4")
    machines = cluster.nodes if flags.nodes is not None or not own_nodes else own_nodes
    settings = _settings(flags, cluster)
    outcomes = {name: _run(name, trace, machines, settings, flags) for name in names}
    results = {name: figures(outcome).document() for name, outcome in outcomes.items()}
    if flags.plot is not None:
        from stretto.simulation.cluster.plot import plot as draw

        draw(outcomes, flags.plot)
    source = flags.server or str(flags.workload)
    if flags.output is OutputFormat.TABLE:
        return _table(results, f"{source}: {len(trace)} jobs on {sum(node.slots for node in machines)} slots")
    own = ", ".join(f"{node.name}:{node.slots}" for node in own_nodes)
    emit(
        {
            "workload": source,
            "nodes": flags.nodes or own or "16x4",
            "restart_cost": flags.restart_cost,
            "declared": flags.declared,
            "history": flags.history,
            "seed": flags.seed,
            "policies": results,
        },
        flags.output,
    )


command = verb_of(SimulateFlags, simulate)


def _policies(text: str) -> list[str]:
    from stretto.scheduling.registry import names

    policies = names()
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in policies:
            raise UsageError(f"--policy {name}: there is no such policy: use {', '.join(policies)}")
    if not chosen:
        raise UsageError(f"--policy is empty: use one or more of {', '.join(policies)}")
    return list(dict.fromkeys(chosen))


def _trace(flags: SimulateFlags) -> tuple[list[TraceJob], tuple[ClusterNode, ...]]:
    """The jobs to simulate, and the server's own nodes where a server has recorded them."""
    if (flags.workload is None) == (flags.server is None):
        raise UsageError("give either a WORKLOAD.csv or --from-server URL")
    if flags.server is not None:
        from stretto.server.client import find_server
        from stretto.simulation.cluster.recorded_trace import from_server

        login = find_server(flags.server)
        recorded = from_server(flags.server, token=login[1] if login else None, hours=flags.hours)
        if recorded.left_out:
            typer.echo(f"{len(recorded.left_out)} jobs are left out: no steps, batch or speed of theirs was recorded", err=True)
        return list(recorded.jobs), recorded.nodes
    from stretto.simulation.cluster.trace import read_trace

    assert flags.workload is not None
    return read_trace(flags.workload, profiles_folder=flags.profiles), ()


def _settings(flags: SimulateFlags, cluster: ClusterSpec) -> SimulationSettings:
    from stretto.scheduling.pipeline import POLICY_ALONE, PipelineSettings
    from stretto.simulation.cluster.engine import SimulationSettings
    from stretto.simulation.cluster.faults import FaultModel

    _check_ranges(flags)
    costs = _restart_costs(flags)
    weather = FaultModel(
        seed=flags.seed, noise=flags.noise, failures_per_day=flags.failures, reclaims_per_hour=cluster.reclaims_per_hour
    )
    return SimulationSettings(
        period_s=flags.period,
        on_events=flags.on_events,
        costs=costs,
        weather=weather,
        interference=flags.interference,
        speeds=cluster.speeds,
        history=flags.history,
        pipeline=PipelineSettings() if flags.as_server or flags.server is not None else POLICY_ALONE,
    )


def _check_ranges(flags: SimulateFlags) -> None:
    for name, value, high in (
        ("--pause", flags.pause, 1e6),
        ("--start-up", flags.start_up, 1e6),
        ("--noise", flags.noise, 1.0),
        ("--failures", flags.failures, 1e3),
        ("--interference", flags.interference, 0.99),
    ):
        if not 0 <= value <= high:
            raise UsageError(f"{name} {value:g}: it has to be from 0 to {high:g}")
    if not 1 <= flags.period <= 86400:
        raise UsageError(f"--period {flags.period:g}: it has to be from 1 to 86400 seconds")
    if flags.seed < 0:
        raise UsageError(f"--seed {flags.seed}: it has to be 0 or more")


def _restart_costs(flags: SimulateFlags) -> RestartCost | StopFree:
    from stretto.simulation.cluster.job import RestartCost, StopFree

    if flags.restart_cost == "measured":
        return StopFree(pause_s=flags.pause, start_s=flags.start_up)
    try:
        seconds = float(flags.restart_cost)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise UsageError(f"--restart-cost {flags.restart_cost}: write seconds, for instance 30, or `measured`")
    return RestartCost(seconds)


def _run(
    name: str, trace: list[TraceJob], machines: Sequence[ClusterNode], settings: SimulationSettings, flags: SimulateFlags
) -> SimulationResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stretto.scheduling.registry import load
    from stretto.simulation.cluster.build import build
    from stretto.simulation.cluster.engine import Simulation

    jobs = build(trace, policy=name, batching=flags.batching, declared=flags.declared, costs=settings.costs)
    simulation = Simulation(jobs, machines, load(name, seed=flags.seed), settings)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[clock]}"),
        TimeElapsedColumn(),
    )
    hidden = flags.quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
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
