"""Rosters: who trains, and which slices each computes."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.core.json_types import JsonObject, JsonValue, to_address, to_int, to_list, to_object
from stretto.core.slices import Span


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a roster. Its place in `Roster.members` is its rank."""

    worker: str
    agent: str
    address: tuple[str, int]
    """Where its rendezvous store listens; the first member's is the roster's."""
    share: Span

    def to_dict(self) -> JsonObject:
        return {
            "worker": self.worker,
            "agent": self.agent,
            "address": list(self.address),
            "slices": [self.share.low, self.share.high],
        }

    @staticmethod
    def from_dict(document: JsonObject) -> Member:
        low, high = map(to_int, to_list(document["slices"]))
        return Member(str(document["worker"]), str(document["agent"]), to_address(document["address"]), Span(low, high))


@dataclass(frozen=True, slots=True)
class Roster:
    """The numbered list of workers. A plan has a `base`; a rescue has a `tick` that all of its members stand at."""

    number: int
    members: tuple[Member, ...]
    base: int = 0
    """The roster in effect that this plan replaces; 0 for the first roster and for rescues."""
    rescue: bool = False
    tick: int | None = None
    term: int = 0
    cause: str = "start"
    left: tuple[str, ...] = field(default=())
    """Members of the base that this plan lets go."""
    joined: tuple[str, ...] = field(default=())
    """Members that come without state: all of a first roster, the newcomers of a plan, nobody of a rescue."""

    def rank(self, worker: str) -> int | None:
        for place, member in enumerate(self.members):
            if member.worker == worker:
                return place
        return None

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(member.worker for member in self.members)

    def to_dict(self) -> JsonObject:
        return {
            "number": self.number,
            "members": [member.to_dict() for member in self.members],
            "base": self.base,
            "rescue": self.rescue,
            "tick": self.tick,
            "term": self.term,
            "cause": self.cause,
            "left": list(self.left),
            "joined": list(self.joined),
        }

    @staticmethod
    def from_dict(document: JsonObject) -> Roster:
        tick = document["tick"]
        return Roster(
            number=to_int(document["number"]),
            members=tuple(Member.from_dict(to_object(member)) for member in to_list(document["members"])),
            base=to_int(document["base"]),
            rescue=bool(document["rescue"]),
            tick=None if tick is None else to_int(tick),
            term=to_int(document["term"]),
            cause=str(document["cause"]),
            left=_names(document["left"]),
            joined=_names(document.get("joined")),
        )


def _names(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, to_list(value)))
