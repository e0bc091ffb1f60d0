"""Measured applications, from the profiles that were published with Pollux (folders of CSV files).

A step's time is read from `placements.csv` where that placement was measured, linear in the local batch; otherwise it is
interpolated linearly over (nodes, workers, local batch) of `placements.csv` and `scalability.csv` together. Gradient
statistics and progress come from `validation-<batch>.csv`, linear between the two nearest validated batches.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from stretto.batching.throughput import Floats
from stretto.core.errors import UsageError

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""Epochs that a job of each published application runs."""
MOST_LOCAL = {"yolov3": 8}
"""Local batches above this were measured, but do not train well."""
MOST_WORKERS = {"ncf": 1}
FIXED_BATCH = {"ncf": 32768}
"""Run with this batch even where others choose theirs."""
MEASURED_NODES = 16


class Interpolator(Protocol):
    """What is used of scipy's `LinearNDInterpolator`: values at a point, in an array of one row."""

    def __call__(self, point: Sequence[float]) -> Floats: ...


class Interpolators(Protocol):
    """What is used of `scipy.interpolate`, which has no types."""

    def LinearNDInterpolator(self, points: Floats, values: Floats) -> Interpolator: ...


class Profile:
    """One application's folder. Every lookup is remembered: a simulation asks the same few thousand things again and again."""

    def __init__(self, folder: Path):
        self.name = folder.name
        self.folder = folder
        self._validation = _validations(folder)
        self._placements, points = _placements(folder)
        self._points = np.concatenate(
            [points, _numbers(folder / "scalability.csv", ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"))]
        )
        self._batches = sorted(self._validation)
        self.initial_batch, self.most_batch = self._batches[0], self._batches[-1]
        local = [size for table in self._placements.values() for size in table[:, 0]]
        self.local_low, self.local_high = int(min(local)), MOST_LOCAL.get(self.name, int(max(local)))
        shortest = min(len(table) for table in self._validation.values())
        self.epochs = min(EPOCHS.get(self.name, shortest), shortest)
        self._steps: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        self._noise: dict[tuple[float, int], tuple[float, float]] = {}
        self._progress = [0.0] + [
            min(float(table[epoch, 0]) for table in self._validation.values()) for epoch in range(self.epochs)
        ]

    @cached_property
    def _interpolator(self) -> Interpolator:
        from scipy import interpolate

        return cast("Interpolators", interpolate).LinearNDInterpolator(self._points[:, :3], self._points[:, 3:])

    def step_s(self, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        key = (shape, local_batch)
        times = self._steps.get(key)
        if times is None:
            times = self._steps[key] = self._measure(shape, local_batch)
        return times

    def _measure(self, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        smallest = min(shape[turn:] + shape[:turn] for turn in range(len(shape)))
        table = self._placements.get(smallest)
        if table is not None and table[0, 0] <= local_batch <= table[-1, 0]:
            return (
                float(np.interp(local_batch, table[:, 0], table[:, 1])),
                float(np.interp(local_batch, table[:, 0], table[:, 2])),
            )
        step, sync = self._interpolator([min(len(shape), MEASURED_NODES), sum(shape), local_batch])[0]
        if not np.isfinite(step):
            raise UsageError(
                f"the profile of {self.name} has nothing near {sum(shape)} workers on {len(shape)} nodes with a local batch of "
                f"{local_batch}: use nodes of at most 4 slots and at most 64 workers a job with the published profiles"
            )
        return float(step), float(sync)

    def noise(self, batch: float, epoch: int) -> tuple[float, float]:
        key = (batch, epoch)
        moments = self._noise.get(key)
        if moments is None:
            moments = self._noise[key] = (self._between(batch, epoch, 3), self._between(batch, epoch, 4))
        return moments

    def _between(self, batch: float, epoch: int, column: int) -> float:
        values = [float(self._validation[size][epoch, column]) for size in self._batches]
        return float(np.interp(batch, self._batches, values))

    def progress(self, epoch: int) -> float:
        return self._progress[epoch]

    def loss(self, epoch: float) -> float:
        """The validation metric of the initial batch turned into something that falls: the distance to its best value."""
        metric: Floats = self._validation[self.initial_batch][: self.epochs, 2]
        rises = metric[-1] >= metric[0]
        falling: Floats = (metric.max() - metric) if rises else (metric - metric.min())
        return float(np.interp(epoch, np.arange(1, self.epochs + 1), falling))

    def steps_left(self, batch: float, epoch: int) -> float:
        if epoch >= self.epochs - 1:
            return 1.0
        return self._between(batch, self.epochs - 1, 1) - self._between(batch, epoch, 1)


@lru_cache(maxsize=4)
def profiles(folder: Path) -> dict[str, Profile]:
    """All applications under a folder of profiles."""
    by_name = {path.parent.name: Profile(path.parent) for path in sorted(folder.glob("*/placements.csv"))}
    if not by_name:
        raise UsageError(f"no profiles in {folder}: it should have a folder for each application with a placements.csv in it")
    return by_name


def _numbers(path: Path, columns: tuple[str, ...]) -> Floats:
    if not path.is_file():
        raise UsageError(f"{path} is missing: a profile needs placements.csv, scalability.csv and validation-<batch>.csv")
    rows: list[list[float]] = []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        for number, row in enumerate(reader, start=2):
            try:
                rows.append([float(row[column]) for column in columns])
            except KeyError as missing:
                raise UsageError(f"{path}: column {missing} is missing; it has {reader.fieldnames}") from None
            except (TypeError, ValueError):
                raise UsageError(f"{path}, row {number}: not a number in {row}: correct or remove the row") from None
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(columns))


def _validations(folder: Path) -> dict[int, Floats]:
    return {
        int(path.stem.split("-")[1]): _numbers(path, ("progress", "iteration", "metric", "grad_sqr", "grad_var"))
        for path in folder.glob("validation-*.csv")
    }


def _placements(folder: Path) -> tuple[dict[tuple[int, ...], Floats], Floats]:
    """Measured tables by placement, and the means over placements of equal (nodes, workers, local batch)."""
    raw = _numbers(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time"))
    tables: dict[tuple[int, ...], list[Floats]] = {}
    groups: dict[tuple[int, int, float], list[Floats]] = {}
    for placement, local, step, sync in raw:
        shape = tuple(int(digit) for digit in str(int(placement)))
        tables.setdefault(shape, []).append(np.array([local, step, sync]))
        groups.setdefault((len(shape), sum(shape), local), []).append(np.array([step, sync]))
    points = np.array([[*key, *np.mean(values, axis=0)] for key, values in groups.items()])
    return {shape: np.array(sorted(rows, key=lambda row: row[0])) for shape, rows in tables.items()}, points
