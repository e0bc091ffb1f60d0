"""Another worker in the place of one that died: within the budget, later each time, and not for ever."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from stretto.agent.workers.blame import Failure
from stretto.agent.workers.budget import Budget
from stretto.agent.workers.worker import Worker
from stretto.membership.status import Phase

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor


class Replacing:
    """The replacements of one agent. They are started by its `balance`, like all workers."""

    def __init__(self, agent: Supervisor) -> None:
        self._agent = agent
        self._budget = Budget(agent.options.max_restarts)
        self.made = 0
        self.scheduled = 0
        """Wait for their time."""
        self.forfeited = 0
        """Are not replaced any more."""

    def replace(self, worker: Worker, why: str, *, counted: bool = True) -> None:
        """Another worker in its place, if the budget allows and the job wants it."""
        delay = self._budget.ask(time.monotonic()) if counted else 0.0
        if delay is None:
            self.forfeited += 1
            return self._go_on_without(worker, why)
        self.made += 1

        async def later() -> None:
            await asyncio.sleep(delay)
            self.scheduled -= 1
            self._agent.balance()

        self.scheduled += 1
        self._agent.spawn(later())

    def _go_on_without(self, worker: Worker, why: str) -> None:
        agent, least = self._agent, self._agent.options.least
        budget = f"--max-restarts {agent.options.max_restarts} within {self._budget.window_s:.0f} s"
        rest = sum(one.serving or one.status.phase is Phase.FINISHED for one in agent.workers.values()) + self.scheduled
        if agent.part is not None:
            rest = agent.part.rest(worker.name) and least
            agent.council.offer(slots=max(0, agent.part.joined.slots - self.forfeited))
        if rest < least:
            crash = worker.crash
            agent.ending.fail(Failure(f"worker {worker.name} {why}, and it is not replaced any more ({budget}): {rest} workers "
                                      f"are left, the job needs {least}", crash.traceback if crash else ""))
        else:
            agent.recorder.event("warning", f"is not replaced any more ({budget}); `stretto scale` starts others",
                                 worker=worker.name)
