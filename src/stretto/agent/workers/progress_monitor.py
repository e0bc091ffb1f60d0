"""Watches the job's progress, twice a second, and does what `stall` says about it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from stretto.agent.workers.liveness import Liveness
from stretto.agent.workers.stall_detection import Moves, RestartWorker, StallDetector, Stalled, WorkerActivity, usual_step_s
from stretto.membership.worker_status import Phase

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor

LOOK_S = 0.5
AWAY_S = 4 * LOOK_S
"""An agent that comes so late to its look was itself stopped, as everything on its machine may have been."""


class ProgressMonitor:
    """One agent's look at its workers. Of a job on several hosts it sees its own, so it restarts nobody there."""

    def __init__(self, agent: Supervisor) -> None:
        self._agent = agent
        self._stalls = StallDetector(least_s=agent.options.stall_timeout_s)

    @property
    def stalled(self) -> str:
        """Who waits where, or nothing while the job makes progress."""
        return self._stalls.text

    async def watch(self) -> None:
        """Until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            if now - last > AWAY_S:
                self._stalls.awake(now)
            last = now
            self._look(now)

    def _look(self, now: float) -> None:
        agent, roster = self._agent, self._agent.council.roster
        if agent.ending.stopping is not None or roster is None:
            return
        workers = {one.name: one for one in agent.workers.values() if one.serving and one.status.phase is Phase.MEMBER}
        members = [
            WorkerActivity(name, workers[name].beat.read(), workers[name].status.order)
            for name in roster.workers
            if name in workers
        ]
        found = self._stalls.look(
            members,
            now=now,
            usual_s=usual_step_s(agent.recorder.tally.recent),
            whole=len(members) == len(roster.members),
            settled=agent.council.settled,
        )
        match found:
            case Stalled(text):
                agent.recorder.event("stalled", text)
            case Moves(text):
                agent.recorder.event("unstalled", text)
            case RestartWorker(worker, text):
                agent.condemn(workers[worker], Liveness("stuck", text))
            case None:
                pass
