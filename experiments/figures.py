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


def scaling(found: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, len(found), figsize=(5 * len(found), 3.6))
    for axis, (task, entry) in zip(axes if len(found) > 1 else [axes], found.items(), strict=True):
        mean, half = interval(entry["reference"]["losses"])
        axis.axhspan(mean - half, mean + half, color="#2a9d8f", alpha=0.3, label="S = 1")
        cases = list(entry["methods"]["adascale"])
        for shift, (method, rows) in enumerate(entry["methods"].items()):
            pairs = [interval(rows[case]["losses"]) for case in cases]
            places = [place + 0.15 * (shift - 1) for place in range(len(cases))]
            axis.errorbar(
                places,
                [one for one, _ in pairs],
                yerr=[one for _, one in pairs],
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


def momentum(found: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3.4), sharey=True)
    for axis, (case, methods) in zip(axes, found.items(), strict=True):
        for method, runs in methods.items():
            pairs = [interval([run[step] for run in runs]) for step in range(len(runs[0]))]
            means = [one for one, _ in pairs]
            axis.plot(means, color=COLOURS[method], label=method)
            axis.fill_between(
                range(len(means)), [m - h for m, h in pairs], [m + h for m, h in pairs], alpha=0.2, color=COLOURS[method]
            )
        axis.set_title(case)
        axis.set_xlabel("steps after the change")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("loss over the loss before")
    _save(figure, path)


def estimate(found: dict[str, Any], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    points = [one for run in found["checks"] for one in run]
    left.scatter([offline for _, _, offline in points], [online for _, online, _ in points], s=14, color="#1b6ca8")
    bounds = [min(min(one[1:]) for one in points), max(max(one[1:]) for one in points)]
    left.plot(bounds, bounds, color="#8d99ae")
    left.set(xscale="log", yscale="log", xlabel="offline noise scale", ylabel="online noise scale")
    batches = [int(one) for one in found["samples"]]
    base = statistics.fmean(samples for samples, _ in found["samples"][str(found["reference"])])
    runs = list(found["samples"].values())
    right.plot(batches, [base / statistics.fmean(s for s, _ in one) for one in runs], "o-", color="#1b6ca8", label="measured")
    phis = [statistics.median(scale for _, scale in one) for one in runs]
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


def adaptive(found: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3.4))
    for axis, (workers, entry) in zip(axes, found.items(), strict=True):
        names = [*entry["fixed"], "adaptive"]
        seconds = [one["seconds"] for one in entry["fixed"].values()] + [entry["adaptive"]["seconds"]]
        axis.bar(names, seconds, color=["#8d99ae"] * len(entry["fixed"]) + ["#1b6ca8"])
        axis.set_title(f"{workers} worker{'s' if workers != '1' else ''}")
        axis.set_ylabel("seconds to the target")
        axis.tick_params(axis="x", rotation=45)
    _save(figure, path)
