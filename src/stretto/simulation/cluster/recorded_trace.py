"""What a job server recorded, as a workload: `GET URL/v1/trace`.

The answer is `{"items": [row, …], "nodes": {name: slots}}` or just the list of rows. A row has `name`, `time` (seconds after the
first), `min_workers`/`max_workers` (or `min`/`max`), `steps`, `batch` and its speed: `model`, the seven numbers of a
throughput model, or `throughput`, samples a second measured at each number of workers. Optional: `priority` (steps of ten
double it), `tenant`, `noise_scale`. Rows without steps, batch or any speed cannot be replayed: they are left out and counted.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.batching.throughput import Observation, ThroughputModel, fit
from stretto.core.errors import UsageError
from stretto.core.json_types import JsonObject, JsonValue, to_int, to_object
from stretto.scheduling.types import DEFAULT_KIND, ClusterNode
from stretto.simulation.cluster.application import Synthetic
from stretto.simulation.cluster.trace import MODEL, TraceJob

MOST_BYTES = 256 << 20
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """A recorded workload that can be replayed."""

    jobs: tuple[TraceJob, ...]
    nodes: tuple[ClusterNode, ...]
    """The server's own nodes; empty if it did not say."""
    left_out: tuple[str, ...]
    """Jobs of which too little was measured."""


def from_server(url: str, *, token: str | None = None, hours: float | None = None) -> RecordedTrace:
    """Fetch and read a server's trace."""
    address = url.rstrip("/") + "/v1/trace" + (f"?hours={hours:g}" if hours is not None else "")
    if not address.startswith(("http://", "https://")):
        raise UsageError(f"--from-server {url}: not an address: write http://HOST:PORT")
    request = urllib.request.Request(address, headers={"Accept": "application/json"})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            body = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        hint = (
            "set STRETTO_TOKEN to a token of the server" if error.code in (401, 403) else "is it a stretto server of this version?"
        )
        raise UsageError(f"{address} answered {error.code}: {hint}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{address} does not answer ({error}): start the server or correct the address") from None
    if len(body) > MOST_BYTES:
        raise UsageError(f"{address} has more than {MOST_BYTES >> 20} MB: ask for fewer hours with --hours")
    try:
        document = json.loads(body)
    except ValueError:
        raise UsageError(f"{address} did not answer with JSON: is it a stretto server?") from None
    return read_recorded(document, source=address)


def read_recorded(document: JsonValue, *, source: str) -> RecordedTrace:
    """The jobs of the answer of `GET URL/v1/trace`; `source` is named in errors."""
    rows = document.get("items") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise UsageError(f"{source} has no list of jobs: it should be a list, or an object with `items`")
    about = document if isinstance(document, dict) else {}
    nodes, kinds = to_object(about.get("nodes")), to_object(about.get("kinds"))
    jobs: list[TraceJob] = []
    left_out: list[str] = []
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or "name" not in row or "time" not in row:
            raise UsageError(f"{source}, job {place}: name or time is missing in {str(row)[:100]}")
        job = _job(place, row)
        if job is None:
            left_out.append(str(row["name"]))
        else:
            jobs.append(job)
    if not jobs:
        raise UsageError(f"{source} has no job that can be replayed ({len(left_out)} without steps, batch or measured speed)")
    cluster = tuple(ClusterNode(name, to_int(slots), str(kinds.get(name, DEFAULT_KIND))) for name, slots in nodes.items())
    return RecordedTrace(tuple(jobs), cluster, tuple(left_out))


def _job(place: int, row: JsonObject) -> TraceJob | None:
    batch, steps = row.get("batch") or row.get("batch_size"), row.get("steps")
    if not batch or not steps:
        return None
    model = _model(row, to_int(batch))
    if model is None:
        return None
    least = to_int(row.get("min_workers") or row.get("min") or 1)
    most = max(to_int(row.get("max_workers") or row.get("max") or least), least)
    name = f"{row['name']}-{place}"
    application = Synthetic(
        name,
        model,
        to_int(batch),
        to_int(row.get("max_batch") or batch),
        _number(steps),
        noise_scale=_number(row.get("noise_scale") or 0.0),
    )
    node_kind = row.get("node_type")
    return TraceJob(
        name,
        _number(row["time"]),
        application,
        most,
        to_int(batch),
        least,
        most,
        priority=2.0 ** (_number(row.get("priority") or 0.0) / 10.0),
        owner=str(row.get("tenant") or ""),
        preemptible=bool(row.get("preemptible", True)),
        node_kind=None if node_kind is None else str(node_kind),
    )


def _model(row: JsonObject, batch: int) -> ThroughputModel | None:
    given = to_object(row.get("model"))
    if all(key in given for key in MODEL):
        model = ThroughputModel(*(_number(given[key]) for key in MODEL))
        return model if model.sane else None
    speeds = [(int(workers), _number(speed)) for workers, speed in to_object(row.get("throughput")).items()]
    return fit(observations(batch, speeds)) if any(speed > 0 for _, speed in speeds) else None


def _number(value: JsonValue) -> float:
    if value is None or isinstance(value, list | dict):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def observations(batch: int, speeds: Sequence[tuple[int, float]]) -> list[Observation]:
    """Measured samples a second as observations of steps; the gradients' time is that of the smallest number of workers."""
    measured = sorted((workers, batch / speed) for workers, speed in speeds if workers > 0 and math.isfinite(speed) and speed > 0)
    first, first_s = measured[0]
    return [
        Observation(1, workers, max(batch // workers, 1), min(first_s * first / workers, step_s), step_s)
        for workers, step_s in measured
    ]
