"""`make demo`: the promises on two small models, in two minutes and on one screen.

Each example is trained three times: with workers that go 1 → 2 → 4 → 3 → 1 and one that is killed on the way, on one fixed
worker, and by plain `python`. The three must end with the same digest. All output is kept in the folder demo/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
STRETTO = Path(sys.executable).with_name("stretto")
LIMIT_S = 900.0
"""A demo that takes longer than this is broken."""
Process = subprocess.Popen[bytes]
console = Console(width=None if sys.stdout.isatty() else 124, highlight=False)


@dataclass(frozen=True, slots=True)
class Example:
    """A script of examples/ and how long it trains."""

    name: str
    title: str
    epochs: int
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


EXAMPLES = {
    "digits": Example("digits", "digits: a CNN with BatchNorm and dropout, Adam", 40, 13),
    "chars": Example("chars", "chars: a transformer on plain text, AdamW, clipping, cosine schedule", 8, 49),
}
PLAN: tuple[tuple[float, int | str], ...] = ((0.1, 2), (0.25, 4), (0.45, "kill"), (0.6, 3), (0.75, 1))
"""Changes to the job, each with the fraction of the run before which it does not happen. The run begins with one worker."""
MIN_STEPS_BETWEEN = 20
"""Steps from the end of one change to the next, at least."""


@dataclass(slots=True)
class RunProgress:
    """The state of a run according to its journal. `update` reads the lines that were added since the last call."""

    path: Path
    offset: int = 0
    workers: int = 0
    step: int = -1
    loss: float | None = None
    commit_times: deque[float] = field(default_factory=lambda: deque(maxlen=40))
    pids: dict[str, int] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    lines_printed: int = 0
    """Lines printed so far. Used only without a live screen."""

    def update(self) -> None:
        if not self.path.exists():
            return
        with self.path.open() as journal:
            journal.seek(self.offset)
            while (line := journal.readline()).endswith("\n"):
                self.offset = journal.tell()
                self._apply(json.loads(line))

    def _apply(self, entry: dict[str, Any]) -> None:
        match entry["kind"]:
            case "commit":
                self.step, self.workers = entry["step"], entry["workers"]
                self.loss = entry["metrics"].get("loss")
                self.commit_times.append(entry["t"])
            case "switch":
                self.workers = entry["workers"]
                self.lines.append(
                    f"step {entry['step']:>5}  {entry['cause']:<7} → {_workers(entry['workers'])}, pause {_ms(entry['pause_ms'])}"
                )
            case "roster":
                self.members = [member["worker"] for member in entry["members"]]
            case "event" if entry["what"] == "started":
                self.pids[entry["worker"]] = int(entry["text"].split()[-1])
            case _:
                pass

    @property
    def steps_per_second(self) -> float:
        times = self.commit_times
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 2 else 0.0


class Workspace:
    """The folder for all output, and the processes that write to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        shutil.rmtree(folder, ignore_errors=True)
        self.runs.mkdir(parents=True)

    def start(self, example: Example, name: str, workers: str) -> Process:
        return self._launch(
            name, [STRETTO, "run", "--quiet", "--workers", workers, "--runs", self.runs, "--name", name, *self._script(example)]
        )

    def start_plain(self, example: Example) -> Process:
        return self._launch(f"{example.name}-plain", [sys.executable, *self._script(example)])

    def _script(self, example: Example) -> list[str | Path]:
        return [ROOT / "examples" / f"{example.name}.py", "--epochs", str(example.epochs)]

    def _launch(self, name: str, command: list[str | Path]) -> Process:
        with (self.folder / f"{name}.log").open("wb") as output:
            return subprocess.Popen(
                [str(argument) for argument in command], cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def stretto(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(STRETTO), *arguments, "--runs", str(self.runs)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    def result(self, name: str) -> dict[str, Any]:
        return json.loads((self.runs / name / "result.json").read_text())

    def wait(self, processes: list[Process]) -> Iterator[None]:
        """Yields until all processes have ended. Terminates those that still run when the caller leaves."""
        deadline = time.monotonic() + LIMIT_S
        try:
            while any(process.poll() is None for process in processes):
                if time.monotonic() > deadline:
                    raise SystemExit(f"the demo did not end within {LIMIT_S:g} s: see {self.folder}")
                yield
                time.sleep(0.05)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()


class PlanRunner:
    """Carries out the plan on a running job. A change is made when it is due and some steps after the previous one took effect."""

    def __init__(self, workspace: Workspace, example: Example, name: str, progress: RunProgress) -> None:
        self.workspace, self.example, self.name, self.progress = workspace, example, name, progress
        self.remaining = deque(PLAN)
        self.target_workers = 1
        self.settled_at_step = 0
        self.settling = False

    @property
    def finished(self) -> bool:
        return not self.remaining and not self.settling

    def advance(self) -> None:
        """Makes the next change if it is due."""
        progress = self.progress
        if progress.step < 0:
            return
        if self.settling and progress.workers == self.target_workers:
            self.settling, self.settled_at_step = False, progress.step
        if self.settling or not self.remaining:
            return
        fraction, change = self.remaining[0]
        if progress.step < max(self.settled_at_step + MIN_STEPS_BETWEEN, fraction * self.example.steps):
            return
        self.remaining.popleft()
        if isinstance(change, int):
            self._scale(change)
        else:
            self._kill()
        self.settling = True

    def _scale(self, workers: int) -> None:
        answer = self.workspace.stretto("scale", self.name, str(workers))
        if answer.returncode:
            raise SystemExit(answer.stderr)
        self.target_workers = workers
        self.progress.lines.append(f"step {self.progress.step:>5}  [bold]stretto scale {self.name} {workers}[/]")

    def _kill(self) -> None:
        progress = self.progress
        victim = progress.members[-1]
        os.kill(progress.pids[victim], signal.SIGKILL)
        progress.lines.append(f"step {progress.step:>5}  [bold red]kill -9[/] of worker {victim} (pid {progress.pids[victim]})")
        progress.workers = 0  # unknown until the next switch


def screen(example: Example, progress: RunProgress) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    loss = "–" if progress.loss is None else f"{progress.loss:.4f}"
    head.add_row(
        f"workers [bold]{progress.workers or '…'}[/]",
        f"step [bold]{progress.step + 1}[/]/{example.steps}",
        f"{progress.steps_per_second:.1f} steps/s",
        f"loss {loss}",
    )
    return Group(
        Text(example.title, style="bold"),
        ProgressBar(total=example.steps, completed=progress.step + 1, width=60),
        head,
        *(Text.from_markup("  " + line) for line in progress.lines),
    )


def run_elastic(workspace: Workspace, example: Example) -> None:
    name = f"{example.name}-elastic"
    progress = RunProgress(workspace.runs / name / "journal.jsonl")
    plan = PlanRunner(workspace, example, name, progress)
    process = workspace.start(example, name, "1:4")
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        for _ in workspace.wait([process]):
            progress.update()
            plan.advance()
            if console.is_terminal:
                live.update(screen(example, progress))
            else:
                print_new_lines(progress)
    progress.update()
    if console.is_terminal:
        console.print(screen(example, progress))
    else:
        print_new_lines(progress)
    if process.returncode:
        raise SystemExit(f"the elastic run failed:\n{workspace.output(name)[-3000:]}")
    if not plan.finished:
        raise SystemExit(
            f"the run ended before its workers had changed as planned (remaining: {list(plan.remaining)}): "
            f"use a larger --epochs than {example.epochs}"
        )


def print_new_lines(progress: RunProgress) -> None:
    for line in progress.lines[progress.lines_printed :]:
        console.print("  " + line)
    progress.lines_printed = len(progress.lines)


def run_fixed(workspace: Workspace, example: Example) -> str:
    """Runs one fixed worker and plain python side by side. Returns the digest that plain python printed."""
    processes = [workspace.start(example, f"{example.name}-fixed", "1"), workspace.start_plain(example)]
    with console.status(f"{example.name} again, on one fixed worker and by plain python …"):
        for _ in workspace.wait(processes):
            pass
    output = workspace.output(f"{example.name}-plain")
    if any(process.returncode for process in processes):
        raise SystemExit(f"a fixed run failed: see {workspace.folder}\n{output[-3000:]}")
    return output.split("digest ")[-1].split()[0]


def conclude(workspace: Workspace, example: Example, plain_digest: str) -> bool:
    """Prints the closing table and draws the picture. Returns whether every promise held."""
    names = f"{example.name}-elastic", f"{example.name}-fixed"
    elastic, fixed = (workspace.result(name) for name in names)
    same_bits = elastic["digest"] == fixed["digest"] == plain_digest
    audit = workspace.stretto("audit", names[0], "--json")
    report = json.loads(audit.stdout or "{}")
    picture = workspace.folder / f"{example.name}.png"
    plot = workspace.stretto("plot", *names, "--output", str(picture))

    table = Table(title=example.title, title_justify="left", show_header=False)
    table.add_row(f"elastic, workers {' → '.join(map(str, _sizes(elastic['pauses'])))}", elastic["digest"])
    table.add_row("one fixed worker", fixed["digest"])
    table.add_row("plain python", plain_digest)
    table.add_row("the same bits", "[bold green]yes[/]" if same_bits else "[bold red]no[/]")
    table.add_section()
    for pause in elastic["pauses"][1:]:
        change = f"pause at step {pause['step']}: {pause['cause']}, then {_workers(pause['workers'])}"
        table.add_row(change, _ms(pause["pause_ms"]))
    table.add_section()
    exactly_once = "[bold green]exactly once[/]" if report.get("holds") else f"[bold red]no[/] {audit.stderr}"
    table.add_row(f"{report.get('samples')} samples of {report.get('epochs')} epochs", exactly_once)
    table.add_row("picture", os.path.relpath(picture) if plot.returncode == 0 else f"[red]{plot.stderr}[/]")
    console.print(table)
    return same_bits and audit.returncode == 0 and plot.returncode == 0


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _ms(pause_ms: float | None) -> str:
    """`pause_ms` is None if no step was finished after the change."""
    return "unknown" if pause_ms is None else f"{pause_ms:.0f} ms"


def _sizes(pauses: list[dict[str, Any]]) -> list[int]:
    sizes: list[int] = []
    for pause in pauses:
        if not sizes or sizes[-1] != pause["workers"]:
            sizes.append(pause["workers"])
    return sizes


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", choices=list(EXAMPLES), default=list(EXAMPLES))
    options.add_argument("--epochs", type=int, help="instead of each model's own number")
    options.add_argument("--folder", type=Path, default=ROOT / "demo", help="where all output is kept; emptied first")
    args = options.parse_args()
    started_at, workspace, all_held = time.monotonic(), Workspace(args.folder), True
    for name in args.models:
        example = EXAMPLES[name]
        if args.epochs:
            example = replace(example, epochs=args.epochs)
        console.rule(f"[bold]{example.name}[/]")
        run_elastic(workspace, example)
        plain_digest = run_fixed(workspace, example)
        all_held = conclude(workspace, example, plain_digest) and all_held
    console.print(f"{time.monotonic() - started_at:.0f} s; everything is in {os.path.relpath(workspace.folder)}/")
    if not all_held:
        raise SystemExit("a promise did not hold: see above")


if __name__ == "__main__":
    main()
