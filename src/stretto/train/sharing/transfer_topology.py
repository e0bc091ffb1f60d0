"""Which way the state goes to newcomers. Pure: all members read the same roster and find the same routes.

A newcomer on a host where somebody has the state gets it from there. To any other host the state goes once, however many newcomers
are on it: each piece goes to one of them, in turn, and from there to its neighbours. The pieces come from all holders in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.core.roster import Roster


@dataclass(frozen=True, slots=True)
class Host:
    """The ranks on one host: those who have the state, and those who get it."""

    holders: tuple[int, ...]
    newcomers: tuple[int, ...]

    def relay(self, turn: int) -> int:
        """The newcomer that hands on to the others."""
        return self.newcomers[turn % len(self.newcomers)]


@dataclass(frozen=True, slots=True)
class TransferTopology:
    holders: tuple[int, ...]
    newcomers: tuple[int, ...]
    hosts: tuple[Host, ...]
    at: tuple[int, ...]
    """Of every rank: which of the hosts it is on."""

    @staticmethod
    def of(roster: Roster) -> TransferTopology:
        """In a first roster the first member has the state from its script."""
        newcomers = [place for place, name in enumerate(roster.workers) if name in roster.joined]
        if len(newcomers) == len(roster.members):
            newcomers = newcomers[1:]
        return TransferTopology.between([member.address[0] for member in roster.members], newcomers=newcomers)

    @staticmethod
    def between(hosts: Sequence[str], *, newcomers: Sequence[int]) -> TransferTopology:
        """With the name of every rank's host."""
        fresh = frozenset(newcomers)
        holders = tuple(rank for rank in range(len(hosts)) if rank not in fresh)
        ranks: dict[str, list[int]] = {}
        for rank, name in enumerate(hosts):
            ranks.setdefault(name, []).append(rank)
        number = {name: place for place, name in enumerate(ranks)}
        found = tuple(
            Host(tuple(rank for rank in there if rank not in fresh), tuple(rank for rank in there if rank in fresh))
            for there in ranks.values()
        )
        return TransferTopology(holders, tuple(sorted(fresh)), found, tuple(number[name] for name in hosts))

    # ---- pieces

    def source(self, newcomer: int, piece: int) -> int:
        """Who sends this newcomer that piece of the state."""
        host = self.hosts[self.at[newcomer]]
        if host.holders:
            return host.holders[piece % len(host.holders)]
        relay = host.relay(piece)
        return self.holders[piece % len(self.holders)] if relay == newcomer else relay

    def targets(self, rank: int, piece: int) -> list[int]:
        """Whom this member sends that piece."""
        here = self.hosts[self.at[rank]]
        if rank in here.newcomers:
            return [] if here.holders or here.relay(piece) != rank else [one for one in here.newcomers if one != rank]
        near = list(here.newcomers) if here.holders[piece % len(here.holders)] == rank else []
        far = self.holders[piece % len(self.holders)] == rank
        return near + [host.relay(piece) for host in self.hosts if far and host.newcomers and not host.holders]

    # ---- what the pieces are: this has one origin, the first who has the state

    def describer(self, newcomer: int) -> int:
        """Who tells this newcomer."""
        host = self.hosts[self.at[newcomer]]
        origin, relay = self.holders[0], host.newcomers[0]
        return origin if relay == newcomer or origin in host.holders else relay

    def told(self, rank: int) -> list[int]:
        """Whom this member tells."""
        here, origin = self.hosts[self.at[rank]], self.holders[0]
        if rank == origin:
            return [*here.newcomers, *(host.newcomers[0] for host in self.hosts if host is not here and host.newcomers)]
        relays = rank in here.newcomers[:1] and origin not in here.holders
        return list(here.newcomers[1:]) if relays else []
