"""A worker in the simulator: the real seat, a script that only counts, and a link to its agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stretto.core.roster import Roster
from stretto.membership.member_state import MemberState
from stretto.membership.worker_status import Phase
from stretto.simulation.rosters.fabric import SimulatedMember, holders_of
from stretto.simulation.rosters.invariants import advance

if TYPE_CHECKING:
    from stretto.simulation.rosters.agent import SimAgent
    from stretto.simulation.rosters.world import World


class SimWorker:
    """It does what `train/team.py` does, in the same order, on a fabric that fails."""

    def __init__(self, name: str, *, agent: SimAgent, world: World, order: int, speed: float, odd: bool) -> None:
        self.name = name
        self.agent = agent
        self.host = agent.name
        self.order = order
        self.speed = speed
        self.odd = odd
        """Its script shares something else than the others' do."""
        self.seat = MemberState(name)
        self.state: int | None = None
        self.alive = True
        self.finished = False
        self.frozen = False
        self.receiving = 0
        """The plan whose state this newcomer waits for."""
        self._world = world
        self._stands: set[int] = set()
        self._inbox: list[Callable[[], None]] = []
        self._busy: tuple[int, int] | None = None
        """Roster and tick of the exchange that this worker computes for or is in."""
        self._offered = 0

    # ---- being scheduled

    def unless_done(self, call: Callable[..., None], *arguments: object) -> None:
        """Runs something that happens to this process, later if it is frozen, never if it is over."""
        if not self.alive or self.finished:
            return
        if self.frozen:
            self._inbox.append(lambda: self.unless_done(call, *arguments))
            return
        call(*arguments)

    def thaw(self) -> None:
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for call in inbox:
            call()

    def die(self, *, silently: bool = False) -> None:
        if not self.alive:
            return
        self.alive = False
        self._world.observer.note(f"{self.name} dies")
        self._world.fabric.gone(self, silently=silently, killed=True)
        if not silently and not self.finished:
            self.agent.report(self, phase=Phase.GONE)

    # ---- what the agent says

    def ready(self) -> None:
        self.agent.report(self, phase=Phase.READY, slices=self._world.slices, shape="odd" if self.odd else "even")

    def receive(self, roster: Roster) -> None:
        if self.seat.receive(roster):
            self._world.fabric.build(self, roster)
        self._poke()

    def halt(self, number: int) -> None:
        if self.seat.halt(number):
            self._busy = None
            self.receiving = 0
            self._stands = {standing for standing in self._stands if standing > number}
        self.agent.report(self, halted=self.seat.halted, tick=self.seat.tick)
        self._poke()

    # ---- groups

    def stood(self, number: int) -> None:
        if self.seat.stood(number):
            self._stands.add(number)
            self.agent.report(self, prepared=number)
        self._poke()

    def build_failed(self, number: int) -> None:
        """A newcomer gives up on a plan; members go on without it, unless nobody else could say that it failed."""
        plan = self.seat.plan
        if plan is None or plan.number != number or self.seat.built:
            return
        if self.seat.roster is None or not plan.joined:
            self.halt(number)

    def reset_by(self, peer: str, number: int) -> None:
        """The peer's end of a group's connections was closed."""
        fabric = self._world.fabric
        if self._busy is not None and self._busy[0] == number and fabric.lacks(self, *self._busy, peer):
            self.exchange_failed(*self._busy)
        elif self.receiving == number and fabric.lacks_state(self, number, peer):
            self.halt(number)

    def _poke(self) -> None:
        """Enters whatever this worker was waiting for."""
        plan = self.seat.plan
        if plan is None or not self.seat.built or plan.number not in self._stands or self.seat.roster is not None:
            return
        if plan.rescue and self.seat.tick is not None:
            self._enter(plan, tick=self.seat.tick)
        elif not plan.rescue and self.seat.tick is None and self.receiving != plan.number:
            self._be_admitted(plan)

    def _be_admitted(self, plan: Roster) -> None:
        if holders_of(plan) == [self.name]:
            self.seat.tick, self.state = self._world.start()
            self._world.fabric.send_state(self, plan.number, tick=self.seat.tick, state=self.state)
            self._enter(plan, tick=self.seat.tick)
            return
        self.receiving = plan.number
        self._world.loop.call_later(1.5, self.unless_done, self._receive_failed, plan.number)
        self._world.fabric.try_receive(self, plan.number)

    def _receive_failed(self, number: int, begun: bool = False) -> None:
        """Gives up when some holders have sent their part and others have not; before that, no boundary was reached."""
        if self.receiving == number and begun:
            self.halt(number)
        elif self.receiving == number:
            begun = bool(self._world.fabric.groups[number].segments)
            self._world.loop.call_later(3.0, self.unless_done, self._receive_failed, number, begun)

    def received(self, number: int, places: list[tuple[int, int]]) -> None:
        plan = self.seat.plan
        if self.receiving != number or plan is None or plan.number != number:
            return
        if any(self._world.fabric.lacks_state(self, number, holder) for holder in holders_of(plan)):
            return
        if len(set(places)) != 1:
            self._world.observer.fail(f"{self.name} receives segments of different states: {places}")
        self.receiving = 0
        tick, self.state = places[0]
        self._enter(plan, tick=tick)

    def _enter(self, roster: Roster, *, tick: int) -> None:
        self._stands = {standing for standing in self._stands if standing > roster.number}
        self.seat.enter(roster, tick=tick)
        self._world.observer.entered(self, roster, tick=tick)
        self.agent.report(self, phase=Phase.MEMBER, roster=roster.number, tick=tick)
        self._work()

    # ---- training

    def _work(self) -> None:
        roster, tick = self.seat.roster, self.seat.tick
        assert roster is not None
        assert tick is not None
        if self._world.ends(tick):
            self._finish()
            return
        rank = roster.rank(self.name)
        assert rank is not None
        self._busy = (roster.number, tick)
        seconds = self._world.slice_s * len(roster.members[rank].share) / self.speed * (0.8 + 0.4 * self._world.random.random())
        self._world.loop.call_later(seconds, self.unless_done, self._arrive, roster.number, tick)

    def _arrive(self, number: int, tick: int) -> None:
        roster = self.seat.roster
        if self._busy != (number, tick) or roster is None or self.state is None:
            return
        rank = roster.rank(self.name)
        assert rank is not None
        self._offered = self.seat.offer()
        part = SimulatedMember(self.name, tick, self.state, roster.members[rank].share, self._offered)
        self._world.fabric.contribute(self, number, part)
        exchange = self._world.fabric.groups[number].exchanges[tick]
        self._world.observer.arrived(self, self._offered, first=len(exchange.parts) == 1)

    def complete(self, number: int, tick: int) -> None:
        roster = self.seat.roster
        if self._busy != (number, tick) or roster is None or not self._world.fabric.whole(self, number, tick):
            return
        parts = self._world.fabric.groups[number].exchanges[tick].parts
        ordered = [parts[name] for name in roster.workers]
        if len({part.state for part in ordered}) != 1:
            self._world.observer.fail(f"different states meet in the exchange of tick {tick} of roster {number}")
        self.seat.exchanged(self._offered, [part.offer for part in ordered])
        self.state = advance(ordered[0].state, tick, [part.share for part in ordered], slices=self._world.slices)
        assert self.seat.tick is not None
        self._world.observer.committed(self, number, self.seat.tick, [(part.worker, part.tick) for part in ordered])
        if self.seat.tick % self._world.passes == 0 and self.seat.agreed is not None and not self._world.ends(self.seat.tick):
            self._switch(self.seat.agreed)
        else:
            self._boundary()

    def _boundary(self) -> None:
        self._world.checkpoint(self)
        self._work()

    def _switch(self, plan: Roster) -> None:
        tick, state = self.seat.tick, self.state
        assert tick is not None
        assert state is not None
        if plan.rank(self.name) is None:
            self._leave(plan)
        elif plan.number not in self._stands:
            self.exchange_failed(*(self._busy or (0, 0)))
        else:
            self._world.fabric.send_state(self, plan.number, tick=tick, state=state)
            self._enter(plan, tick=tick)

    def exchange_failed(self, number: int, tick: int) -> None:
        if self._busy == (number, tick) and self.seat.roster is not None and self.seat.tick == tick:
            self._world.observer.note(f"{self.name} fails in tick {tick} of roster {number}")
            self.halt(self.seat.roster.number)

    def _leave(self, plan: Roster) -> None:
        self._world.observer.note(f"{self.name} leaves with plan {plan.number}")
        self.alive = False
        self._world.fabric.gone(self)
        self.agent.report(self, phase=Phase.GONE, roster=plan.number, tick=self.seat.tick)

    def _finish(self) -> None:
        self.finished = True
        self._busy = None
        self._world.observer.finished(self)
        self._world.fabric.gone(self)
        self.agent.report(self, phase=Phase.FINISHED, tick=self.seat.tick)
