"""The elected leader: any agent runs this, one at a time holds the key `leader`, and only that one's writes are
accepted.

It has no state but a copy of the store (`WatchCache`) and a stopwatch for agents that are missing (`MissingAgents`). A new
leader reads the last roster and goes on; workers notice nothing. See store_schema.py for the layout of the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from stretto.core.json_types import to_int
from stretto.membership import store_schema
from stretto.membership.lease_session import LeaseSession
from stretto.membership.protocol import Action, LeaderView, decide, over
from stretto.membership.rank_assignment import shut_out, targets
from stretto.membership.store_schema import Entries, Write
from stretto.membership.stores.store import Guard, Put, Store, StoreError
from stretto.membership.stores.watch_cache import WatchCache
from stretto.membership.timeouts import MissingAgents, Timeouts


@dataclass(slots=True)
class Leadership:
    """What a leader holds while it leads."""

    guard: Guard
    term: int
    absences: MissingAgents


def assume(
    entries: Entries, current: Leadership | None, *, agent: str, lease: int, timing: Timeouts, now: float
) -> Leadership | None:
    """The office of this agent, if the store says that it leads. The lease tells it from an earlier process of its
    name."""
    leader = store_schema.value(entries, store_schema.LEADER)
    if not lease or (leader.get("agent"), leader.get("lease")) != (agent, lease):
        return None
    guard = Guard(store_schema.LEADER, store_schema.revision(entries, store_schema.LEADER))
    if current is not None and current.guard == guard:
        return current
    return Leadership(guard, to_int(leader["term"]), MissingAgents(timing, now))


def leader_view(entries: Entries, office: Leadership, *, now: float) -> LeaderView:
    """The view of a leader in office."""
    last = store_schema.roster(entries)
    members = {member.agent for member in last.members} if last else set[str]()
    present = store_schema.under(entries, store_schema.AGENTS)
    office.absences.update(now, present=present, expected=members)
    return store_schema.view(
        entries, term=office.term, awaited=office.absences.awaited(now), unfenced=office.absences.unfenced(now)
    )


def next_writes(entries: Entries, view: LeaderView, office: Leadership) -> list[tuple[Action | None, Write]]:
    """The transactions that are due, each with the action that it carries out (None for book-keeping)."""
    if store_schema.OUTCOME in entries:
        return []
    actions = decide(view)
    if over(view) and not actions:
        tick = max(status.tick or 0 for status in view.workers.values())
        end = store_schema.finish(entries, office=office.guard, tick=tick)
        return [(None, end)] if end else []
    due: list[tuple[Action | None, Write | None]] = [
        (action, store_schema.write(action, entries, office=office.guard)) for action in actions
    ]
    due.append((None, _retarget(entries, view, office)))
    return [(action, write) for action, write in due if write is not None]


def _retarget(entries: Entries, view: LeaderView, office: Leadership) -> Write | None:
    agents = store_schema.under(entries, store_schema.AGENTS)
    slots = {
        agent: 0 if document.get("draining") or shut_out(view, agent) else to_int(document.get("slots"), 1)
        for agent, document in agents.items()
    }
    wanted = targets(view, slots=slots, dismissed=store_schema.under(entries, store_schema.DISMISSED))
    now = {agent: document["workers"] for agent, document in store_schema.under(entries, store_schema.TARGETS).items()}
    puts = [
        Put(store_schema.TARGETS + agent, store_schema.text({"workers": count}))
        for agent, count in wanted.items()
        if now.get(agent) != count
    ]
    puts += [Put(store_schema.TARGETS + agent, None) for agent in now if agent not in wanted]
    return Write(tuple(puts), (office.guard,)) if puts else None


class Leader:
    """Stands for election whenever there is no leader, and leads when elected, until `run` is cancelled."""

    def __init__(
        self,
        store: Store,
        *,
        agent: str,
        mirror: WatchCache,
        presence: LeaseSession,
        timing: Timeouts,
        on_action: Callable[[Action], None] = lambda action: None,
        on_lost: Callable[[int], bool] = lambda life: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_action` hears of every action that was carried out; `on_lost(life)` says whether to begin a new life."""
        self.office: Leadership | None = None
        self._store = store
        self._agent = agent
        self._mirror = mirror
        self._presence = presence
        self._timing = timing
        self._clock = clock
        self._on_action = on_action
        self._on_lost = on_lost

    async def run(self) -> None:
        while True:
            began_at, version = self._clock(), self._mirror.version
            pause_s = self._timing.lease_s
            try:
                if await self._turn():
                    continue
            except StoreError:
                pause_s = self._timing.renewal_s
            # A job of a thousand workers changes a thousand times at a switch: decide half of the time at most.
            await asyncio.sleep(self._clock() - began_at)
            await self._mirror.changed(self._pause_s(pause_s), since=version)

    def _pause_s(self, longest_s: float) -> float:
        """Until something happens by the mere passing of time."""
        now = self._clock()
        due = self.office.absences.next_change(now) if self.office else None
        return longest_s if due is None else max(0.001, min(longest_s, due - now))

    async def _turn(self) -> bool:
        """One look at the store. True if something was written, so that another look is due once that is seen."""
        if self._mirror.trouble is not None or not self._mirror.revision:
            return False
        entries = self._mirror.entries
        self.office = assume(
            entries, self.office, agent=self._agent, lease=self._presence.lease, timing=self._timing, now=self._clock()
        )
        if self.office is None:
            return await self._stand(entries)
        view = leader_view(entries, self.office, now=self._clock())
        if store_schema.value(entries, store_schema.OUTCOME).get("state") == "lost":
            return await self._revive(entries)
        due = next_writes(entries, view, self.office)
        if not due:
            return False
        action, write = due[0]
        done = await self._commit(write)
        if done and action is not None:
            self._on_action(action)
        return done

    async def _stand(self, entries: Entries) -> bool:
        lease = self._presence.lease
        candidacy = store_schema.candidacy(entries, agent=self._agent, lease=lease) if lease else None
        return candidacy is not None and await self._commit(candidacy)

    async def _revive(self, entries: Entries) -> bool:
        assert self.office is not None
        life = to_int(store_schema.value(entries, store_schema.OUTCOME)["life"])
        return self._on_lost(life) and await self._commit(store_schema.revive(entries, office=self.office.guard))

    async def _commit(self, write: Write) -> bool:
        revision = await self._store.commit(write.puts, guards=write.guards)
        return revision is not None and await self._seen(revision)

    async def _seen(self, revision: int) -> bool:
        """Waits until the mirror shows what was written."""
        end = self._clock() + self._timing.lease_s
        while self._mirror.revision < revision and self._clock() < end:
            await self._mirror.changed(self._timing.renewal_s)
        return self._mirror.revision >= revision
