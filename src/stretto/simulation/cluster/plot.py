"""Two pictures of simulations: how completion times are distributed, and who held which part of the cluster when."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from stretto.core.errors import UsageError
from stretto.simulation.cluster.engine import AllocationChange, SimulationResult
from stretto.simulation.cluster.report import completion_times

MOST_LANES = 256
"""Slots drawn as lanes of their own; larger clusters are drawn by nodes."""


class ChartFigure(Protocol):
    """What is used of matplotlib's `Figure`, whose stubs leave `savefig` half untyped."""

    def savefig(self, fname: Path, *, dpi: int) -> object: ...


class ChartAxes(Protocol):
    """What is used of matplotlib's `Axes`, whose stubs leave these methods half untyped."""

    def step(self, x: np.ndarray, y: np.ndarray, *, where: str, label: str) -> object: ...

    def bar(
        self,
        x: Sequence[float],
        height: Sequence[float],
        width: Sequence[float],
        bottom: Sequence[float],
        *,
        align: str,
        color: tuple[float, float, float],
        linewidth: float,
    ) -> object: ...

    def set_xscale(self, value: str) -> object: ...

    def set_xlabel(self, xlabel: str) -> object: ...

    def set_ylabel(self, ylabel: str) -> object: ...

    def set_ylim(self, bottom: float, top: float) -> object: ...

    def grid(self, *, alpha: float) -> object: ...

    def legend(self, *, fontsize: float) -> object: ...


def plot(outcomes: Mapping[str, SimulationResult], path: Path) -> None:
    """Distributions of all policies on top, one Gantt chart for each below; PNG, PDF or SVG by the name's ending."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib: pip install 'stretto[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = len(outcomes) + 1
    figure, axes = pyplot.subplots(rows, 1, figsize=(11, 3.2 * rows), constrained_layout=True)
    _distributions(axes[0], outcomes)
    latest = max(outcome.end_s for outcome in outcomes.values()) / 3600
    for axis, (name, outcome) in zip(axes[1:], outcomes.items(), strict=True):
        _gantt(axis, outcome)
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_xlim(0, latest)
    axes[-1].set_xlabel("hours")
    try:
        cast("ChartFigure", figure).savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path}: {error}") from None
    finally:
        pyplot.close(figure)


def _distributions(axis: ChartAxes, outcomes: Mapping[str, SimulationResult]) -> None:
    for name, outcome in outcomes.items():
        times = np.sort(completion_times(outcome)) / 60
        axis.step(times, np.arange(1, len(times) + 1) / len(times), where="post", label=f"{name} (mean {times.mean():.0f} min)")
    axis.set_xscale("log")
    axis.set_xlabel("completion time, minutes")
    axis.set_ylabel("share of jobs")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _gantt(axis: ChartAxes, outcome: SimulationResult) -> None:
    """A lane for each slot; a bar for each stretch of time that a job holds it."""
    lanes: dict[str, int] = {}
    total = 0
    for node in outcome.nodes:
        lanes[node.name] = total
        total += node.slots
    scale = max(1.0, total / MOST_LANES)
    bars: dict[str, list[tuple[float, float, float, float]]] = {}
    for job, stretches in stretches_of(outcome).items():
        for start, end, parts in stretches:
            for node, first, count in parts:
                bars.setdefault(job, []).append((start / 3600, (end - start) / 3600, (lanes[node] + first) / scale, count / scale))
    for job, pieces in bars.items():
        axis.bar(
            [left for left, *_ in pieces],
            [height for *_, height in pieces],
            [width for _, width, *_ in pieces],
            [bottom for _, _, bottom, _ in pieces],
            align="edge",
            color=_colour(job),
            linewidth=0,
        )
    axis.set_ylim(0, total / scale)
    axis.set_ylabel("slots" if scale == 1.0 else "cluster")


def stretches_of(outcome: SimulationResult) -> dict[str, list[tuple[float, float, tuple[tuple[str, int, int], ...]]]]:
    """For each job the times and slots (node, first, count) that it held."""
    result: dict[str, list[tuple[float, float, tuple[tuple[str, int, int], ...]]]] = {}
    holding: dict[str, tuple[float, tuple[tuple[str, tuple[int, ...]], ...]]] = {}
    free = {node.name: set(range(node.slots)) for node in outcome.nodes}
    ordered = sorted(outcome.changes, key=lambda change: (change.time_s, bool(change.placement)))
    times = sorted({change.time_s for change in ordered})
    grouped: dict[float, list[AllocationChange]] = {time_s: [] for time_s in times}
    for change in ordered:
        grouped[change.time_s].append(change)
    for time_s in times:
        for change in grouped[time_s]:
            if change.job in holding:
                start, parts = holding.pop(change.job)
                for node, slots in parts:
                    free[node] |= set(slots)
                    result.setdefault(change.job, []).extend(
                        (start, time_s, ((node, slot, 1),)) for slot in slots if time_s > start
                    )
        for change in grouped[time_s]:
            if change.placement:
                taken = tuple((node, tuple(sorted(free[node])[:count])) for node, count in change.placement)
                for node, slots in taken:
                    free[node] -= set(slots)
                holding[change.job] = (time_s, taken)
    return result


def _colour(job: str) -> tuple[float, float, float]:
    """One colour for a job in all charts; jobs with the same beginning of their names have related ones."""
    family = zlib.crc32(job.rsplit("-", 1)[0].encode()) % 360
    shade = zlib.crc32(job.encode()) % 100
    return colorsys.hls_to_rgb(family / 360, 0.4 + 0.3 * shade / 100, 0.65)
