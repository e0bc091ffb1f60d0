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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.batching.throughput import Observation, ThroughputModel, fit
from stretto.core.errors import UsageError
from stretto.scheduling.types import DEFAULT_KIND, ClusterNode
from stretto.simulation.cluster.application import Synthetic
from stretto.simulation.cluster.trace import MODEL, TraceJob

MOST_BYTES = 256 << 20
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RecordedTrace:
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


def read_recorded(document: Any, *, source: str) -> RecordedTrace:
    rows = document.get("items") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise UsageError(f"{source} has no list of jobs: it should be a list, or an object with `items`")
    nodes = document.get("nodes") or {} if isinstance(document, dict) else {}
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
    kinds = document.get("kinds") or {} if isinstance(document, dict) else {}
    cluster = tuple(ClusterNode(str(name), int(slots), str(kinds.get(name, DEFAULT_KIND))) for name, slots in nodes.items())
    return RecordedTrace(tuple(jobs), cluster, tuple(left_out))


def _job(place: int, row: Mapping[str, Any]) -> TraceJob | None:
    batch, steps = row.get("batch") or row.get("batch_size"), row.get("steps")
    if not batch or not steps:
        return None
    model = _model(row, int(batch))
    if model is None:
        return None
    least = int(row.get("min_workers") or row.get("min") or 1)
    most = max(int(row.get("max_workers") or row.get("max") or least), least)
    name = f"{row['name']}-{place}"
    application = Synthetic(
        name, model, int(batch), int(row.get("max_batch") or batch), float(steps), noise_scale=float(row.get("noise_scale") or 0.0)
    )
    return TraceJob(
        name,
        float(row["time"]),
        application,
        most,
        int(batch),
        least,
        most,
        priority=2.0 ** (float(row.get("priority") or 0.0) / 10.0),
        owner=str(row.get("tenant") or ""),
        preemptible=bool(row.get("preemptible", True)),
        node_kind=row.get("node_type"),
    )


def _model(row: Mapping[str, Any], batch: int) -> ThroughputModel | None:
    given: Mapping[str, Any] = row.get("model") or {}
    if all(key in given for key in MODEL):
        model = ThroughputModel(*(float(given[key]) for key in MODEL))
        return model if model.sane else None
    speeds = [(int(workers), float(speed)) for workers, speed in (row.get("throughput") or {}).items()]
    return fit(observations(batch, speeds)) if any(speed > 0 for _, speed in speeds) else None


def observations(batch: int, speeds: Sequence[tuple[int, float]]) -> list[Observation]:
    """Measured samples a second as observations of steps; the gradients' time is that of the smallest number of workers."""
    known = sorted((workers, batch / speed) for workers, speed in speeds if workers > 0 and math.isfinite(speed) and speed > 0)
    first, first_s = known[0]
    return [
        Observation(1, workers, max(batch // workers, 1), min(first_s * first / workers, step_s), step_s)
        for workers, step_s in known
    ]
