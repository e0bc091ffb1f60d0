"""`make demo`: the promises on two small models, in a few minutes and on one screen.

Each model is trained three times: with workers that go 1 → 2 → 4 → 3 → 1 and one that is killed on the way, on one fixed
worker, and by plain `python`. The three have to end with the same digest. Everything is left in the folder demo/.
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
from dataclasses import dataclass, field
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
class Model:
    name: str
    title: str
    epochs: int
    steps: int
    """Per epoch, as far as is known before the run begins."""


MODELS = {
    "digits": Model("digits", "digits: a CNN with BatchNorm and dropout, Adam", 48, 13),
    "chars": Model("chars", "chars: a transformer on this repository's text, AdamW, clipping, cosine schedule", 20, 16),
}
PLAN: tuple[tuple[float, int | str], ...] = ((0.1, 2), (0.25, 4), (0.45, "kill"), (0.6, 3), (0.75, 1))
"""What happens to the job, and not before which part of it. The run begins with one worker."""
APART = 20
"""Steps at least between one change and the next."""


@dataclass(slots=True)
class View:
    """What the journal says about a run; `read` goes on where it stopped."""

    path: Path
    place: int = 0
    workers: int = 0
    step: int = -1
    loss: float | None = None
    times: deque[float] = field(default_factory=lambda: deque(maxlen=40))
    pids: dict[str, int] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    said: int = 0
    """How many of the lines were printed, where there is no live screen."""

    def read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open() as journal:
            journal.seek(self.place)
            while (line := journal.readline()).endswith("\n"):
                self.place = journal.tell()
                self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        match entry["kind"]:
            case "commit":
                self.step, self.workers = entry["step"], entry["workers"]
                self.loss = entry["metrics"].get("loss")
                self.times.append(entry["t"])
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
    def speed(self) -> float:
        return (len(self.times) - 1) / (self.times[-1] - self.times[0]) if len(self.times) > 2 else 0.0


class Stage:
    """The folder that everything is left in, and the processes that are started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        shutil.rmtree(folder, ignore_errors=True)
        self.runs.mkdir(parents=True)

    def start(self, model: Model, name: str, workers: str) -> Process:
        return self._launch(
            name, [STRETTO, "run", "--quiet", "--workers", workers, "--runs", self.runs, "--name", name, *self._script(model)]
        )

    def start_plain(self, model: Model) -> Process:
        return self._launch(f"{model.name}-plain", [sys.executable, *self._script(model)])

    def _script(self, model: Model) -> list[str | Path]:
        return [ROOT / "examples" / f"{model.name}.py", "--epochs", str(model.epochs)]

    def _launch(self, name: str, command: list[str | Path]) -> Process:
        with (self.folder / f"{name}.log").open("wb") as output:
            return subprocess.Popen(
                [str(word) for word in command], cwd=ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(STRETTO), *words, "--runs", str(self.runs)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    def result(self, name: str) -> dict[str, Any]:
        return json.loads((self.runs / name / "result.json").read_text())

    def wait(self, processes: list[Process]) -> Iterator[None]:
        """Until all have ended; whoever still runs when the caller leaves is ended."""
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


class Conductor:
    """Carries out the plan on a running job: a change comes when it is due, the last one is done and some steps have followed."""

    def __init__(self, stage: Stage, model: Model, name: str, view: View) -> None:
        self.stage, self.model, self.name, self.view = stage, model, name, view
        self.todo = deque(PLAN)
        self.wanted = 1
        self.since = 0
        self.waits = False

    def act(self) -> None:
        view = self.view
        if view.step < 0:
            return
        if self.waits and view.workers == self.wanted:
            self.waits, self.since = False, view.step
        if self.waits or not self.todo:
            return
        part, order = self.todo[0]
        if view.step < max(self.since + APART, part * self.model.epochs * self.model.steps):
            return
        self.todo.popleft()
        if order == "kill":
            victim = view.members[-1]
            os.kill(view.pids[victim], signal.SIGKILL)
            view.lines.append(f"step {view.step:>5}  [bold red]kill -9[/] of worker {victim} (pid {view.pids[victim]})")
            view.workers = 0  # known again at the next switch
        else:
            answer = self.stage.ask("scale", self.name, str(order))
            if answer.returncode:
                raise SystemExit(answer.stderr)
            self.wanted = int(order)
            view.lines.append(f"step {view.step:>5}  [bold]stretto scale {self.name} {order}[/]")
        self.waits = True


def screen(model: Model, view: View) -> RenderableType:
    total = model.epochs * model.steps
    head = Table.grid(padding=(0, 2))
    loss = "–" if view.loss is None else f"{view.loss:.4f}"
    head.add_row(
        f"workers [bold]{view.workers or '…'}[/]",
        f"step [bold]{view.step + 1}[/]/{total}",
        f"{view.speed:.1f} steps/s",
        f"loss {loss}",
    )
    return Group(
        Text(model.title, style="bold"),
        ProgressBar(total=total, completed=view.step + 1, width=60),
        head,
        *(Text.from_markup("  " + line) for line in view.lines),
    )


def run_elastic(stage: Stage, model: Model) -> None:
    name = f"{model.name}-elastic"
    view = View(stage.runs / name / "journal.jsonl")
    conductor = Conductor(stage, model, name, view)
    process = stage.start(model, name, "1:4")
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        for _ in stage.wait([process]):
            view.read()
            conductor.act()
            if console.is_terminal:
                live.update(screen(model, view))
            else:
                say(view)
    view.read()
    if console.is_terminal:
        console.print(screen(model, view))
    else:
        say(view)
    if process.returncode:
        raise SystemExit(f"the elastic run failed:\n{stage.said(name)[-3000:]}")
    if conductor.todo or conductor.waits:
        raise SystemExit(
            f"the run was over before its workers had changed as planned (left: {list(conductor.todo)}): "
            f"use a larger --epochs than {model.epochs}"
        )


def say(view: View) -> None:
    for line in view.lines[view.said :]:
        console.print("  " + line)
    view.said = len(view.lines)


def run_fixed(stage: Stage, model: Model) -> str:
    """One fixed worker and plain python, side by side on two cores; the digest that the plain one printed."""
    processes = [stage.start(model, f"{model.name}-fixed", "1"), stage.start_plain(model)]
    with console.status(f"{model.name} again, on one fixed worker and by plain python …"):
        for _ in stage.wait(processes):
            pass
    output = stage.said(f"{model.name}-plain")
    if any(process.returncode for process in processes):
        raise SystemExit(f"a fixed run failed: see {stage.folder}\n{output[-3000:]}")
    return output.split("digest ")[-1].split()[0]


def conclude(stage: Stage, model: Model, plain: str) -> bool:
    """The closing table and the picture. True if everything held."""
    names = f"{model.name}-elastic", f"{model.name}-fixed"
    elastic, fixed = (stage.result(name) for name in names)
    same = elastic["digest"] == fixed["digest"] == plain
    audit = stage.ask("audit", names[0], "--json")
    found = json.loads(audit.stdout or "{}")
    picture = stage.folder / f"{model.name}.png"
    drawn = stage.ask("plot", *names, "--output", str(picture))

    table = Table(title=model.title, title_justify="left", show_header=False)
    changes = " → ".join(str(one) for one in _sizes(elastic["pauses"]))
    table.add_row(f"elastic, workers {changes}", elastic["digest"])
    table.add_row("one fixed worker", fixed["digest"])
    table.add_row("plain python", plain)
    table.add_row("the same bits", "[bold green]yes[/]" if same else "[bold red]no[/]")
    table.add_section()
    for one in elastic["pauses"][1:]:
        table.add_row(f"pause at step {one['step']}: {one['cause']}, then {_workers(one['workers'])}", _ms(one["pause_ms"]))
    table.add_section()
    once = "[bold green]exactly once[/]" if found.get("holds") else f"[bold red]no[/] {audit.stderr}"
    table.add_row(f"{found.get('samples')} samples of {found.get('epochs')} epochs", once)
    table.add_row("picture", os.path.relpath(picture) if drawn.returncode == 0 else f"[red]{drawn.stderr}[/]")
    console.print(table)
    return same and audit.returncode == 0 and drawn.returncode == 0


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _ms(pause_ms: float | None) -> str:
    """None where no step was finished after the change."""
    return "not known" if pause_ms is None else f"{pause_ms:.0f} ms"


def _sizes(pauses: list[dict[str, Any]]) -> list[int]:
    sizes: list[int] = []
    for one in pauses:
        if not sizes or sizes[-1] != one["workers"]:
            sizes.append(one["workers"])
    return sizes


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options.add_argument("--epochs", type=int, help="instead of each model's own number")
    options.add_argument("--folder", type=Path, default=ROOT / "demo", help="emptied first, then everything is left there")
    args = options.parse_args()
    begun, stage, good = time.monotonic(), Stage(args.folder), True
    for name in args.models:
        model = MODELS[name]
        if args.epochs:
            model = Model(model.name, model.title, args.epochs, model.steps)
        console.rule(f"[bold]{model.name}[/]")
        run_elastic(stage, model)
        plain = run_fixed(stage, model)
        good = conclude(stage, model, plain) and good
    console.print(f"{time.monotonic() - begun:.0f} s; everything is in {os.path.relpath(stage.folder)}/")
    if not good:
        raise SystemExit("a promise did not hold: see above")


if __name__ == "__main__":
    main()
