"""The store inside one process, on asyncio: the default for one host, and what `tcp.py` serves to others.

Watches read from the shared history at their own pace. Nothing is queued for a watcher, so a slow one holds nobody
up; one that falls behind by more than the history is told so with `Compacted`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from stretto.membership.stores.mvcc_table import MvccTable
from stretto.membership.stores.store import Guard, Put, StoreChange, StoreEntry, StoreError

BATCH = 256
"""Changes that a watch takes from the history at once."""


class EmbeddedStore:
    """A `Store`. The clock must be the one that `asyncio.sleep` follows; it is handed in so that tests can turn it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, history: int = 10_000) -> None:
        self._table = MvccTable(history=history)
        self._clock = clock
        self._news = asyncio.Event()
        self._earlier = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    async def read(self, prefix: str) -> tuple[list[StoreEntry], int]:
        self._advance()
        return self._table.read(prefix), self._table.revision

    async def commit(self, puts: Sequence[Put], *, guards: Sequence[Guard] = ()) -> int | None:
        self._advance()
        revision = self._table.commit(puts, guards=guards)
        self._notify()
        return revision

    async def grant(self, ttl_s: float) -> int:
        self._advance()
        lease = self._table.grant(ttl_s, now=self._clock())
        self._earlier.set()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        return lease

    async def renew(self, lease: int) -> bool:
        self._advance()
        return self._table.renew(lease, now=self._clock())

    async def revoke(self, lease: int) -> None:
        self._advance()
        self._table.revoke(lease)
        self._notify()

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[StoreChange]:
        self._advance()
        place = self._table.place(after=after)
        while True:
            news = self._news
            changes = self._table.since(place, limit=BATCH)
            for change in changes:
                place += 1
                if change.key.startswith(prefix):
                    yield change
                    self._advance()
            if not changes:
                await news.wait()
                self._advance()

    async def close(self) -> None:
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._notify()

    def _advance(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        before = self._table.revision
        self._table.expire(now=self._clock())
        if self._table.revision != before:
            self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _keep(self) -> None:
        """Ends leases on time, also when nobody calls."""
        while True:
            self._earlier.clear()
            end = self._table.next_expiry()
            wait = None if end is None else max(0.001, end - self._clock())
            try:
                async with asyncio.timeout(wait):
                    await self._earlier.wait()
            except TimeoutError:
                self._advance()
