"""Ranks of workers before the first roster: which of them is chief, which wait for it.

The chief at the top of the script is the chief of the first roster too: the worker that opens a file there also writes it. Workers
that are ready before the chief wait until it is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from stretto.agent.context import JobContext
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.core.messages import PassedMessage, RankMessage
from stretto.membership.startup_ranks import Ranks
from stretto.membership.worker_status import Phase

FIRST = -1
"""The chief's order: before all others in the first roster."""


class StartupRanks:
    """One agent's workers at the top of their script."""

    def __init__(
        self, context: JobContext, *, start_worker: Callable[[], None], dismiss: Callable[[WorkerHandle, str], None]
    ) -> None:
        self._context = context
        self._start_worker = start_worker
        self._dismiss = dismiss
        self._unassigned: set[str] = set()
        self._turn = asyncio.Lock()
        self._early: dict[str, Callable[[], None]] = {}
        """Workers that are ready before the chief, and what admits them."""
        self._waiting: dict[str, int] = {}
        """The number of the barrier that a worker waits at."""

    # ---- what happens

    def assign(self, worker: WorkerHandle) -> None:
        """Sends a new worker its rank, as soon as the agents agree on it."""
        self._unassigned.add(worker.name)
        self._context.tasks.spawn(self._assign(worker))

    async def _assign(self, worker: WorkerHandle) -> None:
        coordination = self._context.coordination
        async with self._turn:
            ranks = await coordination.take_rank(worker.name, mine=self._mine)
        self._unassigned.discard(worker.name)
        if worker.dead:
            return
        if ranks.chief == worker.name and worker.status.phase is Phase.STARTING:
            worker.status = replace(worker.status, order=FIRST)
            coordination.report(worker.status)
        worker.link.send(RankMessage(ranks.chief == worker.name, ranks.rank(worker.name), coordination.wanted))
        self.release()

    def _mine(self) -> set[str]:
        return {worker.name for worker in self._context.workers.values() if worker.serving or worker.status.phase is Phase.FINISHED}

    def ready(self, worker: WorkerHandle, admit: Callable[[], None]) -> None:
        """Calls `admit` once the chief is ready: now, or later."""
        if not self._is_early(worker):
            admit()
        elif worker.name not in self._early:
            self._early[worker.name] = admit
        self.release()

    def barrier(self, worker: WorkerHandle, count: int) -> None:
        """The chief passes, and releases the workers that wait for it; a newcomer to a running job passes."""
        if self.is_chief(worker.name):
            self._context.coordination.pass_barrier(worker.name, count)
            return worker.link.send(PassedMessage(count))
        self._waiting[worker.name] = count
        self.release()

    def release(self) -> None:
        """Lets workers continue that have no reason to wait any more."""
        if not self._waiting and not self._early:
            return
        coordination = self._context.coordination
        ranks = coordination.ranks  # a chief that is ready has all of its barriers behind it
        began = coordination.roster is not None or self._chief_is_past(ranks, Phase.READY, Phase.MEMBER, Phase.FINISHED)
        for name, count in list(self._waiting.items()):
            worker = self._context.workers.get(name)
            if worker is None or not worker.serving:
                del self._waiting[name]
            elif began or count <= ranks.passed:
                del self._waiting[name]
                worker.link.send(PassedMessage(count))
        for name in list(self._early):
            worker = self._context.workers.get(name)
            if worker is None or not worker.serving:
                del self._early[name]
            elif not self._is_early(worker):
                self._early.pop(name)()

    # ---- the chief

    def is_chief(self, name: str) -> bool:
        return self._context.coordination.ranks.chief == name

    def _is_early(self, worker: WorkerHandle) -> bool:
        """The worker would be in the first roster without the chief."""
        coordination = self._context.coordination
        if coordination.roster is not None or self.is_chief(worker.name):
            return False
        return not self._chief_is_past(coordination.ranks, Phase.READY, Phase.MEMBER, Phase.FINISHED)

    def _chief_is_past(self, ranks: Ranks, *phases: Phase) -> bool:
        status = self._context.coordination.statuses.get(ranks.chief)
        return status is not None and status.phase in phases

    def replace_chief(self) -> None:
        """Restarts one worker as the chief, if the chief is gone before the first roster and no new worker can become it."""
        coordination = self._context.coordination
        ranks = coordination.ranks
        if coordination.roster is not None or not ranks.chief or self._unassigned or not self._ours_to_replace(ranks):
            return
        serving = self._context.serving
        if not serving:
            return
        oldest = min(serving, key=lambda worker: worker.status.order)
        self._dismiss(oldest, "starts again as the chief: the one before is gone")
        self._start_worker()

    def _ours_to_replace(self, ranks: Ranks) -> bool:
        """The agent that had the chief replaces it, as long as it has workers."""
        coordination, owner = self._context.coordination, ranks.agent(ranks.chief)
        if owner == self._context.options.agent:
            return ranks.chief not in self._mine()
        alive = any(status.agent == owner and status.training for status in coordination.statuses.values())
        return owner not in coordination.agents or not alive
