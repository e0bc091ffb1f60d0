"""What the leader knows of a worker: one small record that its agent keeps in the store.

A record may be late, never wrong: `roster`, `halted` and `tick` only grow, and an agent writes a worker's facts in
the order in which they happened. A worker that has no record at all has *vanished* with its agent's lease; one whose
record says `gone` is known to be dead (or to have left). The two are not the same: see docs/explanation/protocol.md, "Witnesses".
Names of workers are never used twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stretto.core.json_types import JsonObject, to_address, to_int


class Phase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    """Its process runs; the script has not reached a step boundary yet."""
    READY = "ready"
    """It waits at its first step boundary and has no state."""
    MEMBER = "member"
    """It has entered a roster."""
    FINISHED = "finished"
    """Its script has ended as it should; the process may be gone."""
    GONE = "gone"
    """Dead, or left in order: then `roster` is the number of the plan that let it go."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as its agent last saw it."""

    worker: str
    agent: str
    phase: Phase
    order: int
    """When it was started, across the whole job: the newest leave first."""
    address: tuple[str, int] = ("", 0)
    slices: int = 0
    """Of its training loader; 0 before `ready`."""
    shape: str = ""
    """A digest of everything shared that has to be alike; empty before `ready`."""
    prepared: int = 0
    """The newest roster whose process group it has built. For people who look; nothing is decided by it."""
    roster: int = 0
    """The number that it last switched to (or was let go by)."""
    halted: int = 0
    """It has aborted everything up to this number, told to or because an exchange failed."""
    tick: int | None = None
    """Exchanges finished when this was written; None while it has no state."""
    leaving: bool = False
    """Its agent wants it out at the next plan: a drain."""
    speed: float = 1.0
    """Slices a second, relative to the others."""
    digest: str = ""
    """Of its final state, once it is finished."""

    @property
    def alive(self) -> bool:
        return self.phase is not Phase.GONE

    @property
    def training(self) -> bool:
        """It could still take part in an exchange."""
        return self.phase not in (Phase.GONE, Phase.FINISHED)

    def to_dict(self) -> JsonObject:
        fields: JsonObject = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "phase": self.phase.value, "address": list(self.address)}

    @staticmethod
    def from_dict(document: JsonObject) -> WorkerStatus:
        tick, speed = document.get("tick"), document.get("speed", 1.0)
        return WorkerStatus(
            worker=str(document["worker"]),
            agent=str(document["agent"]),
            phase=Phase(document["phase"]),
            order=to_int(document["order"]),
            address=to_address(document["address"]),
            slices=to_int(document.get("slices")),
            shape=str(document.get("shape", "")),
            prepared=to_int(document.get("prepared")),
            roster=to_int(document.get("roster")),
            halted=to_int(document.get("halted")),
            tick=None if tick is None else to_int(tick),
            leaving=bool(document.get("leaving")),
            speed=float(speed) if isinstance(speed, int | float) else 1.0,
            digest=str(document.get("digest", "")),
        )
