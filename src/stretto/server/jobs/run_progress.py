"""What is known of a run from its journal: pure, line by line.

A line is folded into `RunProgress` and may give points for curves. Whatever a job writes into its journal is bounded and
checked here: a broken line is skipped, never an exception.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stretto.core.journal import Commit, JournalReport, Resume
from stretto.core.schema import Json

MOST_MEANS = 32


@dataclass(slots=True)
class Spark:
    """Fewer than `MOST_MEANS` means of `stride` losses each, oldest first; then neighbours are joined and the stride doubles.

    The whole curve and not its end: where the last losses only go up and down, their range says nothing of what it has learned.
    """

    means: list[float] = field(default_factory=list[float])
    stride: int = 1
    open: float = 0.0
    """The sum of the losses that have not made a mean yet."""
    count: int = 0
    """How many they are: less than `stride`."""

    def add(self, loss: float) -> None:
        self.open += loss
        self.count += 1
        if self.count < self.stride:
            return
        self.means.append(_short(self.open / self.count))
        self.open, self.count = 0.0, 0
        if len(self.means) >= MOST_MEANS:
            pairs = zip(self.means[::2], self.means[1::2], strict=True)
            self.means = [_short((first + second) / 2) for first, second in pairs]
            self.stride *= 2

    def line(self) -> list[float]:
        """For drawing: with what has come since the last mean."""
        return [*self.means, _short(self.open / self.count)] if self.count else list(self.means)

    def steps_ago(self) -> list[int]:
        """How many losses ago each mean was complete."""
        last = len(self.means) - 1
        return [self.count + (last - place) * self.stride for place in range(len(self.means))]

    def document(self) -> dict[str, object]:
        return {"means": self.means, "stride": self.stride, "open": self.open, "count": self.count}

    @staticmethod
    def read(document: object) -> Spark:
        if isinstance(document, dict):
            return Spark(**cast("dict[str, Any]", document))
        earlier = cast("list[float] | None", document) or []  # as 0.1.0 kept it: the last losses
        return Spark(earlier[-MOST_MEANS + 1 :])


def _short(value: float) -> float:
    """To six digits: it is drawn as wide as a word, and sent in every line."""
    return float(f"{value:.6g}")


NAMES = 64
"""Different names of metrics that are kept for a job."""
REPORTED = ("goodput", "noise_scale", "efficiency", "model", "utilisation")
"""Keys of a job's own document that are kept for decisions."""
CURVES = ("goodput", "noise_scale", "efficiency")
"""Keys of it that become curves."""
DEEP = 4
"""Levels of a job's own document: a fitted model has two."""
LOADERS = 16
"""Different loaders of a job that are followed at a time."""
SMOOTH = 0.2
Pace = tuple[int, tuple[tuple[int, float], ...]]
"""A batch, and (workers, samples a second) for every number of workers that a job has had."""
UNKNOWN = "?"
"""In `RunProgress.edges` after a resume: the next commit may begin anywhere."""


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a job's curves."""

    step: int
    t: float
    workers: int
    values: dict[str, float]


@dataclass(slots=True)
class RunProgress:
    """The progress of a run, from its journal. Mutable, because it changes with every committed step."""

    life: int = 0
    run: str = ""
    offset: int = 0
    """Bytes of the journal that have been read."""
    step: int = 0
    """The number of finished steps, which is the number of the next one."""
    epoch: int | None = None
    loss: float | None = None
    batch: int | None = None
    workers: int = 0
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    samples: int = 0
    """Committed so far: those that a resume from a checkpoint takes back are not in it."""
    left: int | None = None
    """Samples until its end, where the job counts them."""
    lost: int = 0
    worker_seconds: float = 0.0
    at: float = 0.0
    """Time of the last commit."""
    stalled: str = ""
    """Which worker waits where, while there is no progress."""
    refused_above: int | None = None
    """Its workers when its agent gave up on more: those that joined were refused, and slots for them would be wasted."""
    report: dict[str, Json] = field(default_factory=dict[str, Json])
    spark: Spark = field(default_factory=Spark)
    """Its loss curve in a few numbers."""
    speeds: dict[str, float] = field(default_factory=dict[str, float])
    """Samples a second at each number of workers, smoothed."""
    edges: dict[str, int] = field(default_factory=dict[str, int])
    """Where the next commit of a loader's epoch has to begin."""
    latest: dict[str, float] = field(default_factory=dict[str, float])
    """The values of the last step's point: what is reported for that step later is added to them and hides none."""
    end: dict[str, Json] | None = None
    """The journal's last line, once it is there: how the run ended, in its own words."""

    def document(self) -> dict[str, object]:
        fields: dict[str, object] = {name: getattr(self, name) for name in self.__slots__ if name != "spark"}
        return {**fields, "spark": self.spark.document()}

    @staticmethod
    def read(document: Mapping[str, Any]) -> RunProgress:
        progress = RunProgress(**{key: value for key, value in document.items() if key in RunProgress.__slots__ and key != "spark"})
        progress.spark = Spark.read(document.get("spark"))
        return progress

    def renew(self, *, life: int, run: str) -> None:
        """Starts another life: its journal is read from the beginning, unless it continues the old one. Keeps the speeds."""
        if life != self.life:
            if run != self.run:
                self.offset = self.samples = 0
                self.spark = Spark()
            self.life, self.run, self.workers, self.end, self.stalled = life, run, 0, None, ""
            self.refused_above = None
            self.edges.clear()
            self.latest = {}

    def steps_in_all(self, declared: int | None) -> int | None:
        """Total number of steps: from the job's own count of what is left, else as declared by its user."""
        if self.left is not None and self.batch:
            return self.step + math.ceil(self.left / self.batch)
        return declared

    def remaining_s(self, *, steps: int | None) -> float | None:
        """Seconds until its end at the present speed."""
        steps = self.steps_in_all(steps)
        return max(0, steps - self.step) / self.steps_per_s if steps and self.steps_per_s else None

    def pace(self) -> Pace | None:
        """The speeds measured so far."""
        if self.batch is None or not self.speeds:
            return None
        return self.batch, tuple(sorted((int(workers), _rough(speed)) for workers, speed in self.speeds.items()))

    def summary(self, *, steps: int | None) -> dict[str, int | float | None]:
        """The fields of `models.Progress`, as plain values: every line of every list has them."""
        in_all = self.steps_in_all(steps)
        fraction = self.step / in_all if in_all else None
        return {
            "step": self.step,
            "steps": in_all,
            "epoch": self.epoch,
            "fraction": None if fraction is None else min(1.0, max(0.0, fraction)),
            "loss": self.loss,
            "batch": self.batch,
            "steps_per_s": self.steps_per_s,
            "samples_per_s": self.samples_per_s,
            "goodput": finite(self.report.get("goodput")),
            "noise_scale": finite(self.report.get("noise_scale")),
            "remaining_s": self.remaining_s(steps=steps),
        }

    def commit(self, line: Commit) -> Point | None:
        """A committed step."""
        step, t, workers = whole(line.step), finite(line.t), whole(line.workers)
        if step is None or t is None or workers is None:
            return None
        self.step, self.workers = step + 1, workers
        if self.refused_above is not None and workers > self.refused_above:
            self.refused_above = None
        self.epoch = whole(line.epoch)
        self.batch = whole(line.batch) or self.batch
        self.left = whole(line.left)
        seconds = finite(line.step_s)
        if seconds:
            self.steps_per_s = _blend(self.steps_per_s, 1.0 / seconds)
            self.worker_seconds += min(seconds, 3600.0) * workers
            if self.batch:
                self.samples_per_s = _blend(self.samples_per_s, self.batch / seconds)
                self.speeds[str(workers)] = _blend(self.speeds.get(str(workers)), self.batch / seconds)
        self._count(line)
        self.at = t
        values = numbers(line.metrics)
        if "loss" in values:
            self.loss = values["loss"]
            self.spark.add(values["loss"])
        if self.samples_per_s is not None:
            values["samples_per_s"] = self.samples_per_s
        if self.batch is not None:
            values["batch"] = float(self.batch)
        self.latest = values
        return Point(step=step, t=t, workers=workers, values=values)

    def _count(self, line: Commit) -> None:
        """Samples that no committed step of their epoch had: a commit that begins after where the last one ended."""
        first, count = whole(line.first), whole(line.count)
        if first is None or count is None:
            return
        loader = f"{whole(line.loader)}/"
        key = f"{loader}{self.epoch}"
        edge = self.edges.get(key, first if UNKNOWN in self.edges else 0)
        self.lost += max(0, first - edge)
        self.samples += count
        if key not in self.edges:
            others = {name: at for name, at in self.edges.items() if not name.startswith(loader)}
            self.edges = others if len(others) < LOADERS else {}
        self.edges[key] = first + count

    def rewind(self, line: Resume) -> None:
        """Takes back the steps that the attempt from here on replaces."""
        before, self.step = self.step, whole(line.finished) or 0
        self.samples = max(0, self.samples - max(0, before - self.step) * (self.batch or 0))
        self.edges = {UNKNOWN: 0}
        self.latest = {}

    def reported(self, line: JournalReport) -> Point | None:
        """Metrics: the job's own document (`of: job`, docs/reference/metrics.md), or whatever numbers its script has reported."""
        t = finite(line.t)
        if t is None:
            return None
        values = numbers(line.metrics)
        if line.of == "job":
            self.report = {name: plain(line.metrics[name]) for name in REPORTED if name in line.metrics}
            values = {name: values[name] for name in CURVES if name in values}
        elif "loss" in values:
            self.loss = values["loss"]
        if not values:
            return None
        self.latest = {**self.latest, **values}
        return Point(step=max(0, self.step - 1), t=t, workers=self.workers, values=self.latest)


def plain(value: Json, *, deep: int = DEEP) -> Json:
    """The same in numbers that are numbers and not too deep: what every database takes."""
    if isinstance(value, dict):
        return {key: plain(item, deep=deep - 1) for key, item in value.items()} if deep else None
    if isinstance(value, list):
        return [plain(item, deep=deep - 1) for item in value] if deep else None
    return finite(value) if isinstance(value, float) else value


def numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers of a job's metrics, at most `NAMES`, with names cut to 64 characters."""
    numbers = {name[:64]: number for name, value in metrics.items() if (number := finite(value)) is not None}
    return dict(list(numbers.items())[:NAMES])


def finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object) -> int | None:
    """A whole number that every database takes; None for anything else."""
    number = finite(value)
    return int(number) if number is not None and 0 <= number < 2**62 else None


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTH * (new - old)


def _rough(speed: float) -> float:
    """In steps of five percent: a fit for every flicker would cost more than it is worth."""
    return 1.05 ** round(math.log(speed, 1.05)) if speed > 0 else 0.0
