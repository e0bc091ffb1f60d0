"""From a value for every option to an allocation: what all policies that choose sizes have in common.

Pinned jobs are set aside with their slots. Jobs that may not be taken off the cluster keep at least their fewest workers.
An owner's jobs are first sized within the owner's quota alone; none of them gets more than that afterwards. Then sizes are
chosen for everybody, workers are placed, and slots that are left over go to whoever gains from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.core.text import quantity
from stretto.scheduling.candidate_sizes import Floats, Ints, Options, SizeGroup, options
from stretto.scheduling.knapsack import choose
from stretto.scheduling.slots import Quotas, free_slots, pack, still_valid
from stretto.scheduling.types import Allocation, ClusterNode, Placement, SchedulableJob, size

MUST = 1e6
"""Added to every option of a job that has to run: more than any sum of real values, which are normalised to a maximum of 1."""

SETTLING = 4.0
"""Pauses after a change during which a job is not moved to make room for another: a short one would have ended by then, and
is what a second pause hurts most."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy's value function sees: the jobs that can be sized, their options, and how many workers each holds now."""

    jobs: Sequence[SchedulableJob]
    table: Options
    held: Ints
    home: Ints
    """The group that each job is in now, −1 for none."""
    time_s: float


ValueOf = Callable[[Setting], Floats]
"""(jobs, options): what each option is worth; anything not above 0 is as bad as not running."""


def allocate(
    jobs: Sequence[SchedulableJob],
    nodes: Sequence[ClusterNode],
    now: Allocation,
    time_s: float,
    value_of: ValueOf,
    *,
    must: Sequence[str] = (),
    everybody: bool = False,
) -> Allocation:
    """The allocation with the highest total value. Jobs named in `must` run if anything of theirs fits; with `everybody` all do,
    while the fewest workers of all fit."""
    kept = still_valid(jobs, nodes, now)
    pinned = {job.name: kept[job.name] for job in jobs if job.pinned and job.name in kept}
    movable = [job for job in jobs if job.name not in pinned]
    if not movable or not nodes:
        return Allocation(pinned, dict.fromkeys(pinned, "pinned"))
    setting = _setting(movable, nodes, kept, time_s)
    value = _normalised(value_of(setting), setting.table)
    held_fast = {job.name for job in movable if not job.preemptible and job.name in kept}
    # One job that may not be taken off counts more than all together that only ought to run.
    first, ought = MUST * (len(movable) + 1), set(must)
    forced = np.array([first if job.name in held_fast else MUST if job.name in ought else 0.0 for job in movable])
    if everybody:
        forced = np.maximum(forced, _floor(movable, _capacity(setting.table.groups, pinned)))
    value = np.where(np.isfinite(value), value + forced[:, None], value)
    value = _within_quotas(jobs, movable, pinned, value, setting.table)
    capacity = _capacity(setting.table.groups, pinned)
    picks = choose(value, setting.table.size, setting.table.group, capacity)
    settling = frozenset(job.name for job in movable if _settling(job, time_s))
    places = _placed(movable, picks, setting.table, kept, pinned, held_fast, settling)
    _fill(movable, places, value, setting, free_slots(nodes, places | pinned))
    _keep_quotas(jobs, places, pinned, kept, held_fast)
    reasons = {
        job.name: _reason(job, kept.get(job.name, ()), places.get(job.name, ()), row, setting) for row, job in enumerate(movable)
    }
    return Allocation(places | pinned, reasons | dict.fromkeys(pinned, "pinned"))


def _settling(job: SchedulableJob, time_s: float) -> bool:
    return job.changed_s is not None and time_s - job.changed_s < SETTLING * job.pause_s


def _setting(jobs: Sequence[SchedulableJob], nodes: Sequence[ClusterNode], kept: dict[str, Placement], time_s: float) -> Setting:
    held = [size(kept.get(job.name, ())) for job in jobs]
    table = options(jobs, nodes, held=held)
    group_of = {node.name: place for place, group in enumerate(table.groups) for node in group.nodes}
    home = [group_of.get(kept[job.name][0][0], -1) if job.name in kept else -1 for job in jobs]
    return Setting(jobs, table, np.array(held, dtype=np.int64), np.array(home, dtype=np.int64), time_s)


def _normalised(value: Floats, table: Options) -> Floats:
    """Finite, at most 1, and −inf where an option is not allowed or worth nothing."""
    usable = np.isfinite(value) & (value > 0) & (table.speed > 0)
    top = float(np.max(value, initial=0.0, where=usable))
    return np.where(usable, value / (top if top > 0 else 1.0), -np.inf)


def _floor(jobs: Sequence[SchedulableJob], capacity: Ints) -> Floats:
    """Added to every option of every job while all can run. Values are at most 1, and so is what any change of another job's size
    can bring: with twice its fewest workers nobody is left out for that, and prices stay in a range where they are exact."""
    least = np.array([max(job.least, 1) for job in jobs], dtype=np.float64)
    return 2.0 * least if least.sum() <= capacity.sum() else np.zeros(len(jobs))


def _capacity(groups: Sequence[SizeGroup], pinned: dict[str, Placement]) -> Ints:
    used = {node: count for placement in pinned.values() for node, count in placement}
    return np.array(
        [group.capacity - sum(used.get(node.name, 0) for node in group.nodes) if used else group.capacity for group in groups],
        dtype=np.int64,
    )


def _within_quotas(
    jobs: Sequence[SchedulableJob],
    movable: Sequence[SchedulableJob],
    pinned: dict[str, Placement],
    value: Floats,
    table: Options,
) -> Floats:
    if all(job.quota is None for job in jobs):
        return value
    quotas = Quotas(jobs)
    for job in jobs:
        quotas.reserve(job, size(pinned.get(job.name, ())))
    value = value.copy()
    owners: dict[str, list[int]] = {}
    limits: dict[str, int] = {}
    for row, job in enumerate(movable):
        if quotas.left(job) < 1 << 40:
            owners.setdefault(job.owner, []).append(row)
            limits[job.owner] = quotas.left(job)
    one_group = np.zeros(len(table.size), dtype=np.int64)
    for owner, rows in owners.items():
        picks = choose(value[rows], table.size, one_group, np.array([max(limits[owner], 0)]))
        most = np.where(picks >= 0, table.size[picks], 0)
        value[rows] = np.where(table.size[None, :] <= most[:, None], value[rows], -np.inf)
    return value


def _keep_quotas(
    jobs: Sequence[SchedulableJob],
    places: dict[str, Placement],
    pinned: dict[str, Placement],
    kept: dict[str, Placement],
    held_fast: set[str],
) -> None:
    """A job that kept its old place may be larger than its owner's quota had for it: others of that owner wait then."""
    quotas = Quotas(jobs)
    by_claim = sorted(jobs, key=lambda job: (job.name not in pinned, job.name not in held_fast, job.name not in kept))
    for job in by_claim:
        workers = size(pinned.get(job.name) or places.get(job.name, ()))
        if workers and workers > quotas.left(job) and job.name not in pinned and job.name not in held_fast:
            del places[job.name]
        else:
            quotas.reserve(job, workers)


def _placed(
    jobs: Sequence[SchedulableJob],
    picks: Ints,
    table: Options,
    kept: dict[str, Placement],
    pinned: dict[str, Placement],
    held_fast: set[str],
    settling: frozenset[str],
) -> dict[str, Placement]:
    """Workers on nodes. A job that has to stay and found no new place keeps its old one, and the rest is placed around it."""
    wanted = {job.name: int(table.size[pick]) for job, pick in zip(jobs, picks, strict=True) if pick >= 0}
    group_of = {job.name: int(table.group[pick]) for job, pick in zip(jobs, picks, strict=True) if pick >= 0}
    rooted = dict(pinned)
    places: dict[str, Placement] = {}
    for _ in range(len(held_fast) + 1):
        places = {}
        for place, group in enumerate(table.groups):
            names = {node.name for node in group.nodes}
            here = {name: placement for name, placement in rooted.items() if placement[0][0] in names}
            sizes = {name: count for name, count in wanted.items() if group_of[name] == place and name not in rooted}
            packed = pack(group, sizes | {name: size(placement) for name, placement in here.items()}, kept, set(here), settling)
            places |= {name: placement for name, placement in packed.items() if name not in pinned}
        lost = [name for name in held_fast if name not in places]
        if not lost:
            return places
        rooted |= {name: kept[name] for name in lost}
    return places


def _fill(
    jobs: Sequence[SchedulableJob], places: dict[str, Placement], value: Floats, setting: Setting, free: dict[str, int]
) -> None:
    """Slots that are still free: first to jobs without any, then to jobs that can grow where they are."""
    if not any(count > 0 for count in free.values()):
        return
    best: list[int] = np.argsort(-value.max(axis=1, initial=-np.inf), kind="stable").tolist()
    names = [[node.name for node in group.nodes] for group in setting.table.groups]
    for row in best:
        job = jobs[row]
        if job.name in places:
            continue
        for column in np.argsort(-value[row], kind="stable"):
            if not np.isfinite(value[row, column]):
                break
            count = int(setting.table.size[column])
            node = _room(free, names[setting.table.group[column]], count)
            if node is not None:
                places[job.name] = ((node, count),)
                free[node] -= count
                break
    for row in best:
        _grow(jobs[row].name, places, value[row], setting, free)


def _room(free: dict[str, int], nodes: Sequence[str], count: int) -> str | None:
    return min((node for node in nodes if free[node] >= count), key=lambda node: (free[node], node), default=None)


def _grow(name: str, places: dict[str, Placement], value: Floats, setting: Setting, free: dict[str, int]) -> None:
    placement = places.get(name, ())
    if len(placement) != 1 or free[placement[0][0]] < 1:
        return
    node, count = placement[0]
    mine = setting.table.size == count
    here = float(np.max(value[mine], initial=-np.inf))
    for column in np.argsort(-value, kind="stable"):
        wanted = int(setting.table.size[column])
        if value[column] <= here or not np.isfinite(value[column]):
            return
        group = setting.table.groups[setting.table.group[column]]
        if count < wanted <= min(count + free[node], group.slots) and any(member.name == node for member in group.nodes):
            places[name] = ((node, wanted),)
            free[node] -= wanted - count
            return


def _reason(job: SchedulableJob, before: Placement, after: Placement, row: int, setting: Setting) -> str:
    """A sentence's worth of why: what was done, and what the next larger size would bring by the job's model."""
    old, new = size(before), size(after)
    if not new:
        return f"waits: other jobs gain more from the {quantity(job.least, 'slot')} that it needs"
    reason = _did(job, before, after, old, new)
    table = setting.table
    speeds = {count: speed for count, speed in zip(table.size.tolist(), table.speed[row].tolist(), strict=True) if speed > 0}
    larger = min((count for count in speeds if count > new), default=None)
    if larger is None or new not in speeds:
        return reason
    if not table.single[row]:
        return f"{reason}; its speed has not been measured yet"
    gain = speeds[larger] / speeds[new]
    if gain < 1.01:
        return f"{reason}; {larger} workers would be no faster"
    why = "other jobs gain more from those slots, or the pause costs more"
    return f"{reason}; {larger} workers would be only {gain:.2f}× as fast: {why}"


def _did(job: SchedulableJob, before: Placement, after: Placement, old: int, new: int) -> str:
    if not old:
        return f"started on {quantity(new, 'worker')}"
    if new == old:
        return "keeps its size" if sorted(before) == sorted(after) else "moved: a job that needs whole nodes gets its place"
    change = "grown" if new > old else "shrunk"
    return f"{change} from {old} to {quantity(new, 'worker')}, at the cost of a pause of {job.pause_s:.2g} s"
