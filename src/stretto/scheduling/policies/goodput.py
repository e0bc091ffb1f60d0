"""Ours, the default: marginal goodput, slots where a unit of work is worth most, and no change that does not pay for itself.

Every job's fitted model gives its speed on every size. An option is worth the job's weight times its speed. The weight is what a
unit of the job's work is worth in a look ahead over all present jobs (lookahead.py), whose objective is the sum of completion
times and, `last` times, the end of them all. A job's length is declared, or learned from its family (lengths.py), or
presumed: as long again as the class by attained service that it has reached. Presumed lengths are believed the less the more
jobs there are.

A size that is not the present one counts with its pause: over the rest of the job where its length is known; over the time that it
can be expected to last where the job has been on that size before, which is as long as the present size has lasted. A size that
was never tried is an investment, and counts only with how much of its life a job has already spent on changes (as in Pollux), or
what a pause costs over a horizon, whichever is kinder.

The sizes with the highest total are chosen by prices (knapsack.py) and packed (slots.py). While the fewest workers of all jobs
fit, everybody runs; otherwise a job that has waited for `starving_s` runs next, whatever its weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.scheduling.allocate import Setting, allocate
from stretto.scheduling.candidate_sizes import Floats
from stretto.scheduling.length_estimates import LengthHistory, gittins, work_left
from stretto.scheduling.lookahead import pieces, worths
from stretto.scheduling.types import Allocation, ClusterNode, PolicyTraits, SchedulableJob

TRAITS = PolicyTraits()


@dataclass(frozen=True, slots=True)
class GoodputTuning:
    """Constants of the goodput policy. They trade mean completion time against the makespan and the longest wait."""

    guess: float = 0.6
    """Exponent of the ranks by length that a look ahead begins with: between equal shares (0) and one after the other."""
    last: float = 1.0
    """Weight of the makespan, in jobs. 0 optimises mean completion time at the longest jobs' expense."""
    last_share: float = 0.1
    """The same as a share of the jobs of unknown length, where that is more: any of them may be the last to end."""
    crowd: float = 0.2
    """Jobs for each slot beyond which presumed lengths are believed less: the more jobs, the more often a long one is taken for
    a short one, and the longer whoever is put behind it waits."""
    first_s: float = 900.0
    """Slot-seconds up to which a job of unknown length counts as short; the following classes are `factor` times as long each."""
    factor: float = 4.0
    classes: int = 4
    horizon_s: float = 300.0
    """A change pays for itself within this time at the latest, for jobs whose length is not known."""
    patience: float = 0.95
    """The most that a change counts to a size that the job knows, and the least to one that is new, for jobs of known length."""
    starving_s: float = 3600.0
    urgency: float = 4.0
    """How much more a job counts that can only just meet its deadline."""


DEFAULT = GoodputTuning()


def goodput(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    now: Allocation,
    time_s: float,
    *,
    tuning: GoodputTuning = DEFAULT,
) -> Allocation:
    history = now.memory if isinstance(now.memory, LengthHistory) else LengthHistory()
    names = {job.name for job in jobs}
    ended = history.without([name for name in history.running if name not in names], time_s)
    settings: list[Setting] = []

    def value_of(setting: Setting) -> Floats:
        settings.append(setting)
        # Where families are known, a job whose family has no finished job is not like jobs of other families.
        return value(setting, tuning, () if any(job.finished for job in jobs) else ended)

    starving = [job.name for job in jobs if not now.of(job.name) and _waited_s(job, time_s) > tuning.starving_s]
    answer = allocate(jobs, nodes, now, time_s, value_of, must=starving, everybody=True)
    running = {name: progress for setting in settings for name, progress in _running(setting, answer)}
    return replace(answer, memory=LengthHistory(time_s, running, ended))


def _running(setting: Setting, answer: Allocation) -> Iterator[tuple[str, tuple[float, float]]]:
    """How far every job has come, and how fast it will go on."""
    for row, (job, done_s) in enumerate(zip(setting.jobs, _done_s(setting).tolist(), strict=True)):
        here = setting.table.size == answer.workers(job.name)
        yield job.name, (done_s, float(setting.table.speed[row, here].max(initial=0.0)))


def _waited_s(job: SchedulableJob, time_s: float) -> float:
    """Since it arrived, or since it was taken off the cluster."""
    return time_s - (job.arrival_s if job.changed_s is None else job.changed_s)


def value(setting: Setting, tuning: GoodputTuning = DEFAULT, ended: Sequence[float] = ()) -> Floats:
    """What every option of every job is worth."""
    left = work_left(setting.jobs)
    left_s, presumed = _left_s(setting, left), int(np.isnan(left).sum())
    # One unit for all jobs: a job measured in another unit would get too few slots, or too many.
    length = np.where(np.isfinite(left_s), left_s, _presumed_s(setting, tuning, ended))
    worth = _worths(setting, length, presumed, tuning) ** _belief(setting, presumed, tuning)
    weight = worth * _importance(setting, left_s, tuning)
    return weight[:, None] * effective_speed(setting, left_s, tuning)


def _left_s(setting: Setting, left: Floats) -> Floats:
    """Seconds left on one worker; NaN where nothing is known of a job's length or speed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(setting.table.single > 0, left / setting.table.single, np.nan)


def _done_s(setting: Setting) -> Floats:
    """Seconds of one worker that every job has done; the slot-seconds it had where its work or its speed is not known."""
    single = setting.table.single.tolist()
    return np.array(
        [
            job.attained_s if job.done is None or not speed > 0 else job.done / speed
            for job, speed in zip(setting.jobs, single, strict=True)
        ]
    )


def _presumed_s(setting: Setting, tuning: GoodputTuning, ended: Sequence[float]) -> Floats:
    """For jobs of unknown length: by those that have ended, or as long again as the class that they have reached."""
    attained = np.array([max(job.attained_s, 1.0) for job in setting.jobs])
    level = np.clip(np.ceil(np.log(attained / tuning.first_s) / np.log(tuning.factor)), 0, tuning.classes)
    pooled = gittins(ended, _done_s(setting))
    return np.where(np.isfinite(pooled), pooled, tuning.first_s * tuning.factor**level)


def _ranks(setting: Setting, length: Floats) -> Floats:
    """From 1/n for the longest job up to 1 for the shortest; the earlier one of equals counts as shorter."""
    arrival = np.array([job.arrival_s for job in setting.jobs])
    ranks = np.empty(len(length))
    ranks[np.lexsort((-arrival, -length))] = np.arange(1, len(length) + 1) / len(length)
    return ranks


def _worths(setting: Setting, length: Floats, presumed: int, tuning: GoodputTuning) -> Floats:
    table = setting.table
    capacity = float(sum(group.capacity for group in table.groups))
    ranks = _ranks(setting, length)
    # Equals one after the other, as they came: a look ahead that treats them alike would end all of them late.
    apart = length * (1.0 + 1e-3 * (1.0 - ranks))
    last = max(tuning.last, tuning.last_share * presumed)
    return worths(ranks**tuning.guess, apart, pieces(table.later, table.size), capacity, last=last)


def _belief(setting: Setting, presumed: int, tuning: GoodputTuning) -> float:
    """Exponent of the worths, one for all jobs: 1 where all lengths are known or few jobs are there, less in a crowd."""
    slots = sum(group.capacity for group in setting.table.groups)
    jobs = len(setting.jobs)
    return 1.0 - presumed / jobs * (1.0 - min(1.0, tuning.crowd * slots / jobs))


def _importance(setting: Setting, left_s: Floats, tuning: GoodputTuning) -> Floats:
    """Priorities, and deadlines that are near: 1 with time to spare, up to `urgency` when only its largest size can meet it."""
    priority = np.array([max(job.priority, 1e-6) for job in setting.jobs])
    fastest = np.maximum(setting.table.speed.max(axis=1, initial=0.0), 1e-9)
    until = np.array([np.inf if job.deadline_s is None else max(job.deadline_s - setting.time_s, 1.0) for job in setting.jobs])
    need = np.where(np.isfinite(left_s), left_s / until / fastest, 0.0)
    return priority * (1.0 + (tuning.urgency - 1.0) * np.clip(need, 0.0, 1.0) * (need <= 1.0))


def effective_speed(setting: Setting, left_s: Floats, tuning: GoodputTuning) -> Floats:
    """The speed of every option with the cost of getting there."""
    speed, size, held = setting.table.speed, setting.table.size[None, :], setting.held[:, None]
    known = np.isfinite(left_s)[:, None]
    new, again = _factors(setting, tuning)
    new = np.where(known, np.maximum(new, tuning.patience), new)
    tried = size <= np.array([job.profiled for job in setting.jobs])[:, None]
    factor = np.where(tried, np.minimum(new, again), new)
    changed = np.where(known, _over_the_rest(setting, left_s), speed) * np.where(held > 0, factor, 1.0)
    here = (size == held) & (setting.table.group[None, :] == setting.home[:, None])
    return np.where(here, speed, np.maximum(changed, 0.0))


def _factors(setting: Setting, tuning: GoodputTuning) -> tuple[Floats, Floats]:
    """What a change counts, for each job: on a size that is new to it, and on one that it has been on before."""
    pause = np.array([max(job.pause_s, 0.0) for job in setting.jobs])
    age = np.array([max(setting.time_s - job.arrival_s, 0.0) for job in setting.jobs])
    spent = np.array([job.restarts for job in setting.jobs]) * pause
    life = np.maximum(age - spent, 0.0) / np.maximum(age + pause, 1e-9)
    new = np.clip(np.maximum(life, 1.0 - pause / max(tuning.horizon_s, 1e-9)), 0.0, 1.0)
    since = np.array([np.inf if job.changed_s is None else setting.time_s - job.changed_s for job in setting.jobs])
    # Half at least: a job that has just changed still makes room for one that brings twice as much.
    again = np.clip(1.0 - pause / np.maximum(since, 1e-9), 0.5, tuning.patience)
    return new[:, None], again[:, None]


def _over_the_rest(setting: Setting, left_s: Floats) -> Floats:
    """Speeds of jobs of known length, with one pause spread over the rest of the job; 0 for the others."""
    speed = setting.table.speed
    pause = np.array([max(job.pause_s, 0.0) for job in setting.jobs])
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = left_s[:, None] / (pause[:, None] + left_s[:, None] / np.maximum(speed, 1e-12))
        # A job that starts pays for its start whatever its size: only what a larger size saves beyond that counts for it.
        smallest = np.where(speed > 0, speed, np.inf).min(axis=1)
        least = left_s / (pause + left_s / np.maximum(smallest, 1e-12))
        whole = np.where((setting.held > 0)[:, None], whole, whole * (smallest / np.maximum(least, 1e-12))[:, None])
    return np.where(np.isfinite(whole), whole, 0.0)
