"""Drains: an agent's workers leave at the next boundary, because its machine is about to go.

Three times belong together, and each must end before the next one does:

    a step  <  --grace (30 s)  <  what the machine gives between the notice and its end

The workers leave at the end of the step in flight. If the job has another agent, that one continues without them; the last agent
stops the job instead, and its checkpoint, which it waits for within the same --grace, is what `stretto resume` continues from.
Usual notices: 120 s on AWS, 30 s on GCP, Azure and Kubernetes (terminationGracePeriodSeconds).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from stretto.agent.completion import RunOutcome
from stretto.agent.context import JobContext
from stretto.agent.hosts.join import Joined
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.core.errors import UsageError
from stretto.core.json_types import to_int
from stretto.core.text import quantity

POLL_S = 0.2


class StopJob(Protocol):
    """Ends the whole job."""

    def __call__(self, *, now: bool) -> None: ...


class Drain:
    """Takes this agent out of the job, or passes the request on to another agent. `joined` is None in a job on one host."""

    def __init__(
        self, context: JobContext, joined: Joined | None, *, dismiss: Callable[[WorkerHandle, str], None], stop: StopJob
    ) -> None:
        self._context = context
        self._joined = joined
        self._dismiss = dismiss
        self._stop = stop
        self.exit_code: int | None = None
        """The exit code of an agent that is leaving."""

    def request(self, agent: str) -> dict[str, object]:
        """Begins to drain an agent. Returns at once what will happen at the next boundary."""
        context, own = self._context, self._context.options.agent
        agents = {own, *(context.coordination.agents if self._joined is not None else ())}
        if agent not in agents:
            job = f"run {context.folder.name!r}" if self._joined is None else f"job {self._joined.job!r}"
            raise UsageError(f"{job} has no agent {agent!r}: it has {', '.join(sorted(agents))}")
        if agent != own:
            context.coordination.request_drain(agent)
            statuses = context.coordination.statuses.values()
            leaving = [status.worker for status in statuses if status.agent == agent and status.alive]
            return {"agent": agent, "leaving": leaving, "stops": False, "checkpoint": False}
        leaving = self.leave(now=False, code=0)
        stops, saves = self.exit_code is None, context.options.checkpoints is not None
        return {"agent": agent, "leaving": leaving, "stops": stops, "checkpoint": stops and saves}

    def leave(self, *, now: bool, code: int) -> list[str]:
        """This agent leaves, and exits with `code`; the job stops if it has no other agent. The names of the workers that leave."""
        context, own = self._context, self._context.options.agent
        if now:
            context.completion.end(RunOutcome("left", code))
            return []
        if self.exit_code is not None:
            return []
        leaving = [worker.name for worker in context.serving]
        if not self._others:
            saves = context.options.checkpoints is not None
            last = "a checkpoint is taken first" if saves else "there is no --checkpoint, so nothing is kept of it"
            text = f"it is the last agent, so the job stops at the next step boundary; {last}"
            context.recorder.event("drain", text, agent=own)
            self._stop(now=False)
            return leaving
        self.exit_code = code
        context.recorder.event("drain", f"{quantity(len(leaving), 'worker')} to leave at the next step boundary", agent=own)
        context.coordination.update_card(draining=True)
        for name in leaving:
            if context.workers[name].status.tick is None:
                self._dismiss(context.workers[name], "its host leaves")  # it waits for a roster that will not name it
            else:
                context.coordination.request_leave(name)
        context.tasks.spawn(self._wait_for_workers())
        return leaving

    @property
    def _others(self) -> list[str]:
        """Agents that could continue without this one."""
        if self._joined is None:
            return []
        return [
            name
            for name, card in self._context.coordination.agents.items()
            if name != self._joined.agent and not card.get("draining") and to_int(card.get("slots")) > 0
        ]

    async def _wait_for_workers(self) -> None:
        """Ends this agent when its last worker is gone, or when --grace is over."""
        context, grace_s = self._context, self._context.options.grace_s
        until = time.monotonic() + grace_s
        while any(not worker.dead for worker in context.workers.values()):
            if time.monotonic() > until and self._others:
                context.recorder.event("warning", f"the workers have not left within {grace_s:g} s (--grace): they are killed")
                break
            if time.monotonic() > until + grace_s:
                break
            await asyncio.sleep(POLL_S)
        if self._joined is not None and self._joined.opened.serving is not None:
            context.recorder.event("warning", "this agent holds the job's store: it stays, without workers, until the job ends")
            return
        context.completion.end(RunOutcome("left", self.exit_code or 0))
