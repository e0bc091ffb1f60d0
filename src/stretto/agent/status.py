"""How a run stands: what `ps`, `show` and the server ask its agent for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor


def standing(agent: Supervisor) -> dict[str, Any]:
    tally, council, options = agent.recorder.tally, agent.council, agent.options
    roster = council.roster
    workers = [
        {
            "worker": worker.name,
            "pid": worker.pid,
            "phase": worker.status.phase.value,
            "tick": worker.status.tick,
            "roster": worker.status.roster,
        }
        for worker in agent.workers.values()
        if not worker.dead
    ]
    return {
        "name": agent.folder.name,
        "state": "stopping" if agent.ending.stopping is not None else "running",
        "pid": os.getpid(),
        "workers": workers,
        "wanted": council.wanted,
        "least": options.least,
        "most": options.most,
        "members": len(roster.members) if roster else 0,
        "roster": roster.number if roster else 0,
        "settled": council.settled,
        "slices": agent.slices or council.slices,
        "agent": options.agent,
        "agents": sorted(council.agents),
        "leader": council.leader,
        "steps": tally.steps,
        "step": tally.last_step,
        "epoch": tally.last.epoch if tally.last is not None else None,
        "metrics": tally.metrics,
        "steps_per_s": round(tally.steps_per_s, 3),
        "restarts": agent.restarts,
        "stalled": agent.progress.stalled,
    }
