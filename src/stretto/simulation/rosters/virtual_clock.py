"""An asyncio loop whose time jumps to the next timer: hours pass in milliseconds, in the same order for the same
seed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

TURNS = 300_000
"""Of the loop in one run; a hundred times what a run takes. More means that something goes round and round."""


class LoopStalled(Exception):
    """Nothing is scheduled any more, or the same things again and again: whoever waits would wait forever."""


class _Jump(selectors.BaseSelector):
    """Waits for nothing; moves the loop's clock by the time that it was asked to wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if timeout is None or self.turns == TURNS:
            raise LoopStalled
        self.now += max(0.0, timeout)
        return []

    def register(self, fileobj: FileDescriptorLike, events: int, data: object = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never sleeps: its clock jumps to the next timer."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now
