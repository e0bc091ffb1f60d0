"""An agent's presence in the store: its lease, the records that hang on it, and the fence when it can no longer be
renewed.

Records are kept level by level, not message by message: the agent says what shall be there, and it is written until it
is. Every write is guarded by the revision that the record had, so a write that timed out and arrives late can never
undo a newer one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from stretto.membership.keys import WORKERS, text
from stretto.membership.store import Guard, Put, Store, StoreError
from stretto.membership.timing import Fence, Timing

BATCH = 32
"""Records in one transaction; etcd allows 128 operations in one."""


class Presence:
    """Keeps the lease alive and the records written until `run` is cancelled; then `leave` takes them away at once.

    `on_fence` is called when the lease could not be renewed for `fence_s`: all workers must be stopped before it
    returns.
    """

    def __init__(self, store: Store, *, timing: Timing, on_fence: Callable[[], None],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.lease = 0
        """The lease in force; 0 while there is none. It changes when the store had to give a new one."""
        self.fence = Fence(timing, clock())
        self._store = store
        self._timing = timing
        self._clock = clock
        self._on_fence = on_fence
        self._wanted: dict[str, str | None] = {}
        self._written: dict[str, str | None] = {}
        self._revisions: dict[str, int] = {}
        self._unsure = False
        self._news = asyncio.Event()

    def put(self, key: str, document: Mapping[str, Any] | None) -> None:
        """What shall be under this key from now on; None for nothing."""
        self._wanted[key] = None if document is None else text(document)
        self._news.set()

    async def run(self) -> None:
        renewals = asyncio.create_task(self._renewals())
        watchdog = asyncio.create_task(self._watchdog())
        writes = asyncio.create_task(self._writes())
        try:
            await asyncio.gather(renewals, watchdog, writes)
        finally:
            for task in (renewals, watchdog, writes):
                task.cancel()
            await asyncio.gather(renewals, watchdog, writes, return_exceptions=True)

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
        lease = await self._store.grant(self._timing.lease_s)
        self._written.clear()  # went with the old lease, or is about to
        self._unsure = True
        self.lease = lease
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
            while self.lease and self._dirty():
                try:
                    await self._flush()
                except StoreError:
                    self._unsure = True
                    await asyncio.sleep(self._timing.renewal_s)

    def _dirty(self) -> list[str]:
        """Workers' records before the agent's own: a leader must not see an agent without its workers."""
        dirty = [key for key, value in self._wanted.items() if self._written.get(key) != value]
        return sorted(dirty, key=lambda key: not key.startswith(WORKERS))

    async def _flush(self) -> None:
        if self._unsure:
            await self._look()
        lease = self.lease
        keys = self._dirty()[:BATCH]
        values = {key: self._wanted[key] for key in keys}
        puts = [Put(key, value, lease if value is not None else 0) for key, value in values.items()]
        guards = [Guard(key, self._revisions.get(key, 0)) for key in keys]
        revision = await self._store.commit(puts, guards=guards)
        if revision is None:
            self._unsure = True
            await asyncio.sleep(self._timing.margin_s / 10)
            return
        if lease != self.lease:
            return  # a new lease was given meanwhile: everything is written again
        for key, value in values.items():
            self._revisions[key] = 0 if value is None else revision
            self._written[key] = value
            if value is None and self._wanted.get(key) is None:
                self._wanted.pop(key, None)
                self._written.pop(key, None)

    async def _look(self) -> None:
        """Learns what became of writes that were not answered."""
        for prefix in sorted({_folder(key) for key in self._wanted}):
            entries, _ = await self._store.read(prefix)
            found = {entry.key: entry.revision for entry in entries}
            for key in self._wanted:
                if _folder(key) == prefix:
                    self._revisions[key] = found.get(key, 0)
        self._unsure = False


def _folder(key: str) -> str:
    return key.rsplit("/", 1)[0] + "/" if "/" in key else key
