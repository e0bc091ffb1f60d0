"""Elections and leadership on the embedded store, with agents that only pretend to have workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from stretto.membership import store_schema
from stretto.membership.leader import Leader
from stretto.membership.lease_session import LeaseSession
from stretto.membership.protocol import Phase, WorkerStatus
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.store import Guard, Put, Store
from stretto.membership.stores.watch_cache import WatchCache
from stretto.membership.timeouts import Timeouts

QUICK = Timeouts().scaled(0.25)


class Agent:
    def __init__(self, store: Store, name: str, *, timing: Timeouts = QUICK, on_lost: Callable[[int], bool] | None = None):
        self.fenced = 0
        self.name = name
        self.mirror = WatchCache(store)
        self.presence = LeaseSession(store, agent=name, timing=timing, on_fence=self.fence)
        self.leader = Leader(
            store, agent=name, mirror=self.mirror, presence=self.presence, timing=timing, on_lost=on_lost or (lambda life: False)
        )
        self.presence.put(store_schema.AGENTS + name, {"agent": name, "slots": 4})

    def fence(self) -> None:
        self.fenced += 1

    def say(self, worker: str, phase: Phase, *, order: int = 0, **fields: object) -> None:
        status = WorkerStatus(worker, self.name, phase, order, slices=8, shape="s", **fields)  # type: ignore[arg-type]
        self.presence.put(store_schema.WORKERS + worker, status.to_dict())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Agent]:
        tasks = [asyncio.create_task(part.run()) for part in (self.mirror, self.presence, self.leader)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], *, what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


async def job(store: Store, *, least: int = 1, most: int = 4) -> None:
    await store.commit([Put(store_schema.JOB, store_schema.text({"least": least, "most": most, "slices": 8}))])


def test_the_first_roster_is_published_when_the_fewest_are_ready() -> None:
    async def story() -> None:
        store = EmbeddedStore()
        await job(store, least=2)
        async with Agent(store, "a").running() as agent:
            agent.say("w1", Phase.READY)
            await until(lambda: store_schema.TARGETS + "a" in agent.mirror.entries, what="targets")
            assert store_schema.roster(agent.mirror.entries) is None
            agent.say("w2", Phase.READY, order=1)
            await until(lambda: store_schema.roster(agent.mirror.entries) is not None, what="a roster")
            roster = store_schema.roster(agent.mirror.entries)
            assert roster is not None
            assert roster.workers == ("w1", "w2")

    asyncio.run(story())


def test_another_agent_leads_when_the_leader_is_gone_and_goes_on_with_the_same_roster() -> None:
    async def story() -> None:
        store = EmbeddedStore()
        await job(store, least=2)
        async with Agent(store, "b").running() as second:
            async with Agent(store, "a").running() as first:
                first.say("w1", Phase.READY)
                second.say("w2", Phase.READY, order=1)
                await until(lambda: store_schema.roster(second.mirror.entries) is not None, what="a roster")
                first.say("w1", Phase.MEMBER, roster=1, tick=0)
                second.say("w2", Phase.MEMBER, order=1, roster=1, tick=0)
                await until(lambda: first.leader.office is not None or second.leader.office is not None, what="a leader")
            # Agent a is gone without a word: its lease runs out, its worker has vanished.
            await until(lambda: store_schema.broken(second.mirror.entries) == 1, what="a break")
            assert second.leader.office is not None
            second.say("w2", Phase.MEMBER, order=1, roster=1, tick=5, halted=1)
            await until(lambda: (r := store_schema.roster(second.mirror.entries)) is not None and r.number == 2, what="a rescue")
            roster = store_schema.roster(second.mirror.entries)
            assert roster is not None
            assert (roster.workers, roster.rescue, roster.tick) == (("w2",), True, 5)

    asyncio.run(story())


def test_a_deposed_leaders_write_is_refused() -> None:
    async def story() -> None:
        store = EmbeddedStore()
        await job(store)
        async with Agent(store, "a").running() as first:
            await until(lambda: first.leader.office is not None, what="a leader")
            assert first.leader.office is not None
            old = first.leader.office.guard
            assert await store.commit([Put("proof", "1")], guards=[old]) is not None
        await store.revoke(first.presence.lease)
        async with Agent(store, "b").running() as second:
            await until(lambda: second.leader.office is not None, what="another leader")
            assert second.leader.office is not None
            assert second.leader.office.term == 2
            assert await store.commit([Put(store_schema.ROSTER, "{}")], guards=[old]) is None
            assert await store.commit([Put("proof", "2")], guards=[Guard(store_schema.LEADER, second.leader.office.guard.revision)])

    asyncio.run(story())


def test_an_agent_that_cannot_renew_stops_its_workers_once() -> None:
    async def story() -> None:
        store = EmbeddedStore()
        timing = Timeouts(lease_s=0.5, renewal_s=0.1, answer_s=0.15, margin_s=0.05, fence_s=0.4)
        agent = Agent(store, "a", timing=timing)
        async with agent.running():
            await asyncio.sleep(1.0)
            assert agent.fenced == 0
            await store.close()
            await until(lambda: agent.fenced > 0, what="the fence")

    with suppress(asyncio.CancelledError):
        asyncio.run(story())


def test_after_everybody_died_the_job_begins_a_new_life_with_higher_numbers() -> None:
    async def story() -> None:
        store = EmbeddedStore()
        await job(store)
        lives: list[int] = []
        agent = Agent(store, "a", on_lost=lambda life: lives.append(life) or True)
        async with agent.running():
            agent.say("w1", Phase.READY)
            await until(lambda: store_schema.roster(agent.mirror.entries) is not None, what="a roster")
            agent.say("w1", Phase.MEMBER, roster=1, tick=3)
            agent.say("w1", Phase.GONE, roster=1, tick=3)
            await until(lambda: store_schema.value(agent.mirror.entries, store_schema.LIFE).get("life") == 2, what="a new life")
            agent.say("w2", Phase.READY, order=1)
            await until(lambda: (r := store_schema.roster(agent.mirror.entries)) is not None and r.workers == ("w2",), what="w2")
            roster = store_schema.roster(agent.mirror.entries)
            assert roster is not None
            assert roster.number > 1
            assert lives == [1]

    asyncio.run(story())
