"""What a run shows while it runs: one live line, and above it every event and every line that workers print."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

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
"""Events that are told even with --quiet."""
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green")


class RunConsole:
    """For people. Where standard error is no terminal there is no live line, and the events remain."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name = name
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._workers = 0
        self._commit: dict[str, Any] = {}
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

    def record(self, document: dict[str, Any]) -> None:
        match document["kind"]:
            case "commit":
                self._commit = document
                self._workers = document["workers"]
                self._times.append(document["t"])
                self._sometimes()
            case "switch":
                self._workers = document["workers"]
                if not self._quiet:
                    self._print(switch_text(document))
            case "resume" if not self._quiet:
                told = f"goes on from {document['path']}" if document["path"] else "begins anew: it goes on from no checkpoint"
                self._print(f"life {document['life']} {told}")
            case "epoch" if not self._quiet:
                self._print(f"epoch {document['epoch']} of loader {document['loader']} is finished")
            case "eval" if not self._quiet:
                where = f"loader {document['loader']} after step {document['step']}"
                self._print(f"evaluation of {where}: {_metrics(document['metrics'])}")
            case "event" if document["what"] in QUIET_EVENTS or not self._quiet:
                self._print(event_text(document), style="red" if document["what"] in QUIET_EVENTS else "dim")
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
        """Without a terminal, the progress is a line every ten seconds."""
        now = time.monotonic()
        if self._live is None and not self._quiet and now - self._said > 10.0:
            if self._said:
                self._print(str(self._line()))
            self._said = now

    def _line(self) -> Text:
        if not self._commit:
            return Text(f"{self._name}: starting", style="bold")
        parts = [
            self._name,
            f"{quantity(self._workers, 'worker')}",
            f"epoch {self._commit['epoch']}",
            f"step {self._commit['step']}",
            f"{self._rate():.1f} steps/s",
            _metrics(self._commit.get("metrics") or {}),
        ]
        return Text("  ".join(part for part in parts if part), style="bold")

    def _rate(self) -> float:
        recent = [t for t in self._times if t > time.time() - 5.0]
        return (len(recent) - 1) / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else 0.0


class JsonLines:
    """For scripts: every journal line, and every line of output, as JSON on standard output."""

    def record(self, document: dict[str, Any]) -> None:
        self._print(document)

    def output(self, worker: str, line: str, error: bool) -> None:
        self._print({"t": time.time(), "kind": "output", "worker": worker, "error": error, "line": line})

    def _print(self, document: dict[str, Any]) -> None:
        try:
            sys.stdout.write(json.dumps(document, default=str) + "\n")
            sys.stdout.flush()
        except OSError:
            self._print = lambda document: None


def switch_text(document: dict[str, Any]) -> str:
    """`4 workers from step 31 on (join: w2, w3), pause 14.2 ms`."""
    who = [f"{word}: {', '.join(names)}" for word, names in (("joined", document["joined"]), ("left", document["left"])) if names]
    told = f" ({'; '.join(who)})" if who else ""
    count = document["workers"]
    known = document["cause"] != "start" and document["pause_ms"] is not None
    pause = f", pause {document['pause_ms']:.1f} ms" if known else ""
    return f"{document['cause']}: {quantity(count, 'worker')} from step {document['step']} on{told}{pause}"


def event_text(document: dict[str, Any]) -> str:
    who = f"{document['worker']} " if document.get("worker") else ""
    text = f": {document['text']}" if document.get("text") else ""
    return f"{who}{document['what']}{text}"


def _metrics(metrics: dict[str, Any]) -> str:
    shown = list(metrics.items())[:4]
    return "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown)
