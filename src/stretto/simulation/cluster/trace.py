"""Workloads from CSV files: the published ones, and users' own. Errors name the row, the column and the fix.

Every row is a job. `name` and `time` (seconds) are always there. A job is one of two kinds:

- `application`: a measured profile (a folder with placements.csv, scalability.csv, validation-*.csv); `num_replicas` and
`batch_size` are what its user asked for by hand.
- described in the row: `steps` at the batch `batch_size`, and its speed, either `step_s` (seconds for a step on one worker) with
  optional `sync_s` (seconds for the exchange), or the seven numbers of a fitted throughput model (`alpha_grad` … `gamma`);
  optional `noise_scale` and `max_batch_size` let its batch grow.

Optional for both: `min`, `max`, `num_replicas`, `priority`, `deadline`, `owner`, `quota`, `preemptible`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stretto.batching.throughput import ThroughputModel
from stretto.core.errors import UsageError
from stretto.simulation.cluster.application import Application, Synthetic
from stretto.simulation.cluster.profiles import MOST_WORKERS, profiles

MOST_JOBS = 100_000
MODEL = ("alpha_grad", "beta_grad", "alpha_across", "beta_across", "alpha_within", "beta_within", "gamma")
KNOWN = {
    "name",
    "time",
    "application",
    "num_replicas",
    "batch_size",
    "steps",
    "step_s",
    "sync_s",
    "noise_scale",
    "max_batch_size",
    "min",
    "max",
    "priority",
    "deadline",
    "owner",
    "quota",
    "preemptible",
    "node_kind",
    *MODEL,
}
MOST_WORKERS_DEFAULT = 64


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A row, understood."""

    name: str
    time_s: float
    application: Application
    workers: int
    """What its user asked for."""
    batch: int
    least: int = 1
    most: int = MOST_WORKERS_DEFAULT
    priority: float = 1.0
    deadline_s: float | None = None
    owner: str = ""
    quota: int | None = None
    preemptible: bool = True
    node_kind: str | None = None


def read_trace(path: Path, *, profiles_folder: Path | None = None) -> list[TraceJob]:
    """The jobs of a CSV file, in order of arrival."""
    if not path.is_file():
        raise UsageError(f"no workload at {path}: give a CSV file with a row for each job (columns name, time, …)")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [column.strip() for column in reader.fieldnames or ()]
            _columns(path, columns)
            reader.fieldnames = columns
            rows = list(_bounded(reader, path))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a CSV text file ({error}): save it as UTF-8 with commas") from None
    folder = profiles_folder if profiles_folder is not None else find_profiles(path)
    return parse(rows, source=str(path), folder=folder)


def _bounded(reader: csv.DictReader[str], path: Path) -> Iterable[Mapping[str, object]]:
    for number, row in enumerate(reader):
        if number >= MOST_JOBS:
            raise UsageError(f"{path} has more than {MOST_JOBS} jobs: simulate a part of it")
        yield row


def _columns(path: Path, columns: list[str]) -> None:
    missing = [column for column in ("name", "time") if column not in columns]
    if missing:
        raise UsageError(f"{path}, row 1: column {missing[0]} is missing; it has {', '.join(columns) or 'no columns'}: add it")
    unknown = [column for column in columns if column not in KNOWN]
    if unknown:
        raise UsageError(
            f"{path}, row 1: column {unknown[0]} is not known: remove it, or rename it to one of {', '.join(sorted(KNOWN))}"
        )


def find_profiles(path: Path) -> Path | None:
    """A folder `profiles` beside the workload's folder, as in the published traces."""
    for folder in (path.parent, path.parent.parent):
        if (folder / "profiles").is_dir():
            return folder / "profiles"
    return None


def parse(rows: Iterable[Mapping[str, object]], *, source: str, folder: Path | None) -> list[TraceJob]:
    jobs: list[TraceJob] = []
    row_of: dict[str, int] = {}
    for number, row in enumerate(rows, start=2):
        cell = Cell(source, number, row)
        name = cell.text("name")
        if name in row_of:
            cell.fail("name", f"{name} was used in row {row_of[name]} already", "give every job a name of its own")
        row_of[name] = number
        jobs.append(_job(cell, name, folder))
    if not jobs:
        raise UsageError(f"{source} has no jobs: add a row for each job")
    return sorted(jobs, key=lambda job: job.time_s)


def _job(cell: Cell, name: str, folder: Path | None) -> TraceJob:
    application = _application(cell, name, folder)
    workers = int(cell.number("num_replicas", default=1, low=1, whole=True))
    least = int(cell.number("min", default=1, low=1, whole=True))
    usual = MOST_WORKERS.get(application.name, MOST_WORKERS_DEFAULT)
    most = int(cell.number("max", default=max(usual, least), low=1, whole=True))
    if most < least:
        cell.fail("max", f"{most} is below min, {least}", "raise max or lower min")
    quota = cell.number("quota", default=-1, low=-1, whole=True)
    deadline = cell.number("deadline", default=-1)
    return TraceJob(
        name,
        cell.number("time", low=0),
        application,
        workers,
        int(cell.number("batch_size", default=application.initial_batch, low=1, whole=True)),
        least,
        most,
        cell.number("priority", default=1, low=0),
        deadline if deadline >= 0 else None,
        cell.text("owner", default=""),
        int(quota) if quota >= 0 else None,
        cell.truth("preemptible"),
        cell.text("node_kind", default="") or None,
    )


def _application(cell: Cell, name: str, folder: Path | None) -> Application:
    measured = cell.text("application", default="")
    if measured:
        if folder is None:
            cell.fail("application", f"{measured} needs a folder of profiles", "give one with --profiles")
        measured_profiles = profiles(folder)
        if measured not in measured_profiles:
            cell.fail("application", f"{measured} has no profile in {folder}", f"use one of {', '.join(sorted(measured_profiles))}")
        return measured_profiles[measured]
    batch = int(cell.number("batch_size", low=1, whole=True))
    most = int(cell.number("max_batch_size", default=batch, low=batch, whole=True))
    return Synthetic(
        name,
        _model(cell, batch),
        batch,
        most,
        cell.number("steps", low=1),
        noise_scale=cell.number("noise_scale", default=0, low=0),
    )


def _model(cell: Cell, batch: int) -> ThroughputModel:
    if cell.has("alpha_grad"):
        numbers = [cell.number(column, default=1.0 if column == "gamma" else 0.0, low=0) for column in MODEL]
        model = ThroughputModel(*numbers)
        if not model.sane:
            cell.fail("gamma", f"the model {numbers} describes no machine", "gamma must be 1 to 10, alpha_grad + beta_grad above 0")
        return model
    step = cell.number("step_s", low=1e-9)
    sync = cell.number("sync_s", default=0, low=0)
    return ThroughputModel(step * 0.1, step * 0.9 / batch, sync, 0.0, sync / 2, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """One row's cells, with errors that say where and what to do."""

    source: str
    row: int
    cells: Mapping[str, object]

    def fail(self, column: str, what: str, fix: str) -> None:
        raise UsageError(f"{self.source}, row {self.row}, column {column}: {what}: {fix}")

    def has(self, column: str) -> bool:
        return str(self.cells.get(column) if self.cells.get(column) is not None else "").strip() != ""

    def text(self, column: str, *, default: str | None = None) -> str:
        if not self.has(column):
            if default is None:
                self.fail(column, "it is empty", "fill it in")
            return default or ""
        return str(self.cells[column]).strip()

    def number(
        self,
        column: str,
        *,
        default: float | None = None,
        low: float | None = None,
        whole: bool = False,
    ) -> float:
        if not self.has(column):
            if default is None:
                self.fail(column, "it is empty", "fill it in with a number")
            return default or 0.0
        text = str(self.cells[column]).strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.fail(column, f"{text!r} is not a number", "write a plain number like 120 or 0.5")
        if whole and value != int(value):
            self.fail(column, f"{text} is not a whole number", "round it")
        if low is not None and value < low:
            self.fail(column, f"{text} is below {low:g}", f"use {low:g} or more")
        return value

    def truth(self, column: str) -> bool:
        text = self.text(column, default="yes").lower()
        if text not in ("yes", "no", "true", "false", "1", "0"):
            self.fail(column, f"{text!r} is neither yes nor no", "write yes or no")
        return text in ("yes", "true", "1")
