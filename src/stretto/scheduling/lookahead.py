"""What a unit of each job's work is worth: a look ahead over the jobs that are there.

Let V be the sum of the times until each present job ends, if everybody is served as well as possible. Along the best course of
events ∂V/∂(work left of a job) does not change until that job ends, and at every moment the slots are so divided that
Σ worth × speed is highest (Pontryagin's principle: the worths are the costates). So a look ahead needs one number a job:

1. Forward: with these worths, divide the slots (speeds as concave envelopes over sizes, slots as a fluid), let time pass until
   somebody ends, divide again, until all have ended.
2. Backward: a unit more work of a job delays its end by 1/speed, and keeps its slots for so long from those that would have had
   them next. That is its worth, if the later ones' are known.

The end of the last job can count as several jobs (`last`): its work is worth so much more, and by the second step so is the
work of all that it waits for.

A few such rounds from any sensible start come within a percent of where they lead. Pauses, arrivals and whole slots are not
in it. With many jobs several ends are taken together, so that a look ahead costs a bounded time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.scheduling.candidate_sizes import Floats, Ints

SMALL = 400
"""Pieces up to which a look ahead is thorough; about 50 jobs on 64 slots."""
ROUNDS, PHASES = 3, 32
HASTY_ROUNDS, HASTY_PHASES = 1, 10
WORK = 8_000
"""Pieces × phases for more jobs than that: a millisecond or two; at least three phases for any number."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The concave envelopes of all jobs' speeds, cut at their corners: `slots` more bring `slope` more speed each."""

    row: Ints
    slots: Floats
    slope: Floats


def pieces(speed: Floats, size: Ints) -> Pieces:
    """From speeds of (jobs, options), 0 where not allowed, and the options' sizes."""
    widths = np.unique(size)
    best = np.column_stack([speed[:, size == width].max(axis=1) for width in widths.tolist()])
    count = len(best)
    at, height = np.zeros(count), np.zeros(count)
    rows: list[Ints] = []
    slots: list[Floats] = []
    slopes: list[Floats] = []
    # Each turn goes from every job's present corner to the next one: the size with the steepest way up.
    for _ in range(len(widths)):
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = np.where(widths[None, :] > at[:, None], (best - height[:, None]) / (widths[None, :] - at[:, None]), -np.inf)
        # The largest of equally steep ones, so that straight lines are one piece.
        pick = steep.shape[1] - 1 - steep[:, ::-1].argmax(axis=1)
        slope = steep[np.arange(count), pick]
        up = slope > 1e-12
        if not up.any():
            break
        rows.append(np.flatnonzero(up))
        slots.append((widths[pick].astype(np.float64) - at)[up])
        slopes.append(slope[up])
        at = np.where(up, widths[pick], np.inf)
        height = np.where(up, best[np.arange(count), pick], height)
    if not rows:
        return Pieces(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    return Pieces(np.concatenate(rows), np.concatenate(slots), np.concatenate(slopes))


@dataclass(frozen=True, slots=True)
class _Phase:
    """The time between two ends: the jobs that end with it, and the speed and slots of all jobs during it."""

    ended: Ints
    speed: Floats
    slots: Floats


def worths(start: Floats, left: Floats, cut: Pieces, capacity: float, *, rounds: int | None = None, last: float = 0.0) -> Floats:
    """The worth of a unit of each job's work, at most 1, from a first guess; the best of all rounds."""
    small = len(cut.row) <= SMALL
    phases = PHASES if small else max(3, min(HASTY_PHASES, WORK // len(cut.row)))
    if rounds is None:
        rounds = ROUNDS if small else HASTY_ROUNDS
    best, lowest = start, np.inf
    guess = start
    for turn in range(rounds + 1):
        course, total = _forward(guess, left, cut, capacity, phases, last)
        if total < lowest:
            best, lowest = guess, total
        if turn < rounds:
            guess = _between(guess, _backward(course, len(left), last))
    return best / max(float(best.max(initial=0.0)), 1e-300)


def _between(guess: Floats, answer: Floats) -> Floats:
    """Half-way in logarithms: a whole step may swing."""
    both = np.maximum(guess, 1e-12 * guess.max()) * np.maximum(answer, 1e-12 * max(float(answer.max()), 1e-300))
    middle = np.sqrt(both)
    return middle / middle.max()


def _forward(
    worth: Floats, left: Floats, cut: Pieces, capacity: float, phases: int, last: float = 0.0
) -> tuple[list[_Phase], float]:
    """The course of events with these worths, and the sum of all times until the end."""
    order = np.argsort(-worth[cut.row] * cut.slope, kind="stable")
    row, slots, slope = cut.row[order], cut.slots[order], cut.slope[order]
    count = len(left)
    left = left.copy()
    active = (left > 0) & np.isin(np.arange(count), cut.row)
    together = -(-int(active.sum()) // phases)
    course: list[_Phase] = []
    total = 0.0
    while active.any():
        wanted = slots * active[row]
        dealt = np.clip(capacity - np.cumsum(wanted) + wanted, 0.0, wanted)
        speed: Floats = np.bincount(row, weights=dealt * slope, minlength=count).astype(np.float64)
        need = np.full(count, np.inf)
        np.divide(left, speed, out=need, where=active & (speed > 0))
        running = int(np.count_nonzero(speed))
        if not running:
            break
        until = float(np.partition(need, min(together, running) - 1)[min(together, running) - 1])
        ended = need <= until * (1 + 1e-9)
        spent = np.minimum(need, until)
        total += float(spent[active].sum()) + last * until
        left -= speed * spent
        active &= ~ended
        slots_held: Floats = np.bincount(row, weights=dealt, minlength=count).astype(np.float64)
        course.append(_Phase(np.flatnonzero(ended), speed, slots_held))
    return course, total


def _backward(course: list[_Phase], count: int, last: float = 0.0) -> Floats:
    worth = np.zeros(count)
    after = np.zeros(count)
    for phase in reversed(course):
        # What the others gain when the slots of those who end here go to them; worths of those who have ended are still 0.
        gain = max(float(worth @ (after - phase.speed)), 0.0)
        slots_held = phase.slots[phase.ended]
        share = slots_held / max(float(slots_held.sum()), 1e-12)
        worth[phase.ended] = (1.0 + (last + gain) * share) / np.maximum(phase.speed[phase.ended], 1e-12)
        after, last = phase.speed, 0.0
    return worth
