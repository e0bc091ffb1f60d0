"""How many workers each agent shall keep running. Pure; consistent with the plans, which let the newest go first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from stretto.membership.protocol import LeaderView
from stretto.membership.rank_assignment import cut_from
from stretto.membership.worker_status import Phase


def shut_out(view: LeaderView, agent: str) -> bool:
    """Whether an agent that has nobody on the roster does not reach those who have: what it started could not join them."""
    training = {member.agent for member in view.roster.members} if view.roster is not None else set[str]()
    return agent not in training and cut_from(agent, training, cuts=view.cuts)


def targets(view: LeaderView, *, slots: Mapping[str, int], dismissed: Collection[str] = ()) -> dict[str, int]:
    """Workers per agent. Those that run are kept, the oldest first; the rest goes where most room is beside others."""
    count = max(1, min(max(view.wanted, view.least), view.most, view.slices or view.most))
    kept = Counter[str]()
    running = (status for status in view.workers.values() if status.training and not status.leaving)
    for status in sorted(running, key=lambda status: (status.phase is not Phase.MEMBER, status.order, status.worker)):
        fits = kept[status.agent] < slots.get(status.agent, 0) and status.worker not in dismissed
        if fits and kept.total() < count:
            kept[status.agent] += 1
    while kept.total() < count:
        free = {agent: room - kept[agent] for agent, room in slots.items() if room > kept[agent]}
        if not free:
            break
        # Beside others first: what is summed within a host need not cross the network.
        best = min(free, key=lambda agent: (kept[agent] == 0, -free[agent], agent))
        kept[best] += min(free[best], count - kept.total())
    return {agent: kept[agent] for agent in slots}
