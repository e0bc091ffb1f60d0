"""An agent in the simulator: the real presence, mirror and leader, and workers that it starts, watches and stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from stretto.core.json_types import to_int
from stretto.membership import store_schema
from stretto.membership.leader import Leader
from stretto.membership.lease_session import LeaseSession
from stretto.membership.stores.watch_cache import WatchCache
from stretto.membership.worker_status import Phase, WorkerStatus
from stretto.simulation.rosters.flaky_store import FlakyLink
from stretto.simulation.rosters.worker import SimWorker

if TYPE_CHECKING:
    from stretto.simulation.rosters.world import World

PHASES = list(Phase)
PROBE_S = 0.5
"""How long it takes to find unreachable agents, and the time until the next attempt."""


T = TypeVar("T")


class WorkerFacts(TypedDict, total=False):
    """What a worker's message says of it."""

    phase: Phase
    roster: int
    halted: int
    prepared: int
    tick: int | None
    slices: int
    shape: str


class SimAgent:
    """An agent on one simulated host: the real membership code, its workers, and the messages between them."""

    def __init__(self, name: str, *, world: World, slots: int) -> None:
        self.name = name
        self.alive = True
        self.draining = False
        self.unreached: list[str] = []
        self._probing = False
        self.workers: dict[str, SimWorker] = {}
        self.statuses: dict[str, WorkerStatus] = {}
        self._world = world
        self.slots = slots
        self._starting = False
        self._shown: set[str] = set()
        """The gone whose records the leader can have seen."""
        self._delivered: dict[str, tuple[int, int]] = {}
        store = FlakyLink(world.depot, world.network, host=name, answer_s=world.timing.answer_s, doubled=world.doubled)
        clock = world.loop.time
        self.mirror = WatchCache(store)
        self.presence = LeaseSession(store, agent=name, timing=world.timing, on_fence=self._fence, clock=clock)
        self.leader = Leader(
            store,
            agent=name,
            mirror=self.mirror,
            presence=self.presence,
            timing=world.timing,
            clock=clock,
            on_lost=lambda life: True,
        )
        self._register()
        parts = (self.mirror.run(), self.presence.run(), self.leader.run(), self._follow_store())
        self._tasks = [world.loop.create_task(part) for part in parts]

    # ---- life and death

    def die(self, *, with_host: bool = False) -> None:
        """The agent is killed; its workers go with it, at once or when their kernel has noticed."""
        if not self.alive:
            return
        self.alive = False
        self._world.observer.note(f"agent {self.name} dies")
        for task in self._tasks:
            task.cancel()
        for worker in self.workers.values():
            worker.die(silently=with_host)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def failure(self) -> BaseException | None:
        """What ended one of the agent's tasks, if anything did."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                return task.exception()
        return None

    def _fence(self) -> None:
        self._world.observer.note(f"agent {self.name} fences itself")
        for worker in self.workers.values():
            worker.die()

    def drain(self) -> None:
        self.draining = True
        self._register()
        for name, status in self.statuses.items():
            if status.training:
                self._write(replace(self.statuses[name], leaving=True))

    def _register(self) -> None:
        document = {"agent": self.name, "slots": self.slots, "draining": self.draining, "unreached": self.unreached}
        self.presence.put(store_schema.AGENTS + self.name, document)

    # ---- messages of workers

    def report(self, worker: SimWorker, **facts: Unpack[WorkerFacts]) -> None:
        """A message on the worker's link; it may be overtaken by others, and some come twice."""
        if not self.alive:
            return
        for lag in self._world.lags():
            self._world.loop.call_later(lag, self._note, worker.name, facts)
        if "halted" in facts and not self._probing:
            self._probing = True
            self._world.loop.call_later(PROBE_S, self._probe)

    def _probe(self) -> None:
        """Registers which agents in the store cannot be reached, again and again until all can be."""
        if not self.alive:
            return
        agents = store_schema.under(self.mirror.entries, store_schema.AGENTS) if self.mirror.trouble is None else {}
        unreached = [name for name in agents if not self._world.network.both(self.name, name)]
        if unreached != self.unreached:
            self.unreached = unreached
            self._register()
        self._probing = bool(unreached)
        if unreached:
            self._world.loop.call_later(PROBE_S, self._probe)

    def measured(self, worker: SimWorker, speed: float) -> None:
        self._write(replace(self.statuses[worker.name], speed=speed))

    def _note(self, name: str, facts: WorkerFacts) -> None:
        now = self.statuses.get(name)
        if not self.alive or now is None:
            return
        phase = max(now.phase, facts.get("phase", now.phase), key=PHASES.index)
        if now.phase is Phase.FINISHED:
            phase = now.phase
        ticks = [tick for tick in (now.tick, facts.get("tick")) if tick is not None]
        self._write(
            replace(
                now,
                phase=phase,
                tick=max(ticks, default=None),
                roster=max(now.roster, facts.get("roster", 0)),
                halted=max(now.halted, facts.get("halted", 0)),
                prepared=max(now.prepared, facts.get("prepared", 0)),
                slices=facts.get("slices", now.slices),
                shape=facts.get("shape", now.shape),
            )
        )

    def _write(self, status: WorkerStatus) -> None:
        self.statuses[status.worker] = status
        self.presence.put(store_schema.WORKERS + status.worker, status.to_dict())

    # ---- following the store

    async def _follow_store(self) -> None:
        while True:
            self._reconcile()
            await self.mirror.changed(2.0)

    def _reconcile(self) -> None:
        entries = self.mirror.entries
        roster, broken = store_schema.roster(entries), store_schema.broken(entries)
        for name, worker in list(self.workers.items()):
            if not worker.alive or worker.finished:
                continue
            halted, newest = self._delivered.get(name, (0, 0))
            if broken > halted:
                self._deliver(worker, worker.halt, broken)
            if roster is not None and roster.number > newest:
                self._deliver(worker, worker.receive, roster)
            self._delivered[name] = (broken, max(newest, roster.number if roster else 0))
            if store_schema.DISMISSED + name in entries:
                worker.die()
        self._forget(entries)
        self._size(entries)

    def _deliver(self, worker: SimWorker, call: Callable[[T], None], fact: T) -> None:
        world = self._world
        for lag in world.lags():
            world.loop.call_later(lag, worker.unless_done, call, fact)

    def _forget(self, entries: store_schema.Entries) -> None:
        """Drops the records of the gone that the leader has deleted; never before, or they would seem to have vanished."""
        recorded = store_schema.statuses(entries)
        for name, status in list(self.statuses.items()):
            if name in recorded and recorded[name].phase is Phase.GONE:
                self._shown.add(name)
            elif name not in recorded and name in self._shown and status.phase is Phase.GONE:
                self.presence.put(store_schema.WORKERS + name, None)
                del self.statuses[name], self.workers[name]

    def _size(self, entries: store_schema.Entries) -> None:
        """Runs as many workers as the leader wants here."""
        if store_schema.value(entries, store_schema.OUTCOME).get("state") == "finished" or self.draining:
            return
        target = to_int(store_schema.value(entries, store_schema.TARGETS + self.name).get("workers"))
        running = [worker for worker in self.workers.values() if worker.alive and not worker.finished]
        if len(running) < target and not self._starting:
            self._starting = True
            self._world.loop.call_later(self._world.random.random() * self._world.restart_s, self._start)
        roster = store_schema.roster(entries)
        named = () if roster is None else (*roster.workers, *roster.left)
        spare = [worker for worker in running if worker.seat.tick is None and worker.name not in named]
        for worker in spare[: max(0, len(running) - target)]:
            worker.die()

    def _start(self) -> None:
        self._starting = False
        if not self.alive or self.draining:
            return
        world = self._world
        worker = world.new_worker(self)
        self.workers[worker.name] = worker
        self._write(WorkerStatus(worker.name, self.name, Phase.STARTING, worker.order, (self.name, worker.order)))
        world.loop.call_later(world.random.random() * world.script_s, worker.unless_done, worker.ready)
        self._reconcile()
