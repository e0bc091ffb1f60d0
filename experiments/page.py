"""Writes the figures and docs/explanation/experiments.md from the results: every number on the page, and what follows from it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.tasks import ROOT

DOCS = ROOT / "docs"
FIGURES = DOCS / "figures"
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 14: 2.14, 19: 2.09, 29: 2.05}
"""97.5% quantiles by degrees of freedom."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95% interval."""
    count = len(values)
    if count < 2:
        return (values[0] if values else math.nan), math.nan
    quantile = STUDENT[max(freedom for freedom in STUDENT if freedom <= count - 1)]
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(count)


def write(results: Path) -> None:
    """The page, from whichever results there are."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    for name, section in (("scaling", scaling), ("momentum", momentum), ("estimate", estimate), ("adaptive", adaptive)):
        path = results / f"{name}.json"
        if path.exists():
            document = json.loads(path.read_text())
            parts.append(section(document["found"], int(document["seeds"])))
    (DOCS / "explanation" / "experiments.md").write_text("\n".join(parts))
    print("written to docs/explanation/experiments.md")


HEAD = """# Experiments

Written by `make experiments` from `experiments/results/`; do not edit by hand. Intervals are 95% over seeds. The first three ask
what the maths does to a model, so they train in one process with the library's own slices, noise scale and rules; the fourth
runs real workers. Models and data are small: they show whether the parts do what their papers say, not whether it scales.
"""


def _pm(values: Sequence[float], digits: int = 3) -> str:
    mean, half = interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def scaling(results: dict[str, Any], seeds: int) -> str:
    from experiments import figures

    figures.scaling(results, FIGURES / "scaling.png")
    lines = [
        "## 1. AdaScale against linear scaling with warm-up and no scaling",
        "",
        f"Held-out loss at the end of the schedule, {seeds} seeds. S is the batch over the reference batch; *elastic* goes "
        "S = 1, 8, 32, 8 by quarters of the way. AdaScale decides its own number of steps (in brackets); the others take 1/S "
        "of them.",
        "",
    ]
    verdict: list[str] = []
    for task, entry in results.items():
        reference = entry["reference"]["losses"]
        cases = list(entry["methods"]["adascale"])
        lines += [
            f"**{task}**, reference (S = 1, {entry['steps']} steps): {_pm(reference)}",
            "",
            "| | " + " | ".join(cases) + " |",
            "|---|" + "---|" * len(cases),
        ]
        for method, rows in entry["methods"].items():
            cells = [f"{_pm(rows[case]['losses'])} ({statistics.fmean(rows[case]['steps']):.0f})" for case in cases]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
        verdict += _verdict_scaling(task, entry, cases)
    return "\n".join([*lines, "![held-out loss by scale](../figures/scaling.png)", "", *verdict, ""])


def _verdict_scaling(task: str, entry: dict[str, Any], cases: list[str]) -> list[str]:
    reference, half = interval(entry["reference"]["losses"])
    said: list[str] = []
    for method in ("adascale", "linear"):
        near = [case for case in cases if _close(entry["methods"][method][case]["losses"], reference, half)]
        far = [case for case in cases if case not in near]
        said.append(
            f"* {task}: {method} stays within the reference's interval or 5% of it for {', '.join(near) or 'no case'}"
            + (f"; not for {', '.join(far)}." if far else ".")
        )
    return said


def _close(losses: list[float], reference: float, half: float) -> bool:
    mean, own = interval(losses)
    return mean - own <= reference + max(half, 0.05 * reference)


def momentum(results: dict[str, Any], seeds: int) -> str:
    from experiments import figures

    figures.momentum(results, FIGURES / "momentum.png")
    count = len(next(iter(results.values()))["jump"])
    lines = [
        "## 2. Momentum compensation",
        "",
        f"Digits, SGD with momentum 0.9 at three times the usual rate, {count} seeds. After 60 steps the batch becomes k "
        "times larger. The rate becomes k times larger at once (jump), over 8 steps (ramp), or stays (unchanged). Training "
        "loss over the mean of the 20 steps before: its peak within 20 steps, and its mean over steps 20 to 40.",
        "",
        "| k | | peak | after |",
        "|---|---|---|---|",
    ]
    verdicts: list[str] = []
    for case, methods in results.items():
        peaks = {method: [max(run[:20]) for run in runs] for method, runs in methods.items()}
        after = {method: [statistics.fmean(run[20:]) for run in runs] for method, runs in methods.items()}
        lines += [f"| {case[2:]} | {method} | {_pm(peaks[method], 2)} | {_pm(after[method], 2)} |" for method in methods]
        gaps = [jump - ramp for jump, ramp in zip(peaks["jump"], peaks["ramp"], strict=True)]
        mean, half = interval(gaps)
        word = "lower" if mean - half > 0 else "higher" if mean + half < 0 else "not different"
        verdicts.append(f"* {case}: the peak with the ramp is {word} (jump − ramp = {mean:.2f} ± {half:.2f}, paired by seed).")
    return "\n".join([*lines, "", "![loss after the change](../figures/momentum.png)", "", *verdicts, ""])


def estimate(results: dict[str, Any], seeds: int) -> str:
    from experiments import figures

    figures.estimate(results, FIGURES / "noise.png")
    checks = [tuple(check) for run in results["checks"] for check in run]
    ratios = [online / offline for _, online, offline in checks]
    lines = [
        "## 3. The noise scale and what it predicts",
        "",
        f"Online (moving average over the slices' norms) over offline (1,000 single-sample gradients against the whole "
        f"dataset's), digits, {len(results['checks'])} seeds, at {len(checks)} points: ratio {_pm(ratios, 2)}, "
        f"from {min(ratios):.2f} to {max(ratios):.2f}.",
        "",
        f"Samples until the held-out loss is {results['target']}, with AdaScale's rate, {seeds} seeds; the efficiency is that "
        "of batch 16 over it. Predicted: (φ + 16)/(φ + B) with the runs' own median online φ.",
        "",
        "| batch | samples | measured | predicted | φ |",
        "|---|---|---|---|---|",
    ]
    base = statistics.fmean(samples for samples, _ in results["samples"][str(results["reference"])])
    misses: list[float] = []
    for batch, runs in results["samples"].items():
        phi = statistics.median(scale for _, scale in runs)
        measured, predicted = base / statistics.fmean(s for s, _ in runs), (phi + 16) / (phi + int(batch))
        misses.append(abs(measured / predicted - 1))
        lines.append(f"| {batch} | {_pm([s for s, _ in runs], 0)} | {measured:.2f} | {predicted:.2f} | {phi:.0f} |")
    return "\n".join(
        [
            *lines,
            "",
            "![noise scale](../figures/noise.png)",
            "",
            f"* The online estimate is within {max(abs(ratio - 1) for ratio in ratios):.0%} of the offline one everywhere.",
            f"* The predicted efficiency is off by {statistics.fmean(misses):.0%} in the mean and {max(misses):.0%} at most.",
            "",
        ]
    )


def adaptive(results: dict[str, Any], seeds: int) -> str:
    from experiments import figures

    figures.adaptive(results, FIGURES / "adaptive.png")
    lines = [
        "## 4. The adaptive batch against the best fixed one",
        "",
        "Digits to a training loss of 0.2 on real workers with a device of known speed (8 ms a slice and 0.2 ms a sample, as "
        "a sleep), AdaScale everywhere, one run each. Seconds from the first step to the target.",
        "",
        "| workers | " + " | ".join(next(iter(results.values()))["fixed"]) + " | adaptive | adaptive / best |",
    ]
    lines.append("|" + "---|" * (len(next(iter(results.values()))["fixed"]) + 3))
    verdicts: list[str] = []
    for workers, entry in results.items():
        best = min(entry["fixed"], key=lambda batch: entry["fixed"][batch]["seconds"])
        ratio = entry["adaptive"]["seconds"] / entry["fixed"][best]["seconds"]
        cells = [
            f"{'**' if batch == best else ''}{run['seconds']:.1f}{'**' if batch == best else ''}"
            for batch, run in entry["fixed"].items()
        ]
        lines.append(f"| {workers} | " + " | ".join(cells) + f" | {entry['adaptive']['seconds']:.1f} | {ratio:.2f} |")
        way = ", ".join(f"{batch} from step {step}" for step, batch in entry["adaptive"]["batches"])
        first = entry["fixed"]["16"]["seconds"]
        verdicts.append(_verdict_adaptive(workers, first / entry["adaptive"]["seconds"], ratio, best, way))
    return "\n".join([*lines, "", "![time to target](../figures/adaptive.png)", "", *verdicts, ""])


def _verdict_adaptive(workers: str, faster: float, ratio: float, best: str, way: str) -> str:
    who = f"{workers} worker{'s' if workers != '1' else ''}"
    slow = "; it grows by two at most and waits 20 steps each time, and these runs are short" if ratio > 1.05 else ""
    verdict = f"{'not ' if slow else ''}as fast as the best fixed batch ({best}), which takes a search: {ratio:.2f} times its time"
    return f"* {who}: {faster:.1f} times as fast as the batch that it began with; {verdict}{slow}. Batches: {way}."
