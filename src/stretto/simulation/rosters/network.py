"""Hosts, the store, and what lies between them: delays, losses, and links that are down in one direction or both."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

STORE = "store"


@dataclass(slots=True)
class Network:
    """Links are directed and counted: a link is up while nobody has taken it down."""

    random: random.Random
    delay_s: float = 0.002
    spike: float = 0.0
    """How often a message to or from the store takes up to a second."""
    loss: float = 0.0
    """How often a message to or from the store is lost."""
    down: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def cut(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.down[pair] = self.down.get(pair, 0) + 1

    def mend(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.down[pair] -= 1

    def up(self, source: str, target: str) -> bool:
        return source == target or not self.down.get((source, target))

    def both(self, host: str, other: str) -> bool:
        return self.up(host, other) and self.up(other, host)

    def latency(self) -> float:
        """Of a connection between workers, which loses nothing while it stands."""
        return self.delay_s * (0.2 + self.random.random())

    def message(self, source: str, target: str) -> float | None:
        """When a message to or from the store arrives, from now on; None if it never does."""
        if not self.up(source, target) or (self.loss and self.random.random() < self.loss):
            return None
        if self.spike and self.random.random() < self.spike:
            return self.random.random()
        return self.latency()
