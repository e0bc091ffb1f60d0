"""An agent's presence in the store: its lease, the records that hang on it, and the fence when it can no longer be
renewed.

Records are kept level by level, not message by message: the agent says what shall be there, and it is written until it
is. Every transaction writes the agent's own record too and is guarded by the revision that this had, so a request that
timed out and arrives late, or twice, can never undo a newer one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from stretto.membership.store_schema import AGENTS, text
from stretto.membership.stores.store import Guard, Put, Store, StoreError
from stretto.membership.timeouts import Fence, Timeouts

BATCH = 100
"""Records in one transaction; etcd allows 128 operations in one."""

UNKNOWN = "unknown"
"""Stands for what may or may not be in the store; no document reads like this."""


class LeaseSession:
    """Keeps the lease alive and the records written until `run` is cancelled; then `leave` takes them away at once.

    Nothing is written before the agent's own record has been put. `on_fence` is called when the lease could not be
    renewed for `fence_s`: all workers must be stopped before it returns.
    """

    def __init__(
        self,
        store: Store,
        *,
        agent: str,
        timing: Timeouts,
        on_fence: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = 0
        """The lease in force; 0 while there is none. It changes when the store had to give a new one."""
        self.fence = Fence(timing, clock())
        self._store = store
        self._timing = timing
        self._clock = clock
        self._on_fence = on_fence
        self._anchor = AGENTS + agent
        self._revision: int | None = 0
        """Of the agent's own record; None while that is not known."""
        self._wanted: dict[str, str | None] = {}
        self._written: dict[str, str | None] = {}
        self._news = asyncio.Event()

    def put(self, key: str, document: Mapping[str, object] | None) -> None:
        """What shall be under this key from now on; None for nothing."""
        self._wanted[key] = None if document is None else text(document)
        self._news.set()

    async def run(self) -> None:
        tasks = [asyncio.create_task(part) for part in (self._renewals(), self._watchdog(), self._writes())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Takes everything away now. Workers must have been stopped."""
        lease, self.lease = self.lease, 0
        if lease:
            await self._store.revoke(lease)

    async def settled(self) -> None:
        """Returns when everything that was put has been written."""
        while self._dirty():
            await asyncio.sleep(0.01)

    async def _renewals(self) -> None:
        while True:
            sent_at = self._clock()
            try:
                await self._renew()
                self.fence.renewed(sent_at=sent_at)
            except StoreError:
                pass  # the watchdog counts
            await asyncio.sleep(max(0.0, sent_at + self._timing.renewal_s - self._clock()))

    async def _renew(self) -> None:
        if self.lease and await self._store.renew(self.lease):
            return
        self.lease = 0
        self.lease = await self._store.grant(self._timing.lease_s)
        self._revision = None  # everything went with the old lease, or is about to
        self._news.set()

    async def _watchdog(self) -> None:
        while True:
            now = self._clock()
            if self.fence.due(now):
                self._on_fence()
                self.fence.renewed(sent_at=now)
            await asyncio.sleep(max(0.001, self.fence.due_at - self._clock()))

    async def _writes(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self.lease and (self._dirty() or self._revision is None):
                try:
                    await self._flush()
                except StoreError:
                    self._revision = None
                    await asyncio.sleep(self._timing.renewal_s)

    def _dirty(self) -> list[str]:
        if self._wanted.get(self._anchor) is None:
            return []
        return [key for key, value in self._wanted.items() if self._written.get(key) != value]

    async def _flush(self) -> None:
        if self._revision is None:
            await self._read_own_record()
        lease, anchor_revision = self.lease, self._revision
        values = {key: self._wanted[key] for key in self._dirty()[:BATCH]}
        if not values or not lease:  # without a lease a record would outlive its agent
            return
        values[self._anchor] = self._wanted[self._anchor]
        puts = [Put(key, value, lease if value is not None else 0) for key, value in values.items()]
        revision = await self._store.commit(puts, guards=[Guard(self._anchor, anchor_revision or 0)])
        if revision is None:
            self._revision = None
            await asyncio.sleep(self._timing.margin_s / 10)
        elif self._revision == anchor_revision and self.lease == lease:  # else the lease was lost meanwhile: all is written again
            self._revision = revision
            self._remember(values)

    def _remember(self, values: Mapping[str, str | None]) -> None:
        for key, value in values.items():
            self._written[key] = value
            if value is None and self._wanted.get(key) is None:
                self._wanted.pop(key, None)
                self._written.pop(key, None)

    async def _read_own_record(self) -> None:
        """What became of writes that were not answered need not be known: everything is written, or deleted, again."""
        entries, _ = await self._store.read(self._anchor)
        self._revision = next((entry.revision for entry in entries if entry.key == self._anchor), 0)
        self._written = dict.fromkeys(self._wanted, UNKNOWN)
