"""The times that hold each other up, declared once, with the inequalities between them and their reasons.

All are measured by monotonic clocks on one host each; clocks are never compared, only durations are, and `drift`
bounds by how much two clocks may disagree about a duration.

How long a step may take is not among them. A host that is cut off finishes no step once somebody of its roster has
stopped, however long its lease, because every step needs everybody (docs/explanation/protocol.md, "Witnesses"); and where nobody
has, its workers are ended by SIGKILL in the middle of whatever they do, for which `margin_s` is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stretto.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `Timing()` suits one network; `scaled` stretches everything for tests and for slow networks."""

    lease_s: float = 2.0
    """An agent whose lease was not renewed for so long has vanished: its workers are out of the roster."""
    renewal_s: float = 0.4
    """How often leases are renewed."""
    answer_s: float = 0.6
    """How long a call to the store may take."""
    margin_s: float = 0.2
    """For scheduling delays, and for stopping a process."""
    fence_s: float = 90.0
    """An agent that has not been able to renew for so long stops its workers. Longer than an outage of the store that
    training shall survive; also the time after which a job goes on from a checkpoint when everybody who had the state
    has vanished."""
    drift: float = 0.01

    def __post_init__(self) -> None:
        if min(self.lease_s, self.renewal_s, self.answer_s, self.margin_s, self.fence_s) <= 0:
            raise UsageError(f"all times must be above 0: {self}")
        needed = self.renewal_s + 2 * self.answer_s + self.margin_s
        if self.lease_s < needed:  # or one lost answer would cost a healthy agent its lease
            raise UsageError(
                f"lease_s={self.lease_s} must be at least renewal_s + 2 * answer_s + margin_s = "
                f"{needed:g}: raise lease_s or lower the others"
            )

    @property
    def settle_s(self) -> float:
        """What a new leader grants to agents that it does not see yet: after an outage of the store all come back
        within this."""
        return self.lease_s

    @property
    def fenced_s(self) -> float:
        """How long after it vanished an agent must have stopped its workers.

        An agent counts `fence_s` from when it *sent* its last good renewal. It vanishes `lease_s` or more after the
        store got that renewal, which is later. So its workers have stopped `fence_s + margin_s - lease_s` after it
        vanished, drift aside.
        """
        return max(0.0, (self.fence_s + self.margin_s) * (1 + self.drift) - self.lease_s * (1 - self.drift))

    def scaled(self, factor: float) -> Timeouts:
        return Timeouts(
            self.lease_s * factor,
            self.renewal_s * factor,
            self.answer_s * factor,
            self.margin_s * factor,
            self.fence_s * factor,
            self.drift,
        )


@dataclass(slots=True)
class Fence:
    """An agent's own watch over its lease."""

    timing: Timeouts
    confirmed_at: float
    """When the last renewal that the store has answered was sent."""

    def renewed(self, *, sent_at: float) -> None:
        self.confirmed_at = max(self.confirmed_at, sent_at)

    @property
    def due_at(self) -> float:
        """Workers must be stopped from here on."""
        return self.confirmed_at + self.timing.fence_s

    def due(self, now: float) -> bool:
        return now >= self.due_at


@dataclass(slots=True)
class MissingAgents:
    """How long the leader has missed which agents. A new leader begins anew, which errs on the side of waiting."""

    timing: Timeouts
    began_at: float
    missing: dict[str, float] = field(default_factory=lambda: {})
    seen: set[str] = field(default_factory=lambda: set[str]())

    def update(self, now: float, *, present: Iterable[str], expected: Iterable[str]) -> None:
        present = set(present)
        self.seen |= present
        self.missing = {agent: self.missing.get(agent, now) for agent in expected if agent not in present}

    def awaited(self, now: float) -> frozenset[str]:
        """Never seen by this leader, which is still new."""
        if now >= self.began_at + self.timing.settle_s:
            return frozenset()
        return frozenset(agent for agent in self.missing if agent not in self.seen)

    def unfenced(self, now: float) -> frozenset[str]:
        return frozenset(agent for agent, since in self.missing.items() if now < since + self.timing.fenced_s)

    def next_change(self, now: float) -> float | None:
        """When to look again although nothing has changed in the store."""
        times = [since + self.timing.fenced_s for since in self.missing.values()]
        times += [self.began_at + self.timing.settle_s] if self.missing.keys() - self.seen else []
        return min((time for time in times if time > now), default=None)
