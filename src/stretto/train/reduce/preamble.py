"""The preamble of every exchange: where each worker is, and what its script has done since the last one. Pure.

Workers send each other their preambles before any number is added up. Those that stand at different places never exchange
gradients, and a script that did something else on one worker is stopped before the step is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

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
    """What one worker sends before each exchange: where it stands, and hashes of what must be equal."""

    place: Place
    joined: int
    """The tick at which this worker became a member."""
    checks: Mapping[str, str] = field(default_factory=dict[str, str])
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
    """Which members stand elsewhere, and what differs. The place of the longest-standing members is the job's; those that joined at
    this `tick` have contributed nothing yet."""
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
    """Names of the checks that are not equal. A worker that waits for its state has none."""
    compared = [preamble.checks for preamble in preambles if preamble.checks]
    names = {name: None for checks in compared for name in checks}
    return tuple(name for name in names if len({checks.get(name) for checks in compared}) > 1)


def places_text(preambles: Sequence[Preamble], workers: Sequence[str]) -> str:
    """`w0 is in training step 115 …, w1 in step 0 of the evaluation of loader 1`."""
    return ", ".join(f"{name} is in {preamble.place}" for name, preamble in zip(workers, preambles, strict=True))


def first_difference(details: Sequence[object], workers: Sequence[str], *, path: str = "") -> str:
    """Names the first entry that differs, with both values and both workers; nothing where all are equal."""
    mine = details[0]
    for rank, other in enumerate(details):
        if other == mine:
            continue
        for inner, pair in _pairs(mine, other, path=path):
            difference = first_difference(pair, [workers[0], workers[rank]], path=inner)
            if difference:
                return difference
        return f"{path} is {_short(mine)} on {workers[0]} and {_short(other)} on {workers[rank]}"
    return ""


def _pairs(mine: object, other: object, *, path: str) -> Iterator[tuple[str, list[object]]]:
    """The entries of two dictionaries, or of two lists of one length, with their paths."""
    if isinstance(mine, dict) and isinstance(other, dict):
        left, right = cast("dict[object, object]", mine), cast("dict[object, object]", other)
        for key in {**left, **right}:
            yield f"{path}.{key}" if path else str(key), [left.get(key, "nothing"), right.get(key, "nothing")]
    elif isinstance(mine, list) and isinstance(other, list):
        entries, others = cast("list[object]", mine), cast("list[object]", other)
        if len(entries) == len(others):
            yield from ((f"{path}[{k}]", [entry, others[k]]) for k, entry in enumerate(entries))


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
