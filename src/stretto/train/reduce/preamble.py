"""The first words of every exchange: where each worker is, and what its script has done since the last one. Pure.

Workers send each other their preambles before any number is added up. Those that stand at different places never exchange
gradients, and a script that did something else on one worker is stopped before the step is committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TRAINING, EVALUATION, BARRIER = "training", "evaluation", "barrier"


@dataclass(frozen=True, slots=True)
class Place:
    """One pass of a script."""

    kind: str
    loader: int = 0
    epoch: int = 0
    step: int = 0
    pass_: int = 0
    first: int = 0
    count: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "training":
                where = f"training step {self.step} (loader {self.loader}, epoch {self.epoch}, {self.count} samples)"
            case "evaluation":
                where = f"step {self.step} of the evaluation of loader {self.loader}"
            case _:
                where = f"barrier {self.step}"
        return f"pass {self.pass_ + 1} of {where}" if self.pass_ else where


@dataclass(frozen=True, slots=True)
class Preamble:
    """What one worker says."""

    place: Place
    joined: int
    """The tick at which this worker became a member."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Short hashes by name: equal on all workers, or the script has gone different ways. Empty on a worker that waits for its
    state."""

    def encode(self) -> bytes:
        place = self.place
        return json.dumps(
            [place.kind, place.loader, place.epoch, place.step, place.pass_, place.first, place.count, self.joined, self.checks],
            separators=(",", ":"),
        ).encode()

    @staticmethod
    def decode(text: bytes) -> Preamble:
        *place, joined, checks = json.loads(text)
        return Preamble(Place(*place), joined, checks)


@dataclass(frozen=True, slots=True)
class PreambleVerdict:
    """What follows from the preambles of an exchange. Nothing, if all is well."""

    misplaced: tuple[int, ...] = ()
    """Ranks that have joined later and stand elsewhere, or have just joined and differ: they go, the others repeat the pass."""
    scattered: bool = False
    """Members from the beginning stand at different places: nobody can tell who is right."""
    differing: tuple[str, ...] = ()
    """Names of the checks that differ."""


def judge(preambles: Sequence[Preamble], *, tick: int) -> PreambleVerdict:
    """Who stands elsewhere, and what differs. The place of the members that have been there longest is the job's; those that have
    joined at this `tick` have done nothing for it yet."""
    longest = min(preamble.joined for preamble in preambles)
    places = {preamble.place for preamble in preambles if preamble.joined == longest}
    if len(places) > 1:
        return PreambleVerdict(scattered=True)
    place = next(iter(places))
    misplaced = tuple(rank for rank, preamble in enumerate(preambles) if preamble.place != place)
    if misplaced:
        return PreambleVerdict(misplaced=misplaced)
    differing = _differing(preambles)
    if not differing or longest == tick:
        return PreambleVerdict(differing=differing)
    old = [preamble for preamble in preambles if preamble.joined < tick]
    fresh = tuple(rank for rank, preamble in enumerate(preambles) if preamble.joined >= tick and _differing([old[0], preamble]))
    return PreambleVerdict(differing=differing, misplaced=() if _differing(old) else fresh)


def _differing(preambles: Sequence[Preamble]) -> tuple[str, ...]:
    """Names of the checks that are not equal. Who waits for its state has none."""
    told = [preamble.checks for preamble in preambles if preamble.checks]
    names = {name: None for checks in told for name in checks}
    return tuple(name for name in names if len({checks.get(name) for checks in told}) > 1)


def places_text(preambles: Sequence[Preamble], workers: Sequence[str]) -> str:
    """`w0 is in training step 115 …, w1 in step 0 of the evaluation of loader 1`."""
    return ", ".join(f"{name} is in {preamble.place}" for name, preamble in zip(workers, preambles, strict=True))


def first_difference(details: Sequence[Any], workers: Sequence[str], *, path: str = "") -> str:
    """Names the first entry that differs, with both values and both workers; nothing where all are equal."""
    mine = details[0]
    for rank, other in enumerate(details):
        if other == mine:
            continue
        if isinstance(mine, dict) and isinstance(other, dict):
            for key in [*mine, *(key for key in other if key not in mine)]:
                difference = first_difference(
                    [mine.get(key, "nothing"), other.get(key, "nothing")],
                    [workers[0], workers[rank]],
                    path=f"{path}.{key}" if path else str(key),
                )
                if difference:
                    return difference
        if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
            for place, pair in enumerate(zip(mine, other, strict=True)):
                difference = first_difference(list(pair), [workers[0], workers[rank]], path=f"{path}[{place}]")
                if difference:
                    return difference
        return f"{path} is {_short(mine)} on {workers[0]} and {_short(other)} on {workers[rank]}"
    return ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
