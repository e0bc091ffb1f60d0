"""Process groups in the simulator: building, exchanging and moving state, as gloo would, with its ways of failing.

A group stands when all members have come to build it and can reach each other. An exchange is finished on a member
when it has everybody's part, so a death in the middle leaves some with it and some without. Of what was on its way
at a death, half arrives.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.core.roster import Roster
from stretto.core.slices import Span
from stretto.simulation.rosters.network import Network

if TYPE_CHECKING:
    from stretto.simulation.rosters.worker import SimWorker

BUILD_S = 1.2
EXCHANGE_S = 4.0
"""After these a build or an exchange has failed on whoever still waits."""


@dataclass(frozen=True, slots=True)
class SimulatedMember:
    """What one member brings to an exchange."""

    worker: str
    tick: int
    state: int
    share: Span
    offer: int


@dataclass(slots=True)
class SimulatedExchange:
    """One all-reduce: who has contributed, and when each contribution reaches each member."""

    parts: dict[str, SimulatedMember] = field(default_factory=dict[str, SimulatedMember])
    arrivals: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """For each member: when whose part is there."""


@dataclass(slots=True)
class SimulatedGroup:
    """The process group of one roster, from its building to its exchanges and the state that newcomers receive."""

    roster: Roster
    builders: dict[str, SimWorker] = field(default_factory=lambda: {})
    standing: bool = False
    exchanges: dict[int, SimulatedExchange] = field(default_factory=dict[int, SimulatedExchange])
    segments: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """By holder: the tick and the state that it has sent to the newcomers."""
    sent_at: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])


class Fabric:
    """All process groups of a simulated job, and the connections between their members."""

    def __init__(self, loop: asyncio.AbstractEventLoop, network: Network) -> None:
        self.loop = loop
        self.network = network
        self.groups: dict[int, SimulatedGroup] = {}

    def build(self, worker: SimWorker, roster: Roster) -> None:
        group = self.groups.setdefault(roster.number, SimulatedGroup(roster))
        group.builders[worker.name] = worker
        self.loop.call_later(BUILD_S, worker.unless_done, worker.build_failed, roster.number)
        if set(group.builders) != set(roster.workers):
            return
        workers = list(group.builders.values())
        if all(member.alive and all(self.network.both(member.host, other.host) for other in workers) for member in workers):
            group.standing = True
            for member in workers:
                self.loop.call_later(self.network.latency(), member.unless_done, member.stood, roster.number)

    def contribute(self, worker: SimWorker, number: int, part: SimulatedMember) -> None:
        """A member comes to the exchange of its tick."""
        group = self.groups[number]
        exchange = group.exchanges.get(part.tick)
        if exchange is None:
            exchange = group.exchanges[part.tick] = SimulatedExchange()
            self.loop.call_later(EXCHANGE_S, self._time_out, group, part.tick)
        exchange.parts[worker.name] = part
        now = self.loop.time()
        for name, other in group.builders.items():
            if name == worker.name or self.network.up(worker.host, other.host):
                lag = 0.0 if name == worker.name else self.network.latency()
                exchange.arrivals.setdefault(name, {})[worker.name] = now + lag
        for name in group.roster.workers:
            arrived = exchange.arrivals.get(name, {})
            if name in exchange.parts and len(arrived) == len(group.roster.members):
                receiver = group.builders[name]
                self.loop.call_at(max(arrived.values()), receiver.unless_done, receiver.complete, number, part.tick)

    @staticmethod
    def _time_out(group: SimulatedGroup, tick: int) -> None:
        """Whoever has come and still waits gives up."""
        for name in group.exchanges[tick].parts:
            waiting = group.builders[name]
            waiting.unless_done(waiting.exchange_failed, group.roster.number, tick)

    def send_state(self, worker: SimWorker, number: int, *, tick: int, state: int) -> None:
        """A holder gives the newcomers its segments."""
        group = self.groups[number]
        group.segments[worker.name] = (tick, state)
        for name in group.roster.joined:
            newcomer = group.builders[name]
            if self.network.up(worker.host, newcomer.host):
                group.sent_at[worker.name, name] = self.loop.time() + self.network.latency()
            self.try_receive(newcomer, number)

    def try_receive(self, newcomer: SimWorker, number: int) -> None:
        group = self.groups[number]
        holders = holders_of(group.roster)
        times = [group.sent_at.get((holder, newcomer.name)) for holder in holders]
        if newcomer.receiving == number and all(time is not None for time in times):
            at = max(time for time in times if time is not None)
            places = [group.segments[holder] for holder in holders]
            self.loop.call_at(max(at, self.loop.time()), newcomer.unless_done, newcomer.received, number, places)

    def gone(self, worker: SimWorker, *, silently: bool = False, killed: bool = False) -> None:
        """A process has ended: its peers' connections are reset, unless its host went with it."""
        for number, group in self.groups.items():
            if worker.name not in group.builders:
                continue
            if killed:
                self._lose(worker.name, group)
            if silently:
                continue
            for name, other in group.builders.items():
                if name == worker.name or not self.network.both(worker.host, other.host):
                    continue
                self.loop.call_later(self.network.latency(), other.unless_done, other.reset_by, worker.name, number)

    def _lose(self, name: str, group: SimulatedGroup) -> None:
        """Of what a dead process had sent, half of what is still on its way never arrives."""
        now, dice = self.loop.time(), self.network.random
        for exchange in group.exchanges.values():
            for receiver, arrived in exchange.arrivals.items():
                if receiver != name and arrived.get(name, 0.0) > now and dice.random() < 0.5:
                    del arrived[name]
        for pair, at in list(group.sent_at.items()):
            if pair[0] == name and at > now and dice.random() < 0.5:
                del group.sent_at[pair]

    def whole(self, worker: SimWorker, number: int, tick: int) -> bool:
        """All parts of the exchange have arrived here."""
        group = self.groups[number]
        return len(group.exchanges[tick].arrivals[worker.name]) == len(group.roster.members)

    def lacks(self, worker: SimWorker, number: int, tick: int, peer: str) -> bool:
        """The worker waits for a part that the peer has not sent."""
        exchange = self.groups[number].exchanges.get(tick)
        return exchange is not None and worker.name in exchange.parts and peer not in exchange.arrivals.get(worker.name, {})

    def lacks_state(self, newcomer: SimWorker, number: int, peer: str) -> bool:
        group = self.groups[number]
        return peer in holders_of(group.roster) and (peer, newcomer.name) not in group.sent_at


def holders_of(roster: Roster) -> list[str]:
    """Who gives the state to newcomers: whoever comes from the base; in a first roster the first member, from its
    script."""
    return [name for name in roster.workers if name not in roster.joined] or [roster.workers[0]]
