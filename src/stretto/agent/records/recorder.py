"""What happened, told once: to the journal, to the screen, to TensorBoard, and added up for the result.

Every worker may report a committed step, because the one that usually does can be the one that dies. The first report counts.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Protocol

from stretto.agent.records.journal_writer import Journal
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.records.tensorboard import TensorBoardWriter
from stretto.core.journal import Commit, Digests, JournalEvent, KnownRecord, Orders, Resume, RosterLine, RosterMember, Switch
from stretto.core.json_types import JsonObject
from stretto.core.messages import ResumedMessage, SwitchedMessage
from stretto.core.roster import Roster

RECENT_S = 10.0
"""The span of time that steps a second are measured over."""
PAUSES = 10_000


class RunObserver(Protocol):
    """Somebody who watches a run: a screen, a server."""

    def record(self, line: KnownRecord) -> None: ...

    def output(self, worker: str, line: str, error: bool) -> None: ...


class Silent:
    """Nobody watches."""

    def record(self, line: KnownRecord) -> None: ...

    def output(self, worker: str, line: str, error: bool) -> None: ...


@dataclass(slots=True)
class RunTotals:
    """The sums of a run so far."""

    steps: int = 0
    """How many are finished, those of earlier attempts included."""
    last_step: int | None = None
    """The last finished step; -1 if the attempt began anew, None before the first commit of a run."""
    last: Commit | None = None
    """The last commit of this attempt."""
    pauses: list[JsonObject] = field(default_factory=list[JsonObject])
    recent: deque[float] = field(default_factory=lambda: deque[float](maxlen=1000))
    warnings: list[str] = field(default_factory=list[str])

    @property
    def metrics(self) -> JsonObject:
        """Of the last commit."""
        return dict(self.last.metrics) if self.last is not None else {}

    @property
    def steps_per_s(self) -> float:
        times = [t for t in self.recent if t > time.monotonic() - RECENT_S]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0


class Recorder:
    """Records each event of a run once, however many workers report it: in the journal, on the screen, in the totals."""

    def __init__(self, folder: RunFolder, *, observer: RunObserver) -> None:
        self.tally = RunTotals()
        self._observer = observer
        self.board: TensorBoardWriter | None = None
        self._agent_log = open(folder.logs / "agent.log", "a", encoding="utf-8")  # noqa: SIM115
        self._journal = Journal(folder.journal, warn=self.warn)
        self._seen: set[tuple[object, ...]] = set()
        self._switches: dict[int, _Switch] = {}
        """Changes that are under way, by the roster's number."""
        self._orders: dict[int, tuple[int, str, str]] = {}
        """Epoch, worker and id of the order of samples that was told last, by loader."""

    def write(self, line: KnownRecord) -> None:
        line = self._journal.write(line)
        self._observer.record(line)
        if self.board is not None:
            self.board.record(line)

    def event(self, what: str, text: str = "", *, worker: str | None = None, agent: str | None = None) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._agent_log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what} {worker or ''} {text}\n")
            self._agent_log.flush()
        self.write(JournalEvent(what, text, worker, agent))

    def output(self, worker: str, line: str, error: bool) -> None:
        self._observer.output(worker, line, error)

    def warn(self, text: str) -> None:
        """Said to whoever watches even when the journal cannot take it."""
        self.tally.warnings.append(text)
        self._observer.record(JournalEvent("warning", text, t=time.time()))

    def commit(self, commit: Commit) -> bool:
        """Whether it was news: another worker may have reported this step before."""
        tally = self.tally
        if tally.last_step is not None and commit.step <= tally.last_step:
            return False
        tally.steps += 1
        tally.last, tally.last_step = commit, commit.step
        tally.recent.append(time.monotonic())
        self.write(commit)
        return True

    def order(self, worker: str, *, loader: int, epoch: int, order: str) -> None:
        """The order of samples that a worker has computed for itself. A difference is told for everyone who has one."""
        first = self._orders.get(loader)
        if first is None or first[0] < epoch:
            self._orders[loader] = (epoch, worker, order)
        elif first[0] == epoch and first[2] != order:
            line = Orders(loader, epoch, {first[1]: first[2], worker: order}, worker)
            self.once(line, loader, epoch, worker)

    def once(self, line: KnownRecord, *key: object) -> None:
        """Writes a line that every worker may report, for the first that does. Lines of a kind with the same key are the same."""
        mark = (type(line), *key)
        if mark not in self._seen:
            self._seen.add(mark)
            self.write(line)

    def resume(self, *, life: int, finished: int, path: str) -> None:
        """An attempt begins with this many steps behind it: what was recorded of later ones will be recorded again."""
        self.settle()
        self._seen.clear()
        self._orders.clear()
        line = Resume.after(finished, life=life, path=path)
        self.tally.steps = finished
        self.tally.last, self.tally.last_step = None, line.step
        self.write(line)

    def digests(self, line: Digests) -> bool:
        """Whether the workers' states differ, which is news."""
        mark = (Digests, line.step)
        if mark in self._seen:
            return False
        self._seen.add(mark)
        equal = len(set(line.digests.values())) <= 1
        self.write(replace(line, equal=equal))
        return not equal

    def roster(self, roster: Roster, *, agent: str | None = None) -> None:
        """`agent` has this recorder: it hears of its own workers' switches only."""
        members = tuple(
            RosterMember(member.worker, member.agent, (member.share.low, member.share.high)) for member in roster.members
        )
        self.write(RosterLine(roster.number, members, roster.base, roster.rescue, roster.cause))
        here = tuple(member.worker for member in roster.members if agent is None or member.agent == agent)
        self._switches = {number: switch for number, switch in self._switches.items() if switch.reports}
        self._switches[roster.number] = _Switch(roster, here)

    def switched(self, worker: str, message: SwitchedMessage) -> None:
        """A member is in a new roster."""
        switch = self._switches.get(message.number)
        if switch is not None:
            switch.reports[worker] = message
            self._see(switch)

    def resumed(self, worker: str, message: ResumedMessage) -> None:
        """A member that was there before a change has finished its first step after it."""
        switch = self._switches.get(message.number)
        if switch is not None:
            switch.pauses_ms[worker] = message.pause_ms
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
                self.tally.pauses.append({key: getattr(line, key) for key in kept})
            self.write(line)

    def close(self) -> str | None:
        """What could not be written, if anything."""
        with contextlib.suppress(OSError):
            self._agent_log.close()
        if self.board is not None:
            self.board.close()
        return self._journal.close()


@dataclass(slots=True)
class _Switch:
    roster: Roster
    here: tuple[str, ...]
    reports: dict[str, SwitchedMessage] = field(default_factory=dict[str, SwitchedMessage])
    pauses_ms: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def stayed(self) -> tuple[str, ...]:
        """The members of this agent that were there before: the others have nothing to pause."""
        first = not self.roster.base and not self.roster.rescue
        return () if first else tuple(worker for worker in self.here if worker not in self.roster.joined)

    @property
    def over(self) -> bool:
        return set(self.here) <= set(self.reports) and set(self.stayed) <= set(self.pauses_ms)

    def line(self) -> Switch:
        """The pause is the longest of those who were there before."""
        reports = [self.reports[worker] for worker in self.stayed if worker in self.reports] or list(self.reports.values())
        first = reports[0]
        pause_ms = max(self.pauses_ms.values(), default=None)
        return Switch(
            number=self.roster.number,
            step=first.step,
            workers=len(self.roster.members),
            joined=first.joined or self.roster.joined,
            left=first.left or self.roster.left,
            cause=first.cause or self.roster.cause,
            pause_ms=pause_ms if self.stayed else 0.0,
            switch_ms=round(max(report.switch_ms for report in reports), 3),
        )
