"""The store's data and nothing else: keys, revisions, leases, history. Time is handed in, so the simulator uses it as
it is."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.membership.stores.store import Compacted, Guard, Put, StoreChange, StoreEntry


@dataclass(slots=True)
class Lease:
    """A lease with the keys that are deleted when it ends."""

    ttl_s: float
    ends_at: float
    keys: set[str] = field(default_factory=lambda: set[str]())


@dataclass(slots=True)
class MvccTable:
    """All changes go through `commit`, `revoke` and `expire`; each that changes anything is one revision."""

    history: int = 10_000
    """Changes that are remembered for watches."""
    revision: int = 0
    entries: dict[str, StoreEntry] = field(default_factory=lambda: {})
    leases: dict[int, Lease] = field(default_factory=lambda: {})
    owners: dict[str, int] = field(default_factory=lambda: {})
    """The lease of each key that hangs on one."""
    changes: deque[StoreChange] = field(default_factory=lambda: deque())
    forgotten: int = 0
    """How many changes have been dropped from the left of `changes`."""
    compacted: int = 0
    """The revision of the last change that was dropped."""
    granted: int = 0

    def read(self, prefix: str) -> list[StoreEntry]:
        return sorted((entry for key, entry in self.entries.items() if key.startswith(prefix)), key=lambda e: e.key)

    def holds(self, guards: Sequence[Guard]) -> bool:
        def revision(key: str) -> int:
            entry = self.entries.get(key)
            return entry.revision if entry else 0

        return all(revision(guard.key) == guard.revision for guard in guards)

    def commit(self, puts: Sequence[Put], *, guards: Sequence[Guard] = ()) -> int | None:
        """All writes or none. The new revision, or None where a guard does not hold or a lease has run out."""
        if not self.holds(guards) or any(put.lease and put.lease not in self.leases for put in puts):
            return None
        return self._apply(puts)

    def grant(self, ttl_s: float, *, now: float) -> int:
        self.granted += 1
        self.leases[self.granted] = Lease(ttl_s, now + ttl_s)
        return self.granted

    def renew(self, lease: int, *, now: float) -> bool:
        held_lease = self.leases.get(lease)
        if held_lease is not None:
            held_lease.ends_at = now + held_lease.ttl_s
        return held_lease is not None

    def revoke(self, lease: int) -> None:
        held_lease = self.leases.pop(lease, None)
        if held_lease is not None and held_lease.keys:
            self._apply([Put(key, None) for key in sorted(held_lease.keys)])

    def expire(self, *, now: float) -> None:
        """Ends every lease whose time is over."""
        for lease in [number for number, held_lease in self.leases.items() if held_lease.ends_at <= now]:
            self.revoke(lease)

    def next_expiry(self) -> float | None:
        return min((lease.ends_at for lease in self.leases.values()), default=None)

    def place(self, *, after: int) -> int:
        """Where in the history a watch begins that wants the changes above this revision."""
        if after < self.compacted:
            raise Compacted(f"changes up to revision {self.compacted} are gone, the watch wants those after {after}")
        return self.forgotten + bisect.bisect_right(self.changes, after, key=lambda change: change.revision)

    def since(self, place: int, *, limit: int) -> list[StoreChange]:
        """At most `limit` changes from a place on."""
        if place < self.forgotten:
            raise Compacted(f"{self.forgotten - place} changes were dropped before the watch had read them")
        begin = place - self.forgotten
        return [self.changes[i] for i in range(begin, min(begin + limit, len(self.changes)))]

    def _apply(self, puts: Sequence[Put]) -> int:
        puts = [put for put in puts if put.value is not None or put.key in self.entries]
        if not puts:
            return self.revision
        self.revision += 1
        for put in puts:
            self._detach(put.key)
            if put.value is None:
                del self.entries[put.key]
            else:
                before = self.entries.get(put.key)
                created = before.created if before else self.revision
                self.entries[put.key] = StoreEntry(put.key, put.value, self.revision, created)
                if put.lease:
                    self.leases[put.lease].keys.add(put.key)
                    self.owners[put.key] = put.lease
            self.changes.append(StoreChange(put.key, put.value, self.revision))
        self._forget()
        return self.revision

    def _detach(self, key: str) -> None:
        lease = self.leases.get(self.owners.pop(key, 0))
        if lease is not None:
            lease.keys.discard(key)

    def _forget(self) -> None:
        while len(self.changes) > self.history:
            self.compacted = self.changes.popleft().revision
            self.forgotten += 1
