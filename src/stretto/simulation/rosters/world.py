"""One simulated job: what a seed stands for, and everything that lives in it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from stretto.core.json_types import to_int
from stretto.membership import store_schema
from stretto.membership.stores.store import Put
from stretto.membership.timeouts import Timeouts
from stretto.simulation.rosters.agent import SimAgent
from stretto.simulation.rosters.fabric import Fabric
from stretto.simulation.rosters.flaky_store import FlakyStore
from stretto.simulation.rosters.invariants import InvariantChecker
from stretto.simulation.rosters.network import Network
from stretto.simulation.rosters.worker import SimWorker

MODES = ("orderly", "host", "hosts", "hosts", "hosts", "islands")
"""Orderly: workers come and go, newcomers die early, and nobody may have to stop. Host: one agent whose workers are
killed and frozen. Hosts: several agents, a store that can be out of reach, partitions. Islands: hosts that are cut off
together at the worst moment."""


class World:
    """Everything that one seed decides, and everything that lives in its job."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        dice = self.random = random.Random(seed)
        self.seed = seed
        self.loop = loop
        self.mode = dice.choice(MODES)
        rough = self.mode == "hosts"
        several = self.mode in ("hosts", "islands")
        self.slices = dice.choice((4, 8, 8, 16))
        self.passes = dice.choice((1, 1, 2, 3))
        self.most = dice.randint(2, min(self.slices, 6))
        self.least = dice.randint(1, min(2, self.most))
        self.slice_s = dice.choice((0.02, 0.05)) * 8 / self.slices
        self.link_s = dice.choice((0.0005, 0.02, 0.3))
        self.doubled = dice.choice((0.0, 0.2))
        self.restart_s = dice.choice((0.1, 0.5))
        self.script_s = dice.choice((0.2, 1.0))
        self.odd = dice.choice((0.0, 0.1)) if self.mode != "orderly" else 0.0
        fence_s = 8.0 if self.mode == "islands" else dice.choice((2.6, 4.5, 8.0))
        self.timing = Timeouts(lease_s=3.0, renewal_s=1.0, answer_s=0.7, fence_s=fence_s)
        self.duration_s = dice.uniform(3.0, 9.0)
        self.end: int | None = dice.randint(5, 60) * self.passes if dice.random() < 0.25 else None
        """The tick at which the script ends; None: when the faults are over and everybody has come together again."""
        self.network = Network(
            dice,
            delay_s=dice.choice((0.001, 0.02, 0.2)),
            spike=dice.choice((0.0, 0.02)) * rough,
            loss=dice.choice((0.0, 0.02)) * rough,
        )
        self.observer = InvariantChecker(self.slices, self.passes, clock=loop.time)
        self.depot = FlakyStore(loop, history=dice.choice((20, 10_000)), observer=self.observer)
        self.fabric = Fabric(loop, self.network)
        self.agents: list[SimAgent] = []
        self.mended = False
        self.saved: tuple[int, int] | None = None
        self._orders = 0
        self.write(store_schema.JOB, {"least": self.least, "most": self.most, "slices": self.slices})
        self.write(store_schema.WANTED, {"workers": dice.randint(self.least, self.most)})
        for _ in range(dice.randint(2, 4) if several else 1):
            self.new_agent()

    # ---- what the parts ask for

    def write(self, key: str, document: Mapping[str, object] | None) -> None:
        """Somebody with a good line to the store: a user at a terminal."""
        put = Put(key, None if document is None else store_schema.text(document))
        self.depot.perform(lambda: self.depot.table.commit([put]))

    def new_agent(self) -> SimAgent:
        slots = self.random.randint(1, 3) if self.mode in ("hosts", "islands") else self.most
        agent = SimAgent(f"h{len(self.agents)}", world=self, slots=slots)
        self.agents.append(agent)
        self.observer.note(f"agent {agent.name} starts with {slots} slots")
        return agent

    def new_worker(self, agent: SimAgent) -> SimWorker:
        self._orders += 1
        worker = SimWorker(
            f"w{self._orders}",
            agent=agent,
            world=self,
            order=self._orders,
            speed=self.random.choice((0.5, 1.0, 1.0, 2.0)),
            odd=bool(self.observer.top) and self.random.random() < self.odd,
        )
        self.observer.workers[worker.name] = worker
        self.observer.note(f"{worker.name} starts on {agent.name}")
        return worker

    def lags(self) -> list[float]:
        """When a message between a worker and its agent arrives; some come a second time, much later."""
        lag = self.random.random() * self.link_s
        return [lag, lag + self.random.random() * 2.0] if self.random.random() < self.doubled else [lag]

    def start(self) -> tuple[int, int]:
        """Where a first roster begins: at the last checkpoint, or at the beginning."""
        return self.saved or (0, self.observer.state_at(0))

    def checkpoint(self, worker: SimWorker) -> None:
        roster, tick, state = worker.seat.roster, worker.seat.tick, worker.state
        if tick is None or state is None or roster is None or tick % self.passes or roster.workers[0] != worker.name:
            return
        if self.random.random() < 0.1:
            self.saved = max(self.saved or (0, 0), (tick, state))

    def ends(self, tick: int) -> bool:
        return self.end is not None and tick >= self.end and tick % self.passes == 0

    # ---- how things stand

    @property
    def living(self) -> list[SimAgent]:
        return [agent for agent in self.agents if agent.alive]

    @property
    def processes(self) -> list[SimWorker]:
        return [worker for agent in self.living for worker in agent.workers.values() if worker.alive and not worker.finished]

    @property
    def entries(self) -> store_schema.Entries:
        return self.depot.table.entries

    def together(self) -> bool:
        """As many workers as wanted train in the roster that was published last."""
        room = sum(agent.slots for agent in self.living if not agent.draining)
        wanted = to_int(store_schema.value(self.entries, store_schema.WANTED)["workers"])
        roster = store_schema.roster(self.entries)
        if roster is None or roster.number <= store_schema.broken(self.entries):
            return False
        members = [worker for worker in self.processes if worker.seat.roster == roster]
        count = min(max(wanted, self.least), self.most, self.slices, room)
        return len(members) == len(roster.members) == count
