"""Another worker in the place of one that died: within the budget, later each time, and not for ever."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from typing import TYPE_CHECKING

from stretto.agent.workers.failure_policy import Failure
from stretto.agent.workers.restart_budget import RestartBudget
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.core.text import quantity
from stretto.membership.worker_status import Phase

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor


TRIES = 2
"""Workers refused for one reason, after which no more are started to hear the same."""


class Replacement:
    """The replacements of one agent. They are started by its `balance`, like all workers."""

    def __init__(self, agent: Supervisor) -> None:
        self._agent = agent
        self._budget = RestartBudget(agent.options.max_restarts)
        self.made = 0
        self.scheduled = 0
        """Wait for their time."""
        self.forfeited = 0
        """Are not replaced any more."""
        self._refusals: Counter[str] = Counter()

    def forgive(self) -> None:
        """Somebody asks for workers again: places that were given up count as before."""
        self.forfeited = 0
        self._refusals.clear()

    def refused(self, worker: WorkerHandle, reason: str, *, recurring: bool) -> None:
        """A worker was sent away. Its place is given up where the next one would be sent away too; the job goes on without it as
        long as anybody trains."""
        self._refusals[kind_of(reason)] += 1
        if not recurring or self._refusals[kind_of(reason)] < TRIES:
            return self.replace(worker, f"was refused: {reason}", refused=True)
        self.forfeited += 1
        self._go_on_without(
            worker,
            f"was refused: {reason}",
            f"{self._refusals[kind_of(reason)]} workers were refused for this reason",
            refused=True,
        )

    def replace(self, worker: WorkerHandle, why: str, *, counted: bool = True, refused: bool = False) -> None:
        """Another worker in its place, if the budget allows and the job wants it."""
        delay = self._budget.ask(time.monotonic()) if counted else 0.0
        if delay is None:
            self.forfeited += 1
            budget = f"--max-restarts {self._agent.options.max_restarts} within {self._budget.window_s:.0f} s"
            return self._go_on_without(worker, why, budget, refused=refused)
        self.made += 1

        async def later() -> None:
            await asyncio.sleep(delay)
            self.scheduled -= 1
            self._agent.balance()

        self.scheduled += 1
        self._agent.spawn(later())

    def _go_on_without(self, worker: WorkerHandle, why: str, bound: str, *, refused: bool) -> None:
        agent, least = self._agent, self._agent.options.least
        rest = sum(one.serving or one.status.phase is Phase.FINISHED for one in agent.workers.values()) + self.scheduled
        if agent.part is not None:
            rest = agent.part.rest(worker.name) and least
            agent.council.offer(slots=max(0, agent.part.joined.slots - self.forfeited))
        if rest < least and not (refused and rest and agent.council.roster is not None):
            crash = worker.crash
            agent.ending.fail(
                Failure(
                    f"worker {worker.name} {why}, and it is not replaced any more ({bound}): "
                    f"{quantity(rest, 'worker')} left, the job needs {least}",
                    crash.traceback if crash else "",
                )
            )
        else:
            agent.recorder.event(
                "unreplaced" if refused else "warning",
                f"is not replaced any more ({bound}); `stretto scale` starts others",
                worker=worker.name,
            )


def kind_of(reason: str) -> str:
    """What two refusals for the same reason have in common: names of workers, steps and values may differ."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", reason)
