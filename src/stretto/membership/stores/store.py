"""The small key-value store that agents agree through: what any implementation has to give.

Keys are strings with slashes, values are JSON texts. Every change has a revision, which only grows. A key may hang on
a lease and goes away with it. Watches give every change after a revision in order, or raise `Compacted` where that is
no longer possible: the caller then reads the prefix again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto.core.errors import StrettoError


class StoreError(StrettoError):
    """The store could not be asked, or did not answer in time. Whether a write was done is not known."""


class Compacted(StoreError):
    """The history that a watch asked for is gone: read the prefix again and watch from there."""


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A key with its value, as it is in the store."""

    key: str
    value: str
    revision: int
    """Of the last change of this key."""
    created: int
    """Of the change that created this key."""


@dataclass(frozen=True, slots=True)
class StoreChange:
    """One change of one key, as a watch reports it."""

    key: str
    value: str | None
    """None when the key was deleted or its lease ran out."""
    revision: int


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition of a transaction: the key's last revision, or 0 for a key that must not be there."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A write of one key, as part of a transaction. With a `lease`, the key is deleted when the lease ends."""

    key: str
    value: str | None
    """None deletes the key."""
    lease: int = 0


class Store(Protocol):
    """All calls may raise `StoreError`."""

    async def read(self, prefix: str) -> tuple[list[StoreEntry], int]:
        """All entries under the prefix, sorted by key, and the revision that they were read at."""
        ...

    async def commit(self, puts: Sequence[Put], *, guards: Sequence[Guard] = ()) -> int | None:
        """All writes or none. The new revision, or None where a guard did not hold."""
        ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[StoreChange]:
        """Every change under the prefix with a revision above `after`, in order."""
        ...

    async def grant(self, ttl_s: float) -> int:
        """A new lease."""
        ...

    async def renew(self, lease: int) -> bool:
        """False if the lease has run out: its keys are gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """Ends a lease and its keys now."""
        ...

    async def close(self) -> None: ...
