"""A worker's side of the roster protocol: events in, facts out; no clock, no socket, no torch.

A seat knows the roster in effect, the newest plan, and whether its process group is built. The caller builds groups,
exchanges and moves state; it tells the seat what happened and asks it what to say and where to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.core.roster import Roster


@dataclass(slots=True)
class MemberState:
    """One worker. Guarantees that it only moves to a roster that all members of the one in effect have agreed on."""

    worker: str
    roster: Roster | None = None
    """The roster in effect; None before the first one and after a break."""
    tick: int | None = None
    """Exchanges finished; None while this worker has no state."""
    plan: Roster | None = None
    """The newest roster heard of, not yet in effect."""
    built: bool = False
    """The plan's process group stands, or the plan does not have this worker."""
    agreed: Roster | None = None
    """What all members named in one exchange: entered at the next boundary, whatever is heard meanwhile."""
    offered: Roster | None = None
    """What this worker named in the header of the exchange in flight. A newer plan may be heard before that ends."""
    received: int = 0
    halted: int = 0
    """Everything up to this number is broken."""
    numbers: list[int] = field(default_factory=lambda: [])
    """Rosters that were in effect here, for tests and the simulator."""

    def receive(self, roster: Roster) -> bool:
        """A roster was published. True if its process group has to be built now."""
        if roster.number <= max(self.received, self.halted):
            return False
        self.received = roster.number
        mine = roster.rank(self.worker) is not None
        replaces = self.roster is not None and roster.base == self.roster.number
        if not mine and not replaces:
            return False
        if mine and roster.rescue and roster.tick != self.tick:
            return False
        if mine and not roster.rescue and self.roster is not None and not replaces:
            return False
        self.built = False  # first, so that another thread never takes the new plan for a built one
        self.plan = roster
        self.built = not mine
        return mine

    def stood(self, number: int) -> bool:
        """The group of this number is built. False if nobody wants it any more."""
        if self.plan is None or self.plan.number != number:
            return False
        self.built = True
        return True

    def offer(self) -> int:
        """What this worker says in the header of an exchange: the plan that it could switch to, or 0.

        The group of an offered plan must be kept until this worker enters a roster or halts, even if a newer plan is
        heard.
        """
        plan, built = self.plan, self.built
        fits = built and plan is not None and self.roster is not None and plan.base == self.roster.number
        self.offered = self.agreed or (plan if fits else None)
        return 0 if self.offered is None else self.offered.number

    def exchanged(self, offered: int, offers: Sequence[int]) -> None:
        """An exchange is finished: all members' headers are here, this worker's was `offered`."""
        assert self.tick is not None
        self.tick += 1
        named = self.offered is not None and self.offered.number == offered
        if named and all(offer == offered for offer in offers):
            self.agreed = self.offered

    def enter(self, roster: Roster, *, tick: int) -> None:
        """The roster is in effect here: at the agreed boundary, with the state received, or as a rescue."""
        self.roster = roster
        self.tick = tick
        self.agreed = self.offered = None
        self.numbers.append(roster.number)
        if self.plan is not None and self.plan.number <= roster.number:
            self.plan = None
            self.built = False

    def halt(self, number: int) -> bool:
        """Everything up to `number` is broken. True if that was news: abort the groups and answer with the tick.

        A worker that has a state goes on with a rescue only: plans that rest on the broken roster are forgotten as
        well.
        """
        if number <= self.halted:
            return False
        self.halted = number
        self.received = max(self.received, number)
        newest = self.roster or self.plan
        if newest is not None and newest.number > number:
            return False
        self.roster = None
        self.agreed = self.offered = None
        if self.plan is not None and (self.plan.number <= number or (self.tick is not None and not self.plan.rescue)):
            self.plan = None
            self.built = False
        return True
