"""How often a job's workers may be replaced after dying, and how soon. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 300.0
"""Deaths longer ago are forgotten: a job of a week may lose a worker a day."""
BACKOFF_S = 1.0
BACKOFF_MOST_S = 30.0


@dataclass(slots=True)
class RestartBudget:
    """At most `restarts` in any window. The first is made at once, each further one waits twice as long."""

    restarts: int
    window_s: float = WINDOW_S
    _made: deque[float] = field(default_factory=deque)

    def ask(self, now: float) -> float | None:
        """The seconds to wait before the restart, which is then counted; None when the budget is used up."""
        while self._made and self._made[0] <= now - self.window_s:
            self._made.popleft()
        if len(self._made) >= self.restarts:
            return None
        before = len(self._made)
        self._made.append(now)
        return 0.0 if before == 0 else min(BACKOFF_MOST_S, BACKOFF_S * 2 ** (before - 1))
