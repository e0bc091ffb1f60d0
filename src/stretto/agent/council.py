"""Statuses in, decisions out: the leader's pure function, asked after every change, and its answers carried out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from stretto.core.roster import Roster
from stretto.membership.protocol import Action, Break, Dismiss, Fail, Lost, Publish, View, decide, over
from stretto.membership.status import WorkerStatus

ROUNDS = 100
"""Decisions after one change. Each is followed by a change of the view, so more would mean that one was not carried out."""


class Floor(Protocol):
    """Those who carry decisions out."""

    def publish(self, roster: Roster) -> None: ...

    def halt(self, number: int, reason: str) -> None: ...

    def dismiss(self, worker: str, reason: str) -> None: ...

    def lost(self) -> None: ...

    def fail(self, reason: str) -> None: ...


@dataclass(slots=True)
class Council:
    """A job with one agent, which therefore leads. Its whole state is the view that the leader decides from."""

    floor: Floor
    wanted: int
    least: int
    most: int
    roster: Roster | None = None
    broken: int = 0
    term: int = 1
    statuses: dict[str, WorkerStatus] = field(default_factory=dict)
    ended: bool = False
    _deciding: bool = False
    _dismissed: set[str] = field(default_factory=set)

    @property
    def view(self) -> View:
        return View(roster=self.roster, broken=self.broken, workers=self.statuses, wanted=self.wanted, least=self.least,
                    most=self.most, slices=0, term=self.term)

    @property
    def over(self) -> bool:
        """The job has finished: somebody holds the final state, and nobody who has one goes on."""
        return over(self.view)

    @property
    def settled(self) -> bool:
        """The last roster is in effect on all of its members."""
        if self.roster is None or self.broken >= self.roster.number:
            return False
        known = (self.statuses.get(worker) for worker in self.roster.workers)
        return all(status is not None and status.roster >= self.roster.number for status in known)

    @property
    def chief(self) -> str | None:
        return self.roster.members[0].worker if self.roster is not None else None

    def tell(self, status: WorkerStatus) -> None:
        """A worker's status has changed."""
        self.statuses[status.worker] = status
        self.decide()

    def want(self, workers: int) -> None:
        self.wanted = workers
        self.decide()

    def decide(self) -> None:
        """Carrying out a decision may change the view again: that is answered by the outermost call."""
        if self._deciding or self.ended:
            return
        self._deciding = True
        try:
            for _ in range(ROUNDS):
                before = (self.view, dict(self.statuses))
                for action in decide(self.view):
                    self._carry_out(action)
                if self.ended or before == (self.view, self.statuses):
                    return
            self.ended = True
            self.floor.fail(f"the leader has not come to rest after {ROUNDS} decisions")
        finally:
            self._deciding = False

    def _carry_out(self, action: Action) -> None:
        match action:
            case Publish(roster):
                self.roster = roster
                self.floor.publish(roster)
            case Break(number, reason):
                self.broken = max(self.broken, number)
                self.floor.halt(number, reason)
            case Dismiss(worker, reason):
                if worker not in self._dismissed:
                    self._dismissed.add(worker)
                    self.floor.dismiss(worker, reason)
            case Lost():
                self.ended = True
                self.floor.lost()
            case Fail(reason):
                self.ended = True
                self.floor.fail(reason)

    def forget(self, worker: str) -> None:
        """A worker that no roster can name any more: the view stays small in a long job."""
        status = self.statuses.get(worker)
        named = () if self.roster is None else (*self.roster.workers, *self.roster.left)
        if status is not None and not status.alive and worker not in named:
            del self.statuses[worker]
            self._dismissed.discard(worker)

    def leaving(self, worker: str) -> None:
        """Wants a worker out at the next plan."""
        self.tell(replace(self.statuses[worker], leaving=True))
