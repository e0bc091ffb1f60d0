"""The figures of docs/explanation/experiments.md."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from experiments.page import interval

COLOURS = {
    "adascale": "#1b6ca8",
    "linear": "#d1495b",
    "none": "#8d99ae",
    "jump": "#d1495b",
    "ramp": "#1b6ca8",
    "unchanged": "#8d99ae",
}


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def scaling(results: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, len(results), figsize=(5 * len(results), 3.6))
    for axis, (task, entry) in zip(axes if len(results) > 1 else [axes], results.items(), strict=True):
        mean, half = interval(entry["reference"]["losses"])
        axis.axhspan(mean - half, mean + half, color="#2a9d8f", alpha=0.3, label="S = 1")
        cases = list(entry["methods"]["adascale"])
        for shift, (method, rows) in enumerate(entry["methods"].items()):
            pairs = [interval(rows[case]["losses"]) for case in cases]
            places = [place + 0.15 * (shift - 1) for place in range(len(cases))]
            axis.errorbar(
                places,
                [mean for mean, _ in pairs],
                yerr=[half for _, half in pairs],
                fmt="o",
                capsize=3,
                label=method,
                color=COLOURS[method],
            )
        axis.set_xticks(range(len(cases)), cases)
        axis.set_yscale("log")
        axis.set_title(task)
        axis.set_ylabel("held-out loss")
        axis.legend(fontsize=8)
    _save(figure, path)


def momentum(results: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, len(results), figsize=(4 * len(results), 3.4), sharey=True)
    for axis, (case, methods) in zip(axes, results.items(), strict=True):
        for method, runs in methods.items():
            pairs = [interval([run[step] for run in runs]) for step in range(len(runs[0]))]
            means = [mean for mean, _ in pairs]
            axis.plot(means, color=COLOURS[method], label=method)
            axis.fill_between(
                range(len(means)), [m - h for m, h in pairs], [m + h for m, h in pairs], alpha=0.2, color=COLOURS[method]
            )
        axis.set_title(case)
        axis.set_xlabel("steps after the change")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("loss over the loss before")
    _save(figure, path)


def estimate(results: dict[str, Any], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    points = [point for run in results["checks"] for point in run]
    left.scatter([offline for _, _, offline in points], [online for _, online, _ in points], s=14, color="#1b6ca8")
    bounds = [min(min(point[1:]) for point in points), max(max(point[1:]) for point in points)]
    left.plot(bounds, bounds, color="#8d99ae")
    left.set(xscale="log", yscale="log", xlabel="offline noise scale", ylabel="online noise scale")
    batches = [int(batch) for batch in results["samples"]]
    base = statistics.fmean(samples for samples, _ in results["samples"][str(results["reference"])])
    runs = list(results["samples"].values())
    right.plot(batches, [base / statistics.fmean(s for s, _ in run) for run in runs], "o-", color="#1b6ca8", label="measured")
    phis = [statistics.median(scale for _, scale in run) for run in runs]
    right.plot(
        batches,
        [(phi + 16) / (phi + batch) for phi, batch in zip(phis, batches, strict=True)],
        "s--",
        color="#d1495b",
        label="predicted",
    )
    right.set(xscale="log", xlabel="batch", ylabel="efficiency", ylim=(0, 1.1))
    right.legend(fontsize=8)
    _save(figure, path)


def adaptive(results: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, len(results), figsize=(4 * len(results), 3.4))
    for axis, (workers, entry) in zip(axes, results.items(), strict=True):
        names = [*entry["fixed"], "adaptive"]
        seconds = [run["seconds"] for run in entry["fixed"].values()] + [entry["adaptive"]["seconds"]]
        axis.bar(names, seconds, color=["#8d99ae"] * len(entry["fixed"]) + ["#1b6ca8"])
        axis.set_title(f"{workers} worker{'s' if workers != '1' else ''}")
        axis.set_ylabel("seconds to the target")
        axis.tick_params(axis="x", rotation=45)
    _save(figure, path)
