"""Ours, the default: marginal goodput, slots where a unit of work is worth most, and no change that does not pay for itself.

Every job's fitted model gives its speed on every size. An option is worth weight × speed^evenness:

- Where a length is declared, or known from a job's family (lengths.py), every job counts what a unit of its work is worth in a
  look ahead over all present jobs (lookahead.py), and its speed as it is: that is what minimises the sum of completion times.
  Jobs of unknown length are presumed to be as long as the class that they have reached.
- Where nothing is known of anybody, jobs are ranked by what they have attained, in a few classes that grow by a factor each, and in
  order of arrival within a class: equal sharing between long jobs would only make all of them end late. The i-th from the longest
  counts i^order, as in heSRPT (Berg et al. 2020). Evenness below 1 hedges against lengths that are not known.

A size that is not the present one counts with its pause: the speed over the rest of the job for known lengths, and a factor that
remembers how much of its life a job has already spent on changes (as in Pollux), or what a pause costs over a horizon, whichever is
kinder. The sizes with the highest total are chosen by prices (choosing.py) and packed (packing.py).
A job that has waited for `starving_s` runs next, whatever its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.scheduling.allocate import Setting, allocate
from stretto.scheduling.lengths import work_left
from stretto.scheduling.lookahead import pieces, worths
from stretto.scheduling.options import Floats
from stretto.scheduling.words import Allocation, Job, Node


@dataclass(frozen=True, slots=True)
class Tuning:
    order: float = 0.5
    """Exponent of a job's rank in its weight: 0 treats all alike, large values serve one after the other."""
    evenness: float = 0.5
    """Exponent of the speed where no length is known: 1 is the sum of speeds, towards 0 everybody gets something."""
    guess: float = 0.6
    """Exponent of the ranks that a look ahead begins with."""
    first_s: float = 900.0
    """Slot-seconds up to which a job of unknown length counts as short; the following classes are `factor` times as long each."""
    factor: float = 4.0
    classes: int = 4
    horizon_s: float = 300.0
    """A change pays for itself within this time at the latest, for jobs whose length is not known."""
    patience: float = 0.95
    """The least that a change counts for jobs of known length, whose remaining time is weighed exactly."""
    starving_s: float = 3600.0
    urgency: float = 4.0
    """How much more a job counts that can only just meet its deadline."""


DEFAULT = Tuning()


def goodput(jobs: Sequence[Job], nodes: Sequence[Node], now: Allocation, time_s: float, *, tuning: Tuning = DEFAULT) -> Allocation:
    starving = [job.name for job in jobs if not now.of(job.name) and _waited_s(job, time_s) > tuning.starving_s]
    return allocate(jobs, nodes, now, time_s, lambda setting: value(setting, tuning), must=starving)


def _waited_s(job: Job, time_s: float) -> float:
    """Since it arrived, or since it was taken off the cluster."""
    return time_s - (job.arrival_s if job.changed_s is None else job.changed_s)


def value(setting: Setting, tuning: Tuning = DEFAULT) -> Floats:
    """What every option of every job is worth."""
    left_s = _left_s(setting)
    known = np.isfinite(left_s)
    length = np.where(known, left_s, _class_s(setting, tuning))
    ranks = _ranks(setting, length)
    # One measure for all: worths and ranks are different currencies, and whoever is paid in ranks beside worths is squeezed.
    looks = bool(known.any())
    weight = _worths(setting, length, ranks, ranks**tuning.guess) if looks else ranks**tuning.order
    evenness = 1.0 if looks else tuning.evenness
    return (weight * _importance(setting, left_s, tuning))[:, None] * effective_speed(setting, left_s, tuning) ** evenness


def _left_s(setting: Setting) -> Floats:
    """Seconds left on one worker; NaN where nothing is known of a job's length or speed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(setting.table.single > 0, work_left(setting.jobs) / setting.table.single, np.nan)


def _class_s(setting: Setting, tuning: Tuning) -> Floats:
    """For jobs of unknown length: as long again as the class that they have reached."""
    attained = np.array([max(job.attained_s, 1.0) for job in setting.jobs])
    level = np.clip(np.ceil(np.log(attained / tuning.first_s) / np.log(tuning.factor)), 0, tuning.classes)
    return tuning.first_s * tuning.factor**level


def _ranks(setting: Setting, length: Floats) -> Floats:
    """From 1/n for the longest job up to 1 for the shortest; the earlier one of equals counts as shorter."""
    arrival = np.array([job.arrival_s for job in setting.jobs])
    ranks = np.empty(len(length))
    ranks[np.lexsort((-arrival, -length))] = np.arange(1, len(length) + 1) / len(length)
    return ranks


def _worths(setting: Setting, length: Floats, ranks: Floats, guess: Floats) -> Floats:
    table = setting.table
    capacity = float(sum(group.capacity for group in table.groups))
    # Equals one after the other, as they came: a look ahead that treats them alike would end all of them late.
    apart = length * (1.0 + 1e-3 * (1.0 - ranks))
    return worths(guess, apart, pieces(table.speed, table.size), capacity)


def _importance(setting: Setting, left_s: Floats, tuning: Tuning) -> Floats:
    """Priorities, and deadlines that are near: 1 with time to spare, up to `urgency` when only its largest size can meet it."""
    priority = np.array([max(job.priority, 1e-6) for job in setting.jobs])
    fastest = np.maximum(setting.table.speed.max(axis=1, initial=0.0), 1e-9)
    until = np.array([np.inf if job.deadline_s is None else max(job.deadline_s - setting.time_s, 1.0) for job in setting.jobs])
    need = np.where(np.isfinite(left_s), left_s / until / fastest, 0.0)
    return priority * (1.0 + (tuning.urgency - 1.0) * np.clip(need, 0.0, 1.0) * (need <= 1.0))


def effective_speed(setting: Setting, left_s: Floats, tuning: Tuning) -> Floats:
    """The speed of every option with the cost of getting there."""
    speed = setting.table.speed
    pause = np.array([max(job.pause_s, 0.0) for job in setting.jobs])
    age = np.array([max(setting.time_s - job.arrival_s, 0.0) for job in setting.jobs])
    spent = np.array([job.restarts for job in setting.jobs]) * pause
    life = np.maximum(age - spent, 0.0) / np.maximum(age + pause, 1e-9)
    factor = np.maximum(life, 1.0 - pause / max(tuning.horizon_s, 1e-9))
    known = np.isfinite(left_s)
    factor = np.where(known, np.maximum(factor, tuning.patience), factor)
    factor = np.where(setting.held > 0, np.clip(factor, 0.0, 1.0), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = left_s[:, None] / (pause[:, None] + left_s[:, None] / np.maximum(speed, 1e-12))
        # A job that starts pays for its start whatever its size: only what a larger size saves beyond that counts for it.
        smallest = np.where(speed > 0, speed, np.inf).min(axis=1)
        least = left_s / (pause + left_s / np.maximum(smallest, 1e-12))
        whole = np.where((setting.held > 0)[:, None], whole, whole * (smallest / np.maximum(least, 1e-12))[:, None])
    whole = np.where(np.isfinite(whole), whole, 0.0)
    changed = np.where(known[:, None], whole, speed) * factor[:, None]
    here = (setting.table.size[None, :] == setting.held[:, None]) & (setting.table.group[None, :] == setting.home[:, None])
    return np.where(here, speed, np.maximum(changed, 0.0))
