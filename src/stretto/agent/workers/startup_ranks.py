"""Workers before the first roster: who of them is chief, who waits for whom.

The chief at the top of the script is the chief of the first roster too: a file that it opens there, it also writes. Workers that
are ready before it are kept back until it is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.core.messages import PassedMessage, RankMessage
from stretto.membership.startup_ranks import Ranks
from stretto.membership.worker_status import Phase

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor

FIRST = -1
"""The chief's order: before all others in the first roster."""


class StartupRanks:
    """One agent's part in it."""

    def __init__(self, agent: Supervisor) -> None:
        self._agent = agent
        self._naming: set[str] = set()
        self._turn = asyncio.Lock()
        self._held: dict[str, Callable[[], None]] = {}
        self._waiting: dict[str, int] = {}
        """The number of the barrier that a worker waits at."""

    # ---- what happens

    def started(self, worker: WorkerHandle) -> None:
        """Tells a new worker what it is, as soon as the agents agree on it."""
        self._naming.add(worker.name)
        self._agent.spawn(self._name(worker))

    async def _name(self, worker: WorkerHandle) -> None:
        council = self._agent.council
        async with self._turn:
            ranks = await council.take_rank(worker.name, mine=self._mine)
        self._naming.discard(worker.name)
        if worker.dead:
            return
        if ranks.chief == worker.name and worker.status.phase is Phase.STARTING:
            worker.status = replace(worker.status, order=FIRST)
            council.tell(worker.status)
        worker.link.send(RankMessage(ranks.chief == worker.name, ranks.rank(worker.name), council.wanted))
        self.look()

    def _mine(self) -> set[str]:
        return {worker.name for worker in self._agent.workers.values() if worker.serving or worker.status.phase is Phase.FINISHED}

    def ready(self, worker: WorkerHandle, admit: Callable[[], None]) -> None:
        """Calls `admit` once the chief is ready: now, or later."""
        if not self._is_early(worker):
            admit()
        elif worker.name not in self._held:
            self._held[worker.name] = admit
        self.look()

    def barrier(self, worker: WorkerHandle, count: int) -> None:
        """The chief passes, and lets those pass who wait for it; a newcomer to a running job passes."""
        if self.is_chief(worker.name):
            self._agent.council.pass_barrier(worker.name, count)
            return worker.link.send(PassedMessage(count))
        self._waiting[worker.name] = count
        self.look()

    def look(self) -> None:
        """Lets go on whoever has no reason to wait any more."""
        if not self._waiting and not self._held:
            return
        council = self._agent.council
        ranks = council.ranks  # a chief that is ready has all of its barriers behind it
        began = council.roster is not None or self._chief_is_past(ranks, Phase.READY, Phase.MEMBER, Phase.FINISHED)
        for name, count in list(self._waiting.items()):
            worker = self._agent.workers.get(name)
            if worker is None or not worker.serving:
                del self._waiting[name]
            elif began or count <= ranks.passed:
                del self._waiting[name]
                worker.link.send(PassedMessage(count))
        for name in list(self._held):
            worker = self._agent.workers.get(name)
            if worker is None or not worker.serving:
                del self._held[name]
            elif not self._is_early(worker):
                self._held.pop(name)()

    # ---- what is so

    def is_chief(self, name: str) -> bool:
        return self._agent.council.ranks.chief == name

    def _is_early(self, worker: WorkerHandle) -> bool:
        """It would be in the first roster without the chief."""
        council = self._agent.council
        if council.roster is not None or self.is_chief(worker.name):
            return False
        return not self._chief_is_past(council.ranks, Phase.READY, Phase.MEMBER, Phase.FINISHED)

    def _chief_is_past(self, ranks: Ranks, *phases: Phase) -> bool:
        status = self._agent.council.statuses.get(ranks.chief)
        return status is not None and status.phase in phases

    def replace_chief(self) -> None:
        """The chief is gone before the first roster, and nobody is being started who could become it: one worker starts again."""
        agent, council = self._agent, self._agent.council
        ranks = council.ranks
        if council.roster is not None or not ranks.chief or self._naming or not self._ours_to_replace(ranks):
            return
        serving = [worker for worker in agent.workers.values() if worker.serving]
        if not serving:
            return
        oldest = min(serving, key=lambda worker: worker.status.order)
        agent.let_go(oldest, "starts again as the chief: the one before is gone")
        agent.start_worker()

    def _ours_to_replace(self, ranks: Ranks) -> bool:
        """The agent whose worker it was sees to it, as long as it has any."""
        council, owner = self._agent.council, ranks.agent(ranks.chief)
        if owner == self._agent.options.agent:
            return ranks.chief not in self._mine()
        alive = any(status.agent == owner and status.training for status in council.statuses.values())
        return owner not in council.agents or not alive
