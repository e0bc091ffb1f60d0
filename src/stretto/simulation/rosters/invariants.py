"""The promises, checked after every event by somebody who sees everything.

The state of training is a chain of hashes: what it is after a tick depends on the state before, on the tick, and on
whether every slice was in the sum exactly once. So a lost, doubled or reordered step, a wrong state or a slice too
many shows in the chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.core.roster import Roster
from stretto.core.slices import Span
from stretto.membership import store_schema
from stretto.membership.stores.store import Put, StoreEntry

if TYPE_CHECKING:
    from stretto.simulation.rosters.worker import SimWorker

PROTECTED = (
    store_schema.ROSTER,
    store_schema.BROKEN,
    store_schema.OUTCOME,
    store_schema.DISMISSED,
    store_schema.TARGETS,
    store_schema.LIFE,
)


class BrokenPromise(Exception):
    """What a run has shown to be wrong."""


def advance(state: int, tick: int, shares: Iterable[Span], *, slices: int) -> int:
    """The state after an exchange."""
    whole = [leaf for share in shares for leaf in share] == list(range(slices))
    return hash((state, tick, whole))


@dataclass(slots=True)
class InvariantChecker:
    """Sees every write to the store and every step of every worker; raises `BrokenPromise` at the first violation."""

    slices: int
    passes: int
    chain: list[int] = field(default_factory=lambda: [hash((0, 0, True))])
    rosters: dict[int, Roster] = field(default_factory=dict[int, Roster])
    lives: dict[int, int] = field(default_factory=dict[int, int])
    """The life in which a number was published."""
    limits: dict[int, int] = field(default_factory=dict[int, int])
    """No roster up to this number may reach a tick above that."""
    life: int = 1
    broken: int = 0
    workers: dict[str, SimWorker] = field(default_factory=lambda: {})
    entries: Mapping[str, StoreEntry] = field(default_factory=dict[str, StoreEntry])
    """The store's own."""
    events: int = 0
    breaks: int = 0
    top: int = 0
    """The highest tick that anybody has reached in this life."""
    outcome: str = ""
    on_commit: list[Callable[[SimWorker, Roster], None]] = field(default_factory=lambda: [])
    on_publish: list[Callable[[Roster], bool]] = field(default_factory=list[Callable[[Roster], bool]])
    on_arrive: list[Callable[[str, int, bool], bool]] = field(default_factory=list[Callable[[str, int, bool], bool]])
    """Traps: faults that wait for the worst moment. The first ones go off once; the others when they say so."""
    log: list[str] = field(default_factory=list[str])
    clock: Callable[[], float] = lambda: 0.0
    failure: BaseException | None = None

    def fail(self, text: str) -> None:
        self.failure = self.failure or BrokenPromise(text)
        raise self.failure

    def note(self, text: str) -> None:
        self.events += 1
        if self.failure is None:
            self.log.append(f"{self.clock():9.3f} {text}")

    def state_at(self, tick: int) -> int:
        """The reference: one worker, no faults."""
        while len(self.chain) <= tick:
            at = len(self.chain) - 1
            self.chain.append(advance(self.chain[at], at, [Span(0, self.slices)], slices=self.slices))
        return self.chain[tick]

    # ---- what workers do

    def committed(self, worker: SimWorker, number: int, tick: int, inputs: Sequence[tuple[str, int]]) -> None:
        """The worker has finished an exchange of this roster and stands at `tick` now."""
        self.note(f"{worker.name} commits tick {tick} in roster {number}")
        roster = self.rosters[number]
        if worker.state != self.state_at(tick):
            self.fail(f"{worker.name} has another state at tick {tick} than the reference, in roster {number}")
        if sorted(name for name, _ in inputs) != sorted(roster.workers):
            self.fail(f"{worker.name} finished tick {tick} with {inputs}, but roster {number} is {roster.workers}")
        if self.lives[number] != self.life:
            self.fail(f"{worker.name} commits tick {tick} in roster {number} of life {self.lives[number]}, this is {self.life}")
        for limit, last in self.limits.items():
            if number <= limit and tick > last:
                self.fail(f"{worker.name} goes on to tick {tick} in roster {number}, which is broken and was rescued at {last - 1}")
        self.top = max(self.top, tick)
        traps, self.on_commit = self.on_commit, []
        for trap in traps:
            trap(worker, roster)

    def arrived(self, worker: SimWorker, offer: int, *, first: bool) -> None:
        """The worker has sent its part of an exchange, with this control word; the first one to do so, or not."""
        self.on_arrive = [trap for trap in self.on_arrive if not trap(worker.name, offer, first)]

    def entered(self, worker: SimWorker, roster: Roster, *, tick: int) -> None:
        self.note(f"{worker.name} enters roster {roster.number} at tick {tick}")
        self.top = max(self.top, tick)
        if worker.name not in roster.workers:
            self.fail(f"{worker.name} enters roster {roster.number}, which does not have it")
        if worker.state != self.state_at(tick):
            self.fail(f"{worker.name} enters roster {roster.number} at tick {tick} with another state than the reference")
        if len({self.workers[name].odd for name in roster.workers}) != 1:
            self.fail(f"roster {roster.number} has workers that share different things")
        if tick % self.passes and not roster.rescue:
            self.fail(f"{worker.name} enters roster {roster.number} at tick {tick}, in the middle of a step")

    def finished(self, worker: SimWorker) -> None:
        self.note(f"{worker.name} has finished at tick {worker.seat.tick}")

    # ---- what leaders write

    def written(self, puts: Sequence[Put], *, host: str, leader: str | None) -> None:
        """A transaction was done; `leader` is who led just before."""
        for put in puts:
            if put.key.startswith(PROTECTED) and host != leader:
                self.fail(f"{host} wrote {put.key} although {leader or 'nobody'} leads: a stale leader's write was accepted")
        changed = {put.key: put.value for put in puts}
        if store_schema.LIFE in changed:
            self._revived()
        elif store_schema.BROKEN in changed:
            self._broke(str(changed[store_schema.BROKEN]))
        if changed.get(store_schema.ROSTER):
            self._published(
                store_schema.roster({store_schema.ROSTER: StoreEntry(store_schema.ROSTER, str(changed[store_schema.ROSTER]), 0, 0)})
            )
        if changed.get(store_schema.OUTCOME):
            self._ended(str(changed[store_schema.OUTCOME]))

    def _published(self, roster: Roster | None) -> None:
        assert roster is not None
        kind = "rescue" if roster.rescue else "plan" if roster.base else "first roster"
        self.note(f"{kind} {roster.number} on {roster.base}: {' '.join(roster.workers)}; without {' '.join(roster.left)}")
        if roster.number <= max(self.rosters, default=0) or roster.number <= self.broken:
            self.fail(f"roster {roster.number} was published after {max(self.rosters)}, broken up to {self.broken}")
        spans = [leaf for member in roster.members for leaf in member.share]
        if spans != list(range(self.slices)) or any(not len(member.share) for member in roster.members):
            self.fail(f"roster {roster.number} does not give every slice to exactly one worker")
        agents = [member.agent for member in roster.members]
        if sum(a != b for a, b in itertools.pairwise(agents)) + 1 != len(set(agents)):
            self.fail(f"roster {roster.number} scatters the workers of an agent: {agents}")
        self.rosters[roster.number] = roster
        self.lives[roster.number] = self.life
        if roster.rescue:
            self._rescued(roster)
        elif roster.base and roster.base <= self.broken:
            self.fail(f"plan {roster.number} rests on roster {roster.base}, which is broken")
        self.on_publish = [trap for trap in self.on_publish if not trap(roster)]

    def _rescued(self, rescue: Roster) -> None:
        assert rescue.tick is not None
        before = self.rosters[rescue.number - 1]
        self.limits[before.number] = rescue.tick + 1
        for name in (*before.workers, *before.left):
            worker = self.workers[name]
            if self._known(worker) and worker.seat.tick is not None and worker.seat.tick > rescue.tick:
                self.fail(f"rescue {rescue.number} goes back to tick {rescue.tick} although {name} stands at {worker.seat.tick}")

    def _known(self, worker: SimWorker) -> bool:
        """It lives, and has not been out of the leader's sight since the break."""
        record = self.entries.get(store_schema.WORKERS + worker.name)
        return worker.alive and record is not None and record.created <= store_schema.revision(self.entries, store_schema.BROKEN)

    def _broke(self, value: str) -> None:
        number = store_schema.broken({store_schema.BROKEN: StoreEntry(store_schema.BROKEN, value, 0, 0)})
        self.note(f"break up to {number}: {value}")
        self.breaks += 1
        self.broken = max(self.broken, number)

    def _revived(self) -> None:
        self.note("a new life")
        last = max(self.rosters)
        for name in (*self.rosters[last].workers, *self.rosters[last].left):
            worker = self.workers[name]
            if worker.alive and worker.seat.tick is not None and worker.seat.roster is not None:
                self.fail(f"a new life begins although {name} still trains in roster {worker.seat.roster.number}")
        self.life += 1
        self.broken = max(self.broken, last)
        self.top = 0
        self.outcome = ""

    def _ended(self, value: str) -> None:
        document = store_schema.value({store_schema.OUTCOME: StoreEntry(store_schema.OUTCOME, value, 0, 0)}, store_schema.OUTCOME)
        self.note(f"outcome {value}")
        self.outcome = str(document["state"])
        if self.outcome == "failed":
            self.fail(f"the job has failed: {document['reason']}")
        if self.outcome == "lost":
            self._check_lost()

    def _check_lost(self) -> None:
        last = self.rosters[max(self.rosters)]
        for name in (*last.workers, *last.left):
            worker = self.workers[name]
            if self._known(worker) and worker.seat.tick is not None:
                self.fail(f"the job gave up although {name} has the state at tick {worker.seat.tick}")
