"""An agent's part in a job on several hosts: what is different from a job that it has to itself.

A signal to one agent means that its host goes, not that the job ends: its workers leave at the next boundary and the others go
on. Only the last agent's going ends the job. What concerns everybody (a stop, a failure) goes through the store.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stretto.agent.hosts.connectivity import Connectivity
from stretto.agent.hosts.join import Joined
from stretto.agent.outcome import RunOutcome
from stretto.agent.workers.failure_policy import Failure
from stretto.core.text import quantity
from stretto.membership.worker_status import Phase

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor

LOOK_S = 0.2
STRANDED = 3
"""Times --grace that an agent waits for a store that only lived in another agent, where its workers cannot go on without it."""


class MultiHostJob:
    """Used by the supervisor where it has one."""

    def __init__(self, agent: Supervisor, joined: Joined, *, address: tuple[str, int]) -> None:
        """`address` is where the other agents reach this one."""
        self.joined = joined
        self._agent = agent
        self._order = 0
        self.leaving: int | None = None
        """The exit code of an agent that is on its way out."""
        self._waiting = False
        self._reach = Connectivity(joined, address, others=self._in_touch, tell=self._unreached)

    # ---- names

    def name(self, number: int) -> str:
        return f"{self.joined.agent}.w{number}"

    def order(self) -> int:
        """Larger than any that is known: the newest leave first, on whatever host they are."""
        known = (status.order for status in self._agent.council.statuses.values())
        self._order = max(self._order, *known, 0) + 1
        return self._order

    # ---- who is reached

    def doubt(self) -> None:
        """Something between the hosts has failed here: is it the network?"""
        self._agent.spawn(self._reach.look())

    def _in_touch(self) -> dict[str, dict[str, Any]]:
        council = self._agent.council
        return {} if council.cut_off else {name: card for name, card in council.agents.items() if name != self.joined.agent}

    def _unreached(self, found: dict[str, str]) -> None:
        recorder, own = self._agent.recorder, self.joined.agent
        self._agent.council.offer(unreached=sorted(found))
        for name, problem in found.items():
            recorder.event(
                "warning",
                f"agents {own} and {name} do not reach each other, so the job goes on without one of them until they do: {problem}",
            )
        if not found:
            recorder.event("reached", "this host and the others reach each other again", agent=own)

    # ---- going

    @property
    def _others(self) -> list[str]:
        """Agents that could go on without this one."""
        agents = self._agent.council.agents
        return [
            name
            for name, card in agents.items()
            if name != self.joined.agent and not card.get("draining") and int(card.get("slots", 0)) > 0
        ]

    def leave(self, *, now: bool, code: int) -> list[str]:
        """This host goes. The names of the workers that leave with it; the job stops where it has no other host."""
        agent = self._agent
        if now:
            agent.ending.end(RunOutcome("left", code))
            return []
        if self.leaving is not None:
            return []
        if not self._others:
            agent.recorder.event("drain", "there is no other host: the job stops at the next step boundary")
            agent.stop(now=False)
            return []
        self.leaving = code
        going = [worker.name for worker in agent.workers.values() if worker.serving]
        agent.recorder.event(
            "drain", f"{quantity(len(going), 'worker')} to leave at the next step boundary", agent=self.joined.agent
        )
        agent.council.offer(draining=True)
        for name in going:
            if agent.workers[name].status.tick is None:
                agent.let_go(agent.workers[name], "its host leaves")  # it waits for a roster that it will not be in
            else:
                agent.council.leaving(name)
        agent.spawn(self._see_out())
        return going

    async def _see_out(self) -> None:
        """Until the last worker is gone; then, or when --grace is over, the agent goes too."""
        agent = self._agent
        until = time.monotonic() + agent.options.grace_s
        while any(not worker.dead for worker in agent.workers.values()):
            if time.monotonic() > until and self._others:
                agent.recorder.event(
                    "warning", f"the workers have not left within {agent.options.grace_s:g} s (--grace): they are killed"
                )
                break
            if time.monotonic() > until + agent.options.grace_s:
                break
            await asyncio.sleep(LOOK_S)
        if self.joined.opened.serving is not None:
            agent.recorder.event("warning", "this agent holds the job's store: it stays, without workers, until the job ends")
            return
        agent.ending.end(RunOutcome("left", self.leaving or 0))

    # ---- the end

    def finished(self) -> None:
        """All that this host had to do is done; whether the job is over is the leader's to say, if it can be heard."""
        if not self._waiting:
            self._waiting = True
            self._agent.spawn(self._conclude_alone())

    async def _conclude_alone(self) -> None:
        agent = self._agent
        quiet = 0.0
        while quiet < agent.options.grace_s:
            await asyncio.sleep(LOOK_S)
            quiet = quiet + LOOK_S if agent.council.cut_off else 0.0
        agent.recorder.event(
            "warning",
            f"the store has been out of reach for {agent.options.grace_s:g} s (--grace) after the last "
            "step: this host ends with what it has",
        )
        agent.ending.conclude()

    async def watch(self) -> None:
        """A store inside an agent does not come back when that agent is lost. Training goes on without it; but where a rescue or
        another worker is needed, nobody can say who goes on."""
        agent, patience_s = self._agent, STRANDED * self._agent.options.grace_s
        if self.joined.opened.serving is not None or not self.joined.opened.within_an_agent:
            return
        quiet = 0.0
        while quiet < patience_s:
            await asyncio.sleep(LOOK_S)
            quiet = quiet + LOOK_S if agent.council.cut_off and not self._goes_on() else 0.0
        error = (
            f"the host that holds the store has been out of reach for {patience_s:g} s (three times --grace), and without it "
            "the workers that are left cannot agree on how to go on. With --checkpoint on storage that all hosts see, the "
            "same command goes on from there; a store that outlives any host is --store etcd://…"
        )
        agent.ending.end(replace(RunOutcome.failed(Failure(error)), own=True))

    def _goes_on(self) -> bool:
        """Whether anybody here trains, or has finished."""
        return any(
            worker.status.phase is Phase.FINISHED or (worker.serving and worker.status.halted < max(1, worker.status.roster))
            for worker in self._agent.workers.values()
        )

    def ended(self, state: str, digest: str | None) -> None:
        """The other agents ended the job while this one was away."""
        if state == "finished":
            self._agent.recorder.event("warning", "the job was finished by the others while this host was cut off")
            return self._agent.ending.end(RunOutcome("finished", 0, digest=digest))
        error = f"the job has ended ({state}) while this host was cut off"
        self._agent.ending.end(RunOutcome(state, 1, error, own=True))

    def rest(self, without: str) -> int:
        """Workers of the whole job that train or will, besides one."""
        statuses = self._agent.council.statuses.values()
        return sum(status.alive and status.worker != without for status in statuses)
