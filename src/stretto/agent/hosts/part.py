"""An agent's part in a job on several hosts: what is different from a job that it has to itself.

A signal to one agent means that its host goes, not that the job ends: its workers leave at the next boundary and the others go
on. Only the last agent's going ends the job. What concerns everybody (a stop, a failure) goes through the store.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from stretto.agent.hosts.joining import Joined
from stretto.agent.outcome import Outcome
from stretto.membership.status import Phase

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor

LOOK_S = 0.2
FORGOTTEN_S = 60.0
"""How long an agent stays whose job is no longer known to a store that answers."""


class Part:
    """Used by the supervisor where it has one."""

    def __init__(self, agent: Supervisor, joined: Joined) -> None:
        self.joined = joined
        self._agent = agent
        self._order = 0
        self.leaving: int | None = None
        """The exit code of an agent that is on its way out."""
        self._waiting = False

    # ---- names

    def name(self, number: int) -> str:
        return f"{self.joined.agent}.w{number}"

    def order(self) -> int:
        """Larger than any that is known: the newest leave first, on whatever host they are."""
        known = (status.order for status in self._agent.council.statuses.values())
        self._order = max(self._order, *known, 0) + 1
        return self._order

    # ---- going

    @property
    def _others(self) -> list[str]:
        """Agents that could go on without this one."""
        agents = self._agent.council.agents
        return [name for name, card in agents.items()
                if name != self.joined.agent and not card.get("draining") and int(card.get("slots", 0)) > 0]

    def leave(self, *, now: bool, code: int) -> list[str]:
        """This host goes. The names of the workers that leave with it; the job stops where it has no other host."""
        agent = self._agent
        if now:
            agent.ending.end(Outcome("left", code))
            return []
        if self.leaving is not None:
            return []
        if not self._others:
            agent.recorder.event("drain", "there is no other host: the job stops at the next step boundary")
            agent.stop(now=False)
            return []
        self.leaving = code
        going = [worker.name for worker in agent.workers.values() if worker.serving]
        agent.recorder.event("drain", f"{len(going)} workers leave at the next step boundary", agent=self.joined.agent)
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
                agent.recorder.event("warning", f"the workers have not left within {agent.options.grace_s:g} s (--grace): they are "
                                                "killed")
                break
            if time.monotonic() > until + agent.options.grace_s:
                break
            await asyncio.sleep(LOOK_S)
        if self.joined.opened.serving is not None:
            agent.recorder.event("warning", "this agent holds the job's store: it stays, without workers, until the job ends")
            return
        agent.ending.end(Outcome("left", self.leaving or 0))

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
        agent.recorder.event("warning", f"the store has been out of reach for {agent.options.grace_s:g} s (--grace) after the last "
                                        "step: this host ends with what it has")
        agent.ending.conclude()

    def ended(self, document: dict[str, Any]) -> None:
        """The others have ended the job while this agent was away."""
        state = str(document.get("state", "failed"))
        if state == "finished":
            self._agent.recorder.event("warning", "the job was finished by the others while this host was cut off")
            return self._agent.ending.end(Outcome("finished", 0, digest=document.get("digest")))
        error = f"the job has ended ({state}) while this host was cut off"
        self._agent.ending.end(Outcome(state, 1, error, own=True))

    def rest(self, without: str) -> int:
        """Workers of the whole job that train or will, besides one."""
        statuses = self._agent.council.statuses.values()
        return sum(status.alive and status.worker != without for status in statuses)

    def untold(self) -> bool:
        """Whether anybody of the job has finished, here or elsewhere."""
        return any(status.phase is Phase.FINISHED for status in self._agent.council.statuses.values())
