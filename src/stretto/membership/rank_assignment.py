"""Who is in the next roster, in which order, and with which slices. Pure.

Ranks follow the tree: the workers of one agent are neighbours, so the lower levels of the sum stay within a host.
Whoever stays keeps its place as far as that allows, and the first place is never a newcomer's while somebody stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from stretto.core.roster import Member
from stretto.core.slices import weigh
from stretto.membership.leader_view import Cuts
from stretto.membership.worker_status import WorkerStatus

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
