"""Who is chief before the first roster, and which rank each worker has there: a record in the store that all agents share. Pure.

The first worker of a life that takes a rank is its chief. If it dies before the first roster, the next worker that is started takes
its place; once there has been a roster, nobody becomes chief here any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stretto.core.json_types import JsonObject, to_int, to_list, to_object


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of one life of the job."""

    life: int = 0
    chief: str = ""
    """Empty before the first worker is started."""
    passed: int = 0
    """Barriers that this chief has passed."""
    holders: Mapping[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """Rank and agent, by worker."""
    terms: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """What this chief began with, and everybody must have alike: `settings` and `contract`. Empty until it is ready."""

    def rank(self, worker: str) -> int:
        return self.holders[worker][0]

    def agent(self, worker: str) -> str:
        return self.holders[worker][1] if worker in self.holders else ""

    def to_dict(self) -> JsonObject:
        return {
            "life": self.life,
            "chief": self.chief,
            "passed": self.passed,
            "holders": {worker: [rank, agent] for worker, (rank, agent) in self.holders.items()},
            "terms": {kind: dict(values) for kind, values in self.terms.items()},
        }

    @staticmethod
    def from_dict(document: JsonObject) -> Ranks:
        holders: dict[str, tuple[int, str]] = {}
        for worker, holder in to_object(document.get("holders")).items():
            rank, agent = to_list(holder)
            holders[worker] = (to_int(rank), str(agent))
        terms = {
            kind: {name: str(value) for name, value in to_object(values).items()}
            for kind, values in to_object(document.get("terms")).items()
        }
        return Ranks(to_int(document.get("life")), str(document.get("chief", "")), to_int(document.get("passed")), holders, terms)


def assign_rank(ranks: Ranks, worker: str, *, agent: str, life: int, began: bool, gone: set[str]) -> Ranks:
    """With a rank for this worker: 0 for the chief, and the smallest free number for others.

    `began` is whether this life has had a roster; `gone` are workers that are known to be dead.
    """
    if ranks.life != life:
        ranks = Ranks(life)
    if worker in ranks.holders:
        return ranks
    holders = {name: place for name, place in ranks.holders.items() if name not in gone}
    if not began and ranks.chief not in holders:
        return replace(ranks, chief=worker, passed=0, holders={**holders, worker: (0, agent)}, terms={})
    taken = {rank for rank, _ in holders.values()}
    rank = next(number for number in range(1, len(taken) + 2) if number not in taken)
    return replace(ranks, holders={**holders, worker: (rank, agent)})


def passed(ranks: Ranks, worker: str, *, count: int) -> Ranks:
    """The chief has passed so many barriers. The word of one that is chief no longer changes nothing."""
    return replace(ranks, passed=max(ranks.passed, count)) if worker == ranks.chief else ranks


def begin(ranks: Ranks, worker: str, *, terms: Mapping[str, Mapping[str, str]]) -> Ranks:
    """The chief is ready: what it has made is what the job is."""
    return replace(ranks, terms=terms) if worker == ranks.chief and not ranks.terms else ranks
