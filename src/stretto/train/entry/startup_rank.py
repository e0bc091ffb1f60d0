"""What a worker is before it is on a roster: its agent tells it."""

from __future__ import annotations

import threading
from typing import Any

from stretto.train.entry.agent_channel import AgentChannel


class StartupRank:
    """Chief, rank and number of workers at the top of the script, and barriers there. Alone it is the chief of one."""

    def __init__(self, link: AgentChannel | None) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._told: dict[str, Any] | None = {"chief": True, "rank": 0, "workers": 1} if link is None else None
        self._barriers = 0
        self._passed = 0

    def hear(self, message: dict[str, Any]) -> None:
        """On the link's thread."""
        with self._changed:
            if message["kind"] == "rank":
                self._told = message
            else:
                self._passed = max(self._passed, int(message["count"]))
            self._changed.notify_all()

    def _ask(self, name: str) -> Any:
        """Waits for the agents to agree, which takes them a moment where they are on several hosts."""
        with self._changed:
            self._changed.wait_for(lambda: self._told is not None)
            assert self._told is not None
            return self._told[name]

    @property
    def chief(self) -> bool:
        return bool(self._ask("chief"))

    @property
    def rank(self) -> int:
        return int(self._ask("rank"))

    @property
    def workers(self) -> int:
        return int(self._ask("workers"))

    def barrier(self) -> None:
        """Waits until the chief has come as far. A newcomer to a running job does not wait."""
        if self._link is None:
            return
        self._barriers += 1
        self._link.send("barrier", count=self._barriers)
        with self._changed:
            self._changed.wait_for(lambda: self._passed >= self._barriers)
