"""Alarms: things that somebody should look at, raised and cleared by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Raised:
    name: str
    text: str
    since: float
    count: int = 1


@dataclass(slots=True)
class Alarms:
    raised: dict[str, Raised] = field(default_factory=dict[str, Raised])

    def up(self, name: str, text: str, *, now: float) -> bool:
        """True if it is new, or says something else than before."""
        before = self.raised.get(name)
        self.raised[name] = replace(before, text=text, count=before.count + 1) if before else Raised(name, text, now)
        return before is None or before.text != text

    def down(self, name: str) -> bool:
        """True if it was up."""
        return self.raised.pop(name, None) is not None
