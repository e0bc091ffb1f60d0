"""What is different for an agent whose job runs on several hosts: names, connectivity, and ends without the leader.

A signal to one agent means that its host goes away, not that the job ends (`agent.drain`). What concerns all agents (a stop, a
failure) goes through the store.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.agent.completion import RunOutcome
from stretto.agent.hosts.connectivity import Connectivity
from stretto.agent.hosts.join import Joined
from stretto.agent.workers.failure_policy import Failure
from stretto.core.json_types import JsonObject
from stretto.membership.worker_status import Phase

if TYPE_CHECKING:
    from stretto.agent.context import JobContext

POLL_S = 0.2
STRANDED = 3
"""Times --grace that an agent waits for a store that only lived in another agent, where its workers cannot go on without it."""


class MultiHostJob:
    """An agent's place in a job on several hosts."""

    def __init__(self, context: JobContext, joined: Joined, *, address: tuple[str, int]) -> None:
        """`address` is where the other agents reach this one."""
        self.joined = joined
        self._context = context
        self._order = 0
        self._waiting = False
        self._connectivity = Connectivity(joined, address, others=self._peers, report=self._report_unreached)

    # ---- names

    def worker_name(self, number: int) -> str:
        return f"{self.joined.agent}.w{number}"

    def next_order(self) -> int:
        """Larger than that of any worker of the job: the newest leave first, on whatever host they are."""
        orders = (status.order for status in self._context.coordination.statuses.values())
        self._order = max(self._order, *orders, 0) + 1
        return self._order

    # ---- connectivity

    def check_connectivity(self) -> None:
        """A connection between hosts has failed: finds out whether it is the network."""
        self._context.tasks.spawn(self._connectivity.check())

    def _peers(self) -> dict[str, JsonObject]:
        coordination = self._context.coordination
        if coordination.cut_off:
            return {}
        return {name: card for name, card in coordination.agents.items() if name != self.joined.agent}

    def _report_unreached(self, problems: dict[str, str]) -> None:
        recorder, own = self._context.recorder, self.joined.agent
        self._context.coordination.update_card(unreached=sorted(problems))
        for name, problem in problems.items():
            recorder.event(
                "warning",
                f"agents {own} and {name} do not reach each other, so the job goes on without one of them until they do: {problem}",
            )
        if not problems:
            recorder.event("reached", "this host and the others reach each other again", agent=own)

    # ---- the end

    def finish(self) -> None:
        """This host's workers have finished. The leader says whether the job is over, if the store can be reached."""
        if not self._waiting:
            self._waiting = True
            self._context.tasks.spawn(self._conclude_alone())

    async def _conclude_alone(self) -> None:
        context = self._context
        quiet = 0.0
        while quiet < context.options.grace_s:
            await asyncio.sleep(POLL_S)
            quiet = quiet + POLL_S if context.coordination.cut_off else 0.0
        context.recorder.event(
            "warning",
            f"the store has been out of reach for {context.options.grace_s:g} s (--grace) after the last "
            "step: this host ends with what it has",
        )
        context.completion.conclude()

    async def watch_store(self) -> None:
        """Ends this agent if the store was inside an agent that is lost. Training continues without the store; but when a rescue or
        another worker is needed, nobody can decide who trains."""
        context, patience_s = self._context, STRANDED * self._context.options.grace_s
        if self.joined.opened.serving is not None or not self.joined.opened.within_an_agent:
            return
        quiet = 0.0
        while quiet < patience_s:
            await asyncio.sleep(POLL_S)
            quiet = quiet + POLL_S if context.coordination.cut_off and not self._trains() else 0.0
        error = (
            f"the host that holds the store has been out of reach for {patience_s:g} s (three times --grace), and without it "
            "the workers that are left cannot agree on how to go on. With --checkpoint on storage that all hosts see, the "
            "same command goes on from there; a store that outlives any host is --store etcd://…"
        )
        context.completion.end(replace(RunOutcome.failed(Failure(error)), own=True))

    def _trains(self) -> bool:
        """Whether any worker here trains, or has finished."""
        return any(
            worker.status.phase is Phase.FINISHED or (worker.serving and worker.status.halted < max(1, worker.status.roster))
            for worker in self._context.workers.values()
        )

    def ended_while_away(self, state: str, digest: str | None) -> None:
        """The other agents ended the job while this one was away."""
        if state == "finished":
            self._context.recorder.event("warning", "the job was finished by the others while this host was cut off")
            return self._context.completion.end(RunOutcome("finished", 0, digest=digest))
        error = f"the job has ended ({state}) while this host was cut off"
        self._context.completion.end(RunOutcome(state, 1, error, own=True))

    def count_others(self, worker: str) -> int:
        """Workers of the whole job that train or will, without this one."""
        statuses = self._context.coordination.statuses.values()
        return sum(status.alive and status.worker != worker for status in statuses)
