"""The store as seen from a host with a bad line: the real table behind delays, losses, doubled and late requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from stretto.membership import store_schema
from stretto.membership.stores.mvcc_table import MvccTable
from stretto.membership.stores.store import Guard, Put, StoreChange, StoreEntry, StoreError
from stretto.simulation.rosters.invariants import InvariantChecker
from stretto.simulation.rosters.network import STORE, Network

T = TypeVar("T")


class FlakyStore:
    """The server: the table, its clock, and whoever waits for news."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, history: int, observer: InvariantChecker) -> None:
        self.table = MvccTable(history=history)
        self.loop = loop
        self.observer = observer
        observer.entries = self.table.entries
        self._news = asyncio.Event()

    def perform(self, work: Callable[[], T]) -> T:
        before = self.table.revision
        self.table.expire(now=self.loop.time())
        result = work()
        if self.table.revision != before:
            self.notify()
        return result

    def notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, timeout_s: float) -> None:
        event = self._news
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass

    def arm(self, lease: int) -> None:
        """Looks after a lease for as long as it lives."""
        grant = self.table.leases.get(lease)
        if grant is not None:
            self.loop.call_at(grant.ends_at, self._lapse, lease)

    def _lapse(self, lease: int) -> None:
        self.perform(lambda: None)
        self.arm(lease)

    def prolong(self) -> None:
        """What etcd does when it comes back: every lease gets its whole time again."""
        for lease in self.table.leases.values():
            lease.ends_at = self.loop.time() + lease.ttl_s

    def commit(self, puts: Sequence[Put], guards: Sequence[Guard], *, host: str) -> int | None:
        leader = store_schema.leader(self.table.entries)
        revision = self.table.commit(puts, guards=guards)
        if revision is not None:
            self.observer.written(puts, host=host, leader=leader)
        return revision


class FlakyLink:
    """A `Store` for one host."""

    def __init__(self, depot: FlakyStore, network: Network, *, host: str, answer_s: float, doubled: float) -> None:
        self._depot = depot
        self._network = network
        self._host = host
        self._answer_s = answer_s
        self._doubled = doubled

    async def read(self, prefix: str) -> tuple[list[StoreEntry], int]:
        table = self._depot.table
        return await self._call(lambda: (table.read(prefix), table.revision))

    async def commit(self, puts: Sequence[Put], *, guards: Sequence[Guard] = ()) -> int | None:
        return await self._call(lambda: self._depot.commit(puts, guards, host=self._host))

    async def grant(self, ttl_s: float) -> int:
        depot = self._depot

        def work() -> int:
            lease = depot.table.grant(ttl_s, now=depot.loop.time())
            depot.arm(lease)
            return lease

        return await self._call(work)

    async def renew(self, lease: int) -> bool:
        return await self._call(lambda: self._depot.table.renew(lease, now=self._depot.loop.time()))

    async def revoke(self, lease: int) -> None:
        await self._call(lambda: self._depot.table.revoke(lease))

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[StoreChange]:
        depot, network = self._depot, self._network
        place = await self._call(lambda: depot.table.place(after=after))
        while True:
            changes = depot.table.since(place, limit=16)
            if not network.both(self._host, STORE) or (network.loss and network.random.random() < network.loss):
                await asyncio.sleep(self._answer_s)
                raise StoreError("the watch was cut off")
            if changes:
                await asyncio.sleep(network.latency())
                for change in changes:
                    place += 1
                    if change.key.startswith(prefix):
                        yield change
            else:
                await depot.news(2.0)

    async def close(self) -> None: ...

    async def _call(self, work: Callable[[], T]) -> T:
        """Whatever goes wrong, the caller sees a timeout; whether the work was done, is being done or never will be,
        it cannot tell."""
        loop, network = self._depot.loop, self._network
        answer: asyncio.Future[T] = loop.create_future()
        delay_s = network.message(self._host, STORE)
        if delay_s is not None:
            loop.call_later(delay_s, self._arrive, work, answer)
            if self._doubled and network.random.random() < self._doubled:
                again: asyncio.Future[T] = loop.create_future()
                again.cancel()
                loop.call_later(delay_s + network.random.random(), self._arrive, work, again)
        timer = loop.call_later(self._answer_s, self._give_up, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    def _arrive(self, work: Callable[[], T], answer: asyncio.Future[T]) -> None:
        try:
            result = self._depot.perform(work)
        except StoreError as error:
            if not answer.done():
                answer.set_exception(error)
            return
        delay_s = self._network.message(STORE, self._host)
        if delay_s is not None:
            self._depot.loop.call_later(delay_s, lambda: None if answer.done() else answer.set_result(result))

    @staticmethod
    def _give_up(answer: asyncio.Future[T]) -> None:
        if not answer.done():
            answer.set_exception(StoreError("no answer from the store"))
