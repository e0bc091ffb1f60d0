"""`stretto plot`: loss curves by step, workers over time, and what happened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Protocol, cast

import matplotlib
from typer import Argument, Option

from stretto.agent.records.run_folder import RunFolder, find
from stretto.cli.options import Runs
from stretto.cli.targets import runs_folder
from stretto.core.errors import UsageError
from stretto.core.journal import Commit, JournalEvent, Record, Switch, lives


class Picture(Protocol):
    """What is used of matplotlib's `Figure`, whose stubs leave `savefig` half untyped."""

    def savefig(self, fname: Path, *, dpi: int) -> object: ...


class Axes(Protocol):
    """What is used of matplotlib's `Axes`, whose stubs leave these methods half untyped."""

    def plot(self, x: Sequence[float], y: Sequence[float], fmt: str, *, color: str, markersize: float) -> object: ...

    def step(self, x: Sequence[float], y: Sequence[float], fmt: str, *, where: str, label: str, linewidth: float) -> object: ...

    def annotate(
        self,
        text: str,
        xy: tuple[float, float],
        *,
        xytext: tuple[float, float],
        textcoords: str,
        fontsize: float,
        color: str,
        ha: str,
        va: str,
    ) -> object: ...

    def get_ylim(self) -> tuple[float, float]: ...

    def set_ylim(self, *, bottom: float, top: float) -> object: ...


matplotlib.use("Agg")

MARKED = {"died": "x", "frozen": "*", "hung": "*", "silent": "*", "crashed": "x", "refused": "s"}
"""Events that are drawn, and their marks."""
STYLES = ("-", "--", ":", "-.")
WIDE = 100.0
"""Above this ratio of the largest to the smallest value, the scale is logarithmic."""


def command(
    run: Annotated[list[str], Argument(metavar="RUN...", help="One run, or several to compare.")],
    *,
    output: Annotated[Path | None, Option("--output", "-o", help="[default: plot.png in the first run's folder]")] = None,
    metric: Annotated[str | None, Option(help="Which logged value [default: loss, or the first].", show_default=False)] = None,
    runs: Runs = None,
) -> None:
    folders = [find(name, runs=runs_folder(runs)) for name in run]
    path = output or folders[0].path / "plot.png"
    if path.is_dir():
        raise UsageError(f"--output {path} is a folder: name the picture's file, as in {path / 'plot.png'}")
    draw(folders, path, metric=metric)
    print(path)


def draw(folders: Sequence[RunFolder], path: Path, *, metric: str | None = None) -> None:
    """Writes the picture. Raises `UsageError` if there is nothing to draw."""
    from matplotlib import pyplot

    histories = {folder.name: lives(folder.records()) for folder in folders}
    figure, (curves, workers) = pyplot.subplots(2, 1, figsize=(10, 7), height_ratios=(2, 1), layout="constrained")
    drawn: list[dict[int, float]] = []
    try:
        for place, (name, records) in enumerate(histories.items()):
            commits = [record for record in records if isinstance(record, Commit)]
            if not commits:
                raise UsageError(f"run {name!r} has not committed a step yet: there is nothing to plot")
            chosen = _metric(commits, metric, name)
            style = STYLES[place % len(STYLES)]
            values = {commit.step: commit.metrics.get(chosen, float("nan")) for commit in commits}
            curves.plot(list(values), list(values.values()), style, label=name, linewidth=2.6 if place == 0 else 1.4)
            drawn.append(values)
            curves.set_ylabel(chosen)
            _workers(workers, records, commits, style=style, label=name, detailed=place == 0)
        curves.set_title(likeness(drawn))
        curves.set_yscale(_scale(drawn))
        curves.set_xlabel("step")
        curves.legend(frameon=False)
        workers.set_xlabel("seconds")
        workers.set_xlim(left=0)
        workers.set_ylabel("workers")
        workers.yaxis.get_major_locator().set_params(integer=True)
        for axes in (curves, workers):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        cast("Picture", figure).savefig(path, dpi=110)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}: choose another place with --output") from error
    finally:
        pyplot.close(figure)


def likeness(drawn: Sequence[Mapping[int, float]]) -> str:
    """Whether the curves are identical, which a plot of overlapping curves does not show."""
    if len(drawn) < 2:
        return ""
    common = sorted(step for step in drawn[0] if all(step in values for values in drawn))
    other = next((step for step in common if len({repr(values[step]) for values in drawn}) > 1), None)
    if not common:
        return "no step in common"
    return f"the same values at all {len(common)} steps" if other is None else f"other values from step {other} on"


def _scale(drawn: Sequence[Mapping[int, float]]) -> str:
    finite = [value for values in drawn for value in values.values() if math.isfinite(value)]
    return "log" if finite and min(finite) > 0 and max(finite) > WIDE * min(finite) else "linear"


def _metric(commits: Sequence[Commit], wanted: str | None, name: str) -> str:
    metrics = list(dict.fromkeys(key for commit in commits for key in commit.metrics))
    if not metrics:
        raise UsageError(f"run {name!r} has no logged values: call step.log(loss=loss) in the script")
    if wanted is not None and wanted not in metrics:
        raise UsageError(f"run {name!r} has no logged value {wanted!r}: it has {', '.join(metrics)}")
    return wanted or ("loss" if "loss" in metrics else metrics[0])


def _workers(axes: Axes, records: Sequence[Record], commits: Sequence[Commit], *, style: str, label: str, detailed: bool) -> None:
    began = records[0].t
    times, counts = [commit.t - began for commit in commits], [commit.workers for commit in commits]
    axes.step([*times, times[-1]], [*counts, counts[-1]], style, where="post", label=label, linewidth=1.8)
    axes.set_ylim(bottom=0, top=max([*counts, *(axes.get_ylim()[1] - 1,)]) + 1)
    if not detailed:
        return
    for record in records:
        if isinstance(record, Switch) and record.cause not in ("start", "balance"):
            pause = f"\n{record.pause_ms:.0f} ms" if record.pause_ms is not None else ""
            _annotate(axes, f"{record.cause}{pause}", (record.t - began, record.workers), va="bottom")
        elif isinstance(record, JournalEvent) and record.what in MARKED:
            axes.plot([record.t - began], [0.35], MARKED[record.what], color="crimson", markersize=6)
            _annotate(axes, f"{record.worker} {record.what}", (record.t - began, 0.35), va="center", color="crimson")


def _annotate(axes: Axes, text: str, where: tuple[float, float], *, va: str, color: str = "black") -> None:
    """Writes the text to the right of the place, where no line crosses it."""
    axes.annotate(
        text,
        where,
        xytext=(5 if va == "center" else 2, 2 if va == "bottom" else 0),
        textcoords="offset points",
        fontsize=7,
        color=color,
        ha="left",
        va=va,
    )
