"""Drains: an agent's workers leave at the next boundary, because its machine is about to go.

Three times belong together, and each must end before the next one does:

    a step  <  --grace (30 s)  <  what the machine gives between the notice and its end

The workers leave at the end of the step in flight. Where there is another agent, the others go on without them; the last
agent stops the job instead, and its checkpoint, which is waited for within the same --grace, is what `stretto resume`
goes on from. Usual notices: 120 s on AWS, 30 s on GCP, Azure and Kubernetes (terminationGracePeriodSeconds).
"""

from __future__ import annotations

from typing import Any

from stretto.agent.supervisor import Supervisor
from stretto.core.errors import UsageError
from stretto.core.text import quantity


def drain(supervisor: Any, *, agent: str) -> dict[str, Any]:
    """Begins to drain an agent. What it will do is told at once; it happens at the next boundary."""
    if not isinstance(supervisor, Supervisor):
        supervisor.stop(now=False)
        return {"agent": agent, "leaving": [], "stops": True, "checkpoint": False}
    if supervisor.part is not None:
        return _of_several(supervisor, agent=agent)
    known = sorted({supervisor.options.agent, *(status.agent for status in supervisor.council.statuses.values())})
    if agent not in known:
        raise UsageError(f"run {supervisor.folder.name!r} has no agent {agent!r}: it has {', '.join(known)}")
    alive = [status for status in supervisor.council.statuses.values() if status.alive]
    leaving = [status.worker for status in alive if status.agent == agent]
    if len(leaving) < len(alive):
        supervisor.recorder.event("drain", f"{quantity(len(leaving), 'worker')} to leave at the next step boundary", agent=agent)
        for worker in leaving:
            supervisor.council.leaving(worker)
        return {"agent": agent, "leaving": leaving, "stops": False, "checkpoint": False}
    saves = supervisor.options.checkpoints is not None
    last = "a checkpoint is taken first" if saves else "there is no --checkpoint, so nothing is kept of it"
    supervisor.recorder.event("drain", f"it is the last agent, so the job stops at the next step boundary; {last}", agent=agent)
    supervisor.stop(now=False)
    return {"agent": agent, "leaving": leaving, "stops": True, "checkpoint": saves}


def _of_several(supervisor: Supervisor, *, agent: str) -> dict[str, Any]:
    """On several hosts the agent itself carries it out, and goes when its workers have left."""
    part, known = supervisor.part, supervisor.council.agents
    assert part is not None
    if agent == part.joined.agent:
        leaving = part.leave(now=False, code=0)
        stops, saves = part.leaving is None, supervisor.options.checkpoints is not None
        return {"agent": agent, "leaving": leaving, "stops": stops, "checkpoint": stops and saves}
    if agent not in known:
        raise UsageError(f"job {part.joined.job!r} has no agent {agent!r}: it has {', '.join(sorted(known))}")
    supervisor.council.ask_to_leave(agent)
    leaving = [status.worker for status in supervisor.council.statuses.values() if status.agent == agent and status.alive]
    return {"agent": agent, "leaving": leaving, "stops": False, "checkpoint": False}
