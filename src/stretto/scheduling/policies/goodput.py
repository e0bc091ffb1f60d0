"""Ours, the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.scheduling.choosing import choose
from stretto.scheduling.options import Floats, Options, options
from stretto.scheduling.packing import pack
from stretto.scheduling.placing import still_valid
from stretto.scheduling.words import Allocation, Job, Node, Placement, size


@dataclass(frozen=True, slots=True)
class Tuning:
    mode: str = "power"      # power | rank
    alpha: float = 0.5
    offset_s: float = 600.0
    q: float = 1.0
    horizon_s: float = 600.0
    attained: str = "slots"  # slots | work


def goodput(jobs: Sequence[Job], nodes: Sequence[Node], now: Allocation, time_s: float, *, tuning: Tuning = Tuning()) -> Allocation:
    if not jobs or not nodes:
        return Allocation()
    kept = still_valid(jobs, nodes, now)
    held = np.array([size(kept.get(job.name, ())) for job in jobs])
    table = options(jobs, nodes, held=held.tolist())
    value = _value(jobs, table, kept, held, time_s, tuning)
    capacity = np.array([group.capacity for group in table.groups])
    picks = choose(value, table.size, table.group, capacity)
    places: dict[str, Placement] = {}
    for place, group in enumerate(table.groups):
        wanted = {job.name: int(table.size[pick]) for job, pick in zip(jobs, picks, strict=True) if pick >= 0 and table.group[pick] == place}
        places |= pack(group, wanted, kept, set())
    return Allocation(places, {})


def _value(jobs: Sequence[Job], table: Options, kept: dict[str, Placement], held, time_s: float, t: Tuning) -> Floats:
    left = np.array([np.nan if job.remaining is None else job.remaining for job in jobs])
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(table.single > 0, left / table.single, np.nan)
    attained = np.array([job.attained_s for job in jobs])
    base = np.where(np.isfinite(seconds), seconds, attained)
    if t.mode == "rank":
        order = np.argsort(np.argsort(-base, kind="stable"), kind="stable") + 1.0
        weight = (order / len(jobs)) ** t.alpha
    else:
        weight = (base + t.offset_s) ** -t.alpha
    s = table.speed
    if t.q == 1.0:
        u = s
    elif t.q == 0.0:
        u = np.where(s > 0, 3 + np.log(np.maximum(s, 1e-9)), 0)
    else:
        u = np.where(s > 0, (np.maximum(s, 1e-9) ** t.q - 1) / t.q + 2, 0)
    change = table.size[None, :] != held[:, None]
    horizon = np.array([t.horizon_s if np.isnan(sec) else min(max(sec / max(h, 1), 1.0), t.horizon_s) for sec, h in zip(seconds, held)])
    pause = np.array([job.pause_s for job in jobs])
    factor = np.maximum(1 - pause / np.maximum(horizon, pause), 0.05)
    factor = np.where(held > 0, factor, 1.0)
    u = np.where(change, u * factor[:, None], u)
    return np.where(s > 0, u * weight[:, None], -np.inf)
