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
    change: str = "life"
    exact: bool = True
    first: float = 900.0
    step: float = 4.0
    top: int = 3


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
    elif t.mode == "rank2":
        arrival = np.array([job.arrival_s for job in jobs])
        known = np.isfinite(seconds)
        bucket = np.clip(np.floor(np.log(np.maximum(attained, 1) / t.first) / np.log(t.step)), -1, t.top)
        key = np.where(known, seconds, t.first * t.step ** (bucket + 1))
        order = np.lexsort((-arrival, -key))
        rank = np.empty(len(jobs)); rank[order] = np.arange(len(jobs)) + 1.0
        weight = rank ** t.alpha
    else:
        weight = (base + t.offset_s) ** -t.alpha
    s = table.speed
    change = table.size[None, :] != held[:, None]
    age = np.array([max(time_s - job.arrival_s, 0.0) for job in jobs])
    restarts = np.array([job.restarts for job in jobs])
    pause = np.array([job.pause_s for job in jobs])
    if t.change == "life":
        factor = np.maximum(age - restarts * pause, 0.0) / (age + pause)
    else:
        factor = np.maximum(1 - pause / t.horizon_s, 0.05) * np.ones(len(jobs))
    factor = np.where(held > 0, factor, 1.0)
    work = np.where(np.isfinite(seconds), seconds, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        net = np.where(np.isfinite(work)[:, None], work[:, None] / (pause[:, None] + work[:, None] / np.maximum(s, 1e-9)), s)
    eff = np.where(change, (net if t.exact else s) * factor[:, None], s)
    u = np.maximum(eff, 0.0) ** t.q
    return np.where(s > 0, u * weight[:, None], -np.inf)
