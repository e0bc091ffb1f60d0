"""A copy of everything under one prefix of the store, kept up to date by a watch. Agents and leaders look here, not in
the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stretto.membership.stores.store import Compacted, Store, StoreChange, StoreEntry, StoreError


class WatchCache:
    """`entries` is the store as it was at `revision`: late, never wrong. `run` keeps it so until it is cancelled."""

    def __init__(
        self,
        store: Store,
        *,
        prefix: str = "",
        pause_s: float = 0.2,
        doubt: Callable[[Mapping[str, StoreEntry]], str] = lambda entries: "",
    ) -> None:
        """`doubt` says what is wrong with a store that answers but is not the one that it was."""
        self.entries: dict[str, StoreEntry] = {}
        self.revision = 0
        self.version = 0
        """Grows with every change of anything here."""
        self.trouble: StoreError | None = None
        """Why the store cannot be reached, while it cannot."""
        self._store = store
        self._prefix = prefix
        self._pause_s = pause_s
        self._doubt = doubt
        self._news = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
                await self._follow()
            except Compacted:
                continue
            except StoreError as error:
                self.trouble = error
                self._notify()
                await asyncio.sleep(self._pause_s)

    async def refresh(self) -> None:
        """Reads everything again."""
        entries, revision = await self._store.read(self._prefix)
        doubt = self._doubt({entry.key: entry for entry in entries})
        if doubt:
            raise StoreError(doubt)
        if revision >= self.revision or self.trouble is not None:
            self.entries = {entry.key: entry for entry in entries}
            self.revision = revision
        self.trouble = None
        self._notify()

    async def changed(self, timeout_s: float | None = None, *, since: int | None = None) -> None:
        """Returns at the next change after version `since` (which may have been already), or after the timeout."""
        news = self._news
        if since is not None and since != self.version:
            return
        try:
            async with asyncio.timeout(timeout_s):  # wait_for may swallow a cancellation before Python 3.12
                await news.wait()
        except TimeoutError:
            pass

    async def _follow(self) -> None:
        async for change in self._store.watch(self._prefix, after=self.revision):
            self._apply(change)
            doubt = self._doubt(self.entries)
            if doubt:
                raise StoreError(doubt)
            self._notify()

    def _apply(self, change: StoreChange) -> None:
        before = self.entries.get(change.key)
        if change.value is None:
            self.entries.pop(change.key, None)
        else:
            created = before.created if before else change.revision
            self.entries[change.key] = StoreEntry(change.key, change.value, change.revision, created)
        self.revision = change.revision

    def _notify(self) -> None:
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()
