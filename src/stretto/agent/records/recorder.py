"""What happened, told once: to the journal, to the screen, to TensorBoard, and added up for the result.

Every worker may report a committed step, because the one that usually does can be the one that dies. The first report counts.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto.agent.records.journal_writer import Journal
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.records.tensorboard import TensorBoardWriter
from stretto.core.roster import Roster

RECENT_S = 10.0
"""The span of time that steps a second are measured over."""
PAUSES = 10_000


class RunObserver(Protocol):
    """Somebody who watches a run: a screen, a server."""

    def record(self, document: dict[str, Any]) -> None: ...

    def output(self, worker: str, line: str, error: bool) -> None: ...


class Silent:
    """Nobody watches."""

    def record(self, document: dict[str, Any]) -> None: ...

    def output(self, worker: str, line: str, error: bool) -> None: ...


@dataclass(slots=True)
class RunTotals:
    """The sums of a run so far."""

    steps: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    """The last commit."""
    pauses: list[dict[str, Any]] = field(default_factory=list)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    warnings: list[str] = field(default_factory=list)

    @property
    def steps_per_s(self) -> float:
        times = [t for t in self.recent if t > time.monotonic() - RECENT_S]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0


class Recorder:
    def __init__(self, folder: RunFolder, *, observer: RunObserver) -> None:
        self.tally = RunTotals()
        self._observer = observer
        self.board: TensorBoardWriter | None = None
        self._agent_log = open(folder.logs / "agent.log", "a", encoding="utf-8")  # noqa: SIM115
        self._journal = Journal(folder.journal, warn=self.warn)
        self._seen: set[tuple[Any, ...]] = set()
        self._switches: dict[int, _Switch] = {}
        """Changes that are under way, by the roster's number."""
        self._digests: dict[int, dict[str, str]] = {}
        self._orders: dict[int, tuple[int, str, str]] = {}
        """Epoch, worker and id of the order of samples that was told last, by loader."""

    def write(self, kind: str, **fields: Any) -> None:
        document = self._journal.write(kind, **fields)
        self._observer.record(document)
        if self.board is not None:
            self.board.record(document)

    def event(self, what: str, text: str = "", *, worker: str | None = None, agent: str | None = None) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._agent_log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what} {worker or ''} {text}\n")
            self._agent_log.flush()
        self.write("event", what=what, worker=worker, agent=agent, text=text)

    def output(self, worker: str, line: str, error: bool) -> None:
        self._observer.output(worker, line, error)

    def warn(self, text: str) -> None:
        """Said to whoever watches even when the journal cannot take it."""
        self.tally.warnings.append(text)
        self._observer.record({"t": time.time(), "kind": "event", "what": "warning", "text": text})

    def commit(self, fields: dict[str, Any]) -> bool:
        """Whether it was news: another worker may have told of this step before."""
        step = int(fields["step"])
        if self.tally.last and step <= int(self.tally.last["step"]):
            return False
        self.tally.steps += 1
        self.tally.last = fields
        self.tally.recent.append(time.monotonic())
        self.write("commit", **fields)
        return True

    def order(self, worker: str, *, loader: int, epoch: int, order: str) -> None:
        """The order of samples that a worker has computed for itself. A difference is told for everyone who has one."""
        known = self._orders.get(loader)
        if known is None or known[0] < epoch:
            self._orders[loader] = (epoch, worker, order)
        elif known[0] == epoch and known[2] != order:
            self.once(
                "orders",
                {"loader": loader, "epoch": epoch, "worker": worker, "orders": {known[1]: known[2], worker: order}},
                "loader",
                "epoch",
                "worker",
            )

    def once(self, kind: str, fields: dict[str, Any], *key: str) -> None:
        """Lines that every worker may report: told for the first."""
        mark = (kind, *(fields.get(name) for name in key))
        if mark not in self._seen:
            self._seen.add(mark)
            self.write(kind, **fields)

    def resume(self, *, life: int, step: int, path: str) -> None:
        """A life that begins with `step` steps behind it: what was told of later ones will be told again."""
        self.settle()
        self._seen.clear()
        self._digests.clear()
        self._orders.clear()
        self.tally.steps = step
        self.tally.last = {"step": step - 1}
        self.write("resume", life=life, step=step - 1, path=path)

    def digest(self, step: int, worker: str, value: str, *, members: tuple[str, ...]) -> dict[str, str] | None:
        """One worker's digest; all of them if they turn out to differ."""
        found = self._digests.setdefault(step, {})
        found[worker] = value
        if not set(members) <= set(found):
            return None
        del self._digests[step]
        for old in [one for one in self._digests if one < step]:
            self._flush_digests(old)
        return self.digests(step, found)

    def digests(self, step: int, found: dict[str, str]) -> dict[str, str] | None:
        mark = ("digest", step)
        if mark in self._seen:
            return None
        self._seen.add(mark)
        equal = len(set(found.values())) <= 1
        self.write("digest", step=step, digests=found, equal=equal)
        return None if equal else found

    def _flush_digests(self, step: int) -> None:
        """Somebody died before it could tell its own: what the others had still holds."""
        self.digests(step, self._digests.pop(step))

    def roster(self, roster: Roster, *, agent: str | None = None) -> None:
        """`agent` has this recorder: it hears of its own workers' switches only."""
        document = roster.to_dict()
        members = [{key: member[key] for key in ("worker", "agent", "slices")} for member in document["members"]]
        self.write("roster", number=roster.number, base=roster.base, rescue=roster.rescue, members=members, cause=roster.cause)
        here = tuple(one.worker for one in roster.members if agent is None or one.agent == agent)
        self._switches = {number: switch for number, switch in self._switches.items() if switch.reports}
        self._switches[roster.number] = _Switch(roster, here)

    def switched(self, worker: str, fields: dict[str, Any]) -> None:
        """A member is in a new roster."""
        switch = self._switches.get(int(fields["number"]))
        if switch is not None:
            switch.reports[worker] = fields
            self._see(switch)

    def resumed(self, worker: str, fields: dict[str, Any]) -> None:
        """A member that was there before a change has finished its first step after it."""
        switch = self._switches.get(int(fields["number"]))
        if switch is not None:
            switch.pauses_ms[worker] = float(fields["pause_ms"])
            self._see(switch)

    def _see(self, switch: _Switch) -> None:
        """One line for all members, when the last of them is there and has gone on. Earlier changes have nothing to come then."""
        if switch.over:
            self.settle(until=switch.roster.number)

    def settle(self, *, until: int | None = None) -> None:
        """Writes the changes with what is known of them, where anybody made them."""
        for number in sorted(self._switches):
            if until is not None and number > until:
                return
            switch = self._switches.pop(number)
            if not switch.reports:
                continue
            line = switch.line()
            if len(self.tally.pauses) < PAUSES:
                kept = ("number", "step", "workers", "cause", "pause_ms", "switch_ms")
                self.tally.pauses.append({key: line[key] for key in kept})
            self.write("switch", **line)

    def close(self) -> str | None:
        """What could not be written, if anything."""
        for step in sorted(self._digests):
            self._flush_digests(step)
        with contextlib.suppress(OSError):
            self._agent_log.close()
        if self.board is not None:
            self.board.close()
        return self._journal.close()


@dataclass(slots=True)
class _Switch:
    roster: Roster
    here: tuple[str, ...]
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    pauses_ms: dict[str, float] = field(default_factory=dict)

    @property
    def stayed(self) -> tuple[str, ...]:
        """The members of this agent that were there before: the others have nothing to pause."""
        first = not self.roster.base and not self.roster.rescue
        return () if first else tuple(worker for worker in self.here if worker not in self.roster.joined)

    @property
    def over(self) -> bool:
        return set(self.here) <= set(self.reports) and set(self.stayed) <= set(self.pauses_ms)

    def line(self) -> dict[str, Any]:
        """The pause is the longest of those who were there before."""
        told = [self.reports[worker] for worker in self.stayed if worker in self.reports] or list(self.reports.values())
        first, longest = told[0], max(float(fields.get("switch_ms") or 0.0) for fields in told)
        pause_ms = max(self.pauses_ms.values(), default=None)
        return {
            "number": self.roster.number,
            "step": first.get("step", 0),
            "workers": len(self.roster.members),
            "joined": list(first.get("joined") or self.roster.joined),
            "left": list(first.get("left") or self.roster.left),
            "cause": first.get("cause") or self.roster.cause,
            "pause_ms": pause_ms if self.stayed else 0.0,
            "switch_ms": round(longest, 3),
        }
