"""The output of a run: a live line, and above it all events and all lines that workers print."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stretto.core.journal import (
    JOURNAL,
    Commit,
    EpochEnd,
    Evaluation,
    JournalEvent,
    KnownRecord,
    Metrics,
    Resume,
    Switch,
)
from stretto.core.schema import JsonObject
from stretto.core.text import quantity

REFRESH_PER_S = 8
QUIET_EVENTS = {
    "warning",
    "refused",
    "unreplaced",
    "frozen",
    "hung",
    "silent",
    "died",
    "crashed",
    "stalled",
    "stuck",
    "fault",
    "interrupt",
}
"""Events that are shown even with --quiet."""
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green")


class RunConsole:
    """Prints for people. If standard error is not a terminal, there are events but no live line."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name = name
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._workers = 0
        self._commit: Commit | None = None
        self._times: deque[float] = deque(maxlen=200)
        self._said = 0.0

    def __enter__(self) -> RunConsole:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, get_renderable=self._line, refresh_per_second=REFRESH_PER_S, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def record(self, line: KnownRecord) -> None:
        match line:
            case Commit():
                self._commit = line
                self._workers = line.workers
                self._times.append(line.t)
                self._sometimes()
            case Switch():
                self._workers = line.workers
                if not self._quiet:
                    self._print(switch_text(line))
            case Resume() if not self._quiet:
                origin = f"goes on from {line.path}" if line.path else "begins anew: it goes on from no checkpoint"
                self._print(f"life {line.life} {origin}")
            case EpochEnd() if not self._quiet:
                self._print(f"epoch {line.epoch} of loader {line.loader} is finished")
            case Evaluation() if not self._quiet:
                self._print(f"evaluation of loader {line.loader} after step {line.step}: {_metrics(line.metrics)}")
            case JournalEvent() if line.what in QUIET_EVENTS or not self._quiet:
                self._print(event_text(line), style="red" if line.what in QUIET_EVENTS else "dim")
            case _:
                pass

    def output(self, worker: str, line: str, error: bool) -> None:
        if self._quiet:
            return
        stream: TextIO = sys.stderr if error else sys.stdout
        if self._live is not None and stream.isatty():
            colour = COLOURS[int(worker.lstrip("w") or 0) % len(COLOURS)] if worker[1:].isdigit() else "white"
            self._console.print(Text.assemble((f"[{worker}] ", colour), line))
            return
        try:
            stream.write(f"[{worker}] {line}\n")
            stream.flush()
        except OSError:
            self._quiet = True  # nobody reads: the job goes on

    def say(self, text: str, *, style: str = "") -> None:
        self._print(text, style=style)

    def _print(self, text: str, *, style: str = "") -> None:
        try:
            self._console.print(Text(text, style=style))
        except OSError:
            self._quiet = True

    def _sometimes(self) -> None:
        """Without a terminal, prints a line every ten seconds."""
        now = time.monotonic()
        if self._live is None and not self._quiet and now - self._said > 10.0:
            if self._said:
                self._print(str(self._line()))
            self._said = now

    def _line(self) -> Text:
        if self._commit is None:
            return Text(f"{self._name}: starting", style="bold")
        parts = [
            self._name,
            f"{quantity(self._workers, 'worker')}",
            f"epoch {self._commit.epoch}",
            f"step {self._commit.step}",
            f"{self._rate():.1f} steps/s",
            _metrics(self._commit.metrics),
        ]
        return Text("  ".join(part for part in parts if part), style="bold")

    def _rate(self) -> float:
        recent = [t for t in self._times if t > time.time() - 5.0]
        return (len(recent) - 1) / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else 0.0


class JsonLines:
    """Prints for scripts: every journal line and every line of output, as JSON on standard output."""

    def record(self, line: KnownRecord) -> None:
        self._print(JOURNAL.to_dict(line))

    def output(self, worker: str, line: str, error: bool) -> None:
        self._print({"t": time.time(), "kind": "output", "worker": worker, "error": error, "line": line})

    def _print(self, document: JsonObject) -> None:
        try:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
        except OSError:
            self._print = lambda document: None


def switch_text(line: Switch) -> str:
    """`4 workers from step 31 on (join: w2, w3), pause 14.2 ms`."""
    who = [f"{word}: {', '.join(names)}" for word, names in (("joined", line.joined), ("left", line.left)) if names]
    changes = f" ({'; '.join(who)})" if who else ""
    pause = f", pause {line.pause_ms:.1f} ms" if line.cause != "start" and line.pause_ms is not None else ""
    return f"{line.cause}: {quantity(line.workers, 'worker')} from step {line.step} on{changes}{pause}"


def event_text(line: JournalEvent) -> str:
    who = f"{line.worker} " if line.worker else ""
    text = f": {line.text}" if line.text else ""
    return f"{who}{line.what}{text}"


def _metrics(metrics: Metrics) -> str:
    shown = list(metrics.items())[:4]
    return "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown)
