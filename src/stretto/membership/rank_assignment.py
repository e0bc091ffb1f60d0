"""Who is in the next roster, in which order, with which slices, and how many workers each agent runs. Pure.

Ranks follow the tree: the workers of one agent are neighbours, so the lower levels of the sum stay within a host.
Whoever stays keeps its place as far as that allows, and the first place is never a newcomer's while somebody stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from stretto.core.roster import Member
from stretto.core.slices import weigh
from stretto.membership.leader_view import Cuts, LeaderView
from stretto.membership.worker_status import Phase, WorkerStatus

GAIN = 0.9
"""Slices move between the same workers only if the slowest one's time falls below this part of it: speeds jitter."""


def choose(members: Iterable[WorkerStatus], newcomers: Iterable[WorkerStatus], *, count: int) -> list[WorkerStatus]:
    """The `count` workers of the next plan. The newest leave first; somebody who has the state always stays."""
    members = sorted(members, key=lambda status: (status.order, status.worker))
    stay = [status for status in members if not status.leaving][:count]
    if not stay and members:
        stay = members[:1]
    fresh = sorted((status for status in newcomers if not status.leaving), key=lambda status: (status.order, status.worker))
    return stay + fresh[: max(0, count - len(stay))]


def reaching(chosen: Sequence[WorkerStatus], *, cuts: Cuts) -> list[WorkerStatus]:
    """Without the hosts that keep the others from reaching each other: those with most cuts go first, then those with the
    fewest workers, then the newest. Somebody always stays."""
    workers = Counter(status.agent for status in chosen)
    first = {status.agent: status.order for status in sorted(chosen, key=lambda status: -status.order)}
    left: list[frozenset[str]] = [cut for cut in cuts if all(agent in workers for agent in cut)]
    while left:
        count = Counter[str](agent for cut in left for agent in cut)
        worst = max(count, key=lambda agent: (count[agent], -workers[agent], first[agent], agent))
        del workers[worst]
        left = [cut for cut in left if worst not in cut]
    return [status for status in chosen if status.agent in workers]


def cut_from(agent: str, others: Iterable[str], *, cuts: Cuts) -> bool:
    """Whether this agent does not reach one of the others."""
    return bool(cuts) and any(frozenset((agent, other)) in cuts for other in others)


def arrange(chosen: Sequence[WorkerStatus], *, places: Sequence[str]) -> list[WorkerStatus]:
    """Workers in rank order. `places` are the names of the roster before, in its order."""
    before = {worker: place for place, worker in enumerate(places)}
    ranked = sorted(chosen, key=lambda status: (before.get(status.worker, len(before)), status.order, status.worker))
    hosts: dict[str, list[WorkerStatus]] = {}
    for status in ranked:
        hosts.setdefault(status.agent, []).append(status)
    return [status for host in hosts.values() for status in host]


def share(ranked: Sequence[WorkerStatus], *, slices: int) -> tuple[Member, ...]:
    """Members with their slices, by speed."""
    spans = weigh(slices, [max(status.speed, 1e-3) for status in ranked])
    return tuple(Member(status.worker, status.agent, status.address, span) for status, span in zip(ranked, spans, strict=True))


def slowest(members: Iterable[Member], *, speeds: dict[str, float]) -> float:
    """The time of a step with these shares, in slices of a worker with speed 1."""
    return max(len(member.share) / max(speeds[member.worker], 1e-3) for member in members)


def worthwhile(now: Sequence[Member], then: Sequence[Member], *, speeds: dict[str, float]) -> bool:
    """Whether moving slices between the same workers pays."""
    return slowest(then, speeds=speeds) < GAIN * slowest(now, speeds=speeds)


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
