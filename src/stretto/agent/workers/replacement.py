"""Replaces workers that died: within a budget, with a backoff, and not for ever."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.agent.context import JobContext
from stretto.agent.hosts.multi_host import MultiHostJob
from stretto.agent.workers.failure_policy import Failure
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.core.text import quantity
from stretto.membership.worker_status import Phase

WINDOW_S = 300.0
"""Older deaths are forgotten: a job of a week may lose a worker a day."""
BACKOFF_S = 1.0
BACKOFF_MOST_S = 30.0
TRIES = 2
"""Workers refused for one reason before no more are started."""


@dataclass(slots=True)
class RestartBudget:
    """At most `restarts` in any window. The first is immediate, each further one waits twice as long."""

    restarts: int
    window_s: float = WINDOW_S
    _made: deque[float] = field(default_factory=deque[float])

    def spend(self, now: float) -> float | None:
        """Counts a restart and returns the seconds to wait before it; None when the budget is used up."""
        while self._made and self._made[0] <= now - self.window_s:
            self._made.popleft()
        if len(self._made) >= self.restarts:
            return None
        before = len(self._made)
        self._made.append(now)
        return 0.0 if before == 0 else min(BACKOFF_MOST_S, BACKOFF_S * 2 ** (before - 1))


class Replacement:
    """The replacements of one agent. Its `balance` starts them, like all workers."""

    def __init__(self, context: JobContext, *, multi_host: MultiHostJob | None, balance: Callable[[], None]) -> None:
        self._context = context
        self._multi_host = multi_host
        self._balance = balance
        self._budget = RestartBudget(context.options.max_restarts)
        self.made = 0
        self.scheduled = 0
        """Replacements that wait for their backoff."""
        self.forfeited = 0
        """Places that are not filled any more."""
        self._refusals: Counter[str] = Counter()

    def forgive(self) -> None:
        """A user asked for workers again: forfeited places count as before."""
        self.forfeited = 0
        self._refusals.clear()

    def refused(self, worker: WorkerHandle, reason: str, *, recurring: bool) -> None:
        """A worker was refused. Forfeits its place if the next one would be refused too; the job continues without it as long as
        any worker trains."""
        self._refusals[kind_of(reason)] += 1
        if not recurring or self._refusals[kind_of(reason)] < TRIES:
            return self.replace(worker, f"was refused: {reason}", refused=True)
        self.forfeited += 1
        self._continue_without(
            worker,
            f"was refused: {reason}",
            f"{self._refusals[kind_of(reason)]} workers were refused for this reason",
            refused=True,
        )

    def replace(self, worker: WorkerHandle, why: str, *, counted: bool = True, refused: bool = False) -> None:
        """Schedules another worker in its place, if the budget allows it."""
        delay = self._budget.spend(time.monotonic()) if counted else 0.0
        if delay is None:
            self.forfeited += 1
            budget = f"--max-restarts {self._context.options.max_restarts} within {self._budget.window_s:.0f} s"
            return self._continue_without(worker, why, budget, refused=refused)
        self.made += 1

        async def after_backoff() -> None:
            await asyncio.sleep(delay)
            self.scheduled -= 1
            self._balance()

        self.scheduled += 1
        self._context.tasks.spawn(after_backoff())

    def _continue_without(self, worker: WorkerHandle, why: str, bound: str, *, refused: bool) -> None:
        context, least = self._context, self._context.options.least
        rest = sum(other.serving or other.status.phase is Phase.FINISHED for other in context.workers.values()) + self.scheduled
        if self._multi_host is not None:
            rest = self._multi_host.count_others(worker.name) and least
            context.coordination.update_card(slots=max(0, self._multi_host.joined.slots - self.forfeited))
        if rest < least and not (refused and rest and context.coordination.roster is not None):
            crash = worker.crash
            context.completion.fail(
                Failure(
                    f"worker {worker.name} {why}, and it is not replaced any more ({bound}): "
                    f"{quantity(rest, 'worker')} left, the job needs {least}",
                    crash.traceback if crash else "",
                )
            )
        else:
            context.recorder.event(
                "unreplaced" if refused else "warning",
                f"is not replaced any more ({bound}); `stretto scale` starts others",
                worker=worker.name,
            )


def kind_of(reason: str) -> str:
    """The reason without the names, steps and values that may differ between two refusals."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", reason)
