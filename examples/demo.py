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
FOLDER = ROOT / "demo"
RUNS = FOLDER / "runs"
STRETTO = Path(sys.executable).with_name("stretto")
LIMIT_S = 900.0
"""A demo that takes longer than this is broken."""
console = Console(width=None if sys.stdout.isatty() else 124, highlight=False)


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    title: str
    epochs: int
    steps: int
    """Per epoch, for the progress bar."""
    apart: int
    """Steps between one change and the next."""


MODELS = {
    "digits": Model("digits", "digits: a CNN with BatchNorm and dropout, Adam", 70, 13, 60),
    "chars": Model("chars", "chars: a transformer on this repository's text, AdamW, clipping, cosine schedule", 30, 16, 40),
}
PLAN: tuple[int | str, ...] = (2, 4, "kill", 3, 1)
"""What happens to the job, one after the other. The run begins with one worker."""


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
    ended: bool = False

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
                self.lines.append(f"step {entry['step']:>5}  {entry['cause']:<7} → {entry['workers']} workers, "
                                  f"pause {entry['pause_ms']:.0f} ms")
            case "roster":
                self.members = [member["worker"] for member in entry["members"]]
            case "event" if entry["what"] == "started":
                self.pids[entry["worker"]] = int(entry["text"].split()[-1])
            case "end":
                self.ended = True
            case _:
                pass

    @property
    def speed(self) -> float:
        return (len(self.times) - 1) / (self.times[-1] - self.times[0]) if len(self.times) > 2 else 0.0


def start(model: Model, name: str, workers: str) -> subprocess.Popen[bytes]:
    command = [STRETTO, "run", "--quiet", "--workers", workers, "--runs", RUNS, "--name", name,
               ROOT / "examples" / f"{model.name}.py", "--epochs", str(model.epochs)]
    return _launch(command, FOLDER / f"{name}.log")


def start_plain(model: Model) -> subprocess.Popen[bytes]:
    command = [sys.executable, ROOT / "examples" / f"{model.name}.py", "--epochs", str(model.epochs)]
    return _launch(command, FOLDER / f"{model.name}-plain.log")


def _launch(command: list[Any], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=output, stderr=output,
                                stdin=subprocess.DEVNULL)


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(STRETTO), *words, "--runs", str(RUNS)], cwd=ROOT, capture_output=True, text=True, timeout=120)


class Conductor:
    """Carries out the plan on a running job: the next change comes when the last one is done and some steps have followed."""

    def __init__(self, model: Model, name: str, view: View) -> None:
        self.model, self.name, self.view = model, name, view
        self.todo: deque[int | str] = deque(PLAN)
        self.wanted = 1
        self.since = 0
        self.waits = False

    def act(self) -> None:
        view = self.view
        if view.step < 0:
            return
        if self.waits and view.workers == self.wanted:
            self.waits, self.since = False, view.step
        if self.waits or not self.todo or view.step < self.since + self.model.apart:
            return
        order = self.todo.popleft()
        if order == "kill":
            victim = view.members[-1]
            os.kill(view.pids[victim], signal.SIGKILL)
            view.lines.append(f"step {view.step:>5}  [bold red]kill -9[/] of worker {victim} (pid {view.pids[victim]})")
            view.workers = 0  # known again at the next switch
        else:
            answer = ask("scale", self.name, str(order))
            if answer.returncode:
                raise SystemExit(answer.stderr)
            self.wanted = int(order)
            view.lines.append(f"step {view.step:>5}  [bold]stretto scale {self.name} {order}[/]")
        self.waits = True


def screen(model: Model, view: View, seen: int) -> RenderableType:
    total = model.epochs * model.steps
    head = Table.grid(padding=(0, 2))
    loss = "–" if view.loss is None else f"{view.loss:.4f}"
    head.add_row(f"workers [bold]{view.workers or '…'}[/]", f"step [bold]{view.step + 1}[/]/{total}",
                 f"{view.speed:.1f} steps/s", f"loss {loss}")
    return Group(Text(model.title, style="bold"), ProgressBar(total=total, completed=view.step + 1, width=60), head,
                 *(Text.from_markup("  " + line) for line in view.lines[seen:]))


def watch(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Until all have ended; a failure of any ends the demo with its output."""
    deadline = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline:
            raise SystemExit(f"the demo did not end within {LIMIT_S:g} s: see {FOLDER}")
        yield
        time.sleep(0.05)


def run_elastic(model: Model) -> None:
    name = f"{model.name}-elastic"
    view = View(RUNS / name / "journal.jsonl")
    conductor = Conductor(model, name, view)
    process = start(model, name, "1:4")
    said = 0
    try:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            for _ in watch([process]):
                view.read()
                conductor.act()
                if console.is_terminal:
                    live.update(screen(model, view, 0))
                else:
                    said = say(view, said)
        view.read()
    finally:
        if process.poll() is None:
            process.terminate()
    if console.is_terminal:
        console.print(screen(model, view, 0))
    else:
        say(view, said)
    if process.returncode:
        raise SystemExit(f"the elastic run failed:\n{(FOLDER / f'{name}.log').read_text()[-3000:]}")
    if conductor.todo or conductor.waits:
        raise SystemExit(f"the run was over before its workers had changed as planned (left: {list(conductor.todo)}): "
                         f"use a larger --epochs than {model.epochs}")


def say(view: View, said: int) -> int:
    for line in view.lines[said:]:
        console.print("  " + line)
    return len(view.lines)


def run_fixed(model: Model) -> str:
    """One fixed worker and plain python, side by side on two cores; the digest that the plain one printed."""
    processes = [start(model, f"{model.name}-fixed", "1"), start_plain(model)]
    try:
        with console.status(f"{model.name} again, on one fixed worker and by plain python …"):
            for _ in watch(processes):
                pass
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
    output = (FOLDER / f"{model.name}-plain.log").read_text()
    if any(process.returncode for process in processes):
        raise SystemExit(f"a fixed run failed: see {FOLDER}\n{output[-3000:]}")
    return output.split("digest ")[-1].split()[0]


def result(name: str) -> dict[str, Any]:
    return json.loads((RUNS / name / "result.json").read_text())


def conclude(model: Model, plain: str) -> bool:
    """The closing table and the picture. True if everything held."""
    elastic, fixed = result(f"{model.name}-elastic"), result(f"{model.name}-fixed")
    same = elastic["digest"] == fixed["digest"] == plain
    audit = ask("audit", f"{model.name}-elastic", "--json")
    found = json.loads(audit.stdout or "{}")
    picture = FOLDER / f"{model.name}.png"
    drawn = ask("plot", f"{model.name}-elastic", f"{model.name}-fixed", "--output", str(picture))

    table = Table(title=model.title, title_justify="left", show_header=False)
    changes = " → ".join(str(one) for one in _sizes(elastic["pauses"]))
    table.add_row(f"elastic, workers {changes}", elastic["digest"])
    table.add_row("one fixed worker", fixed["digest"])
    table.add_row("plain python", plain)
    table.add_row("the same bits", "[bold green]yes[/]" if same else "[bold red]no[/]")
    table.add_section()
    for one in elastic["pauses"][1:]:
        table.add_row(f"pause at step {one['step']}: {one['cause']}, then {one['workers']} workers", f"{one['pause_ms']:.0f} ms")
    table.add_section()
    once = "[bold green]exactly once[/]" if found.get("holds") else f"[bold red]no[/] {audit.stderr}"
    table.add_row(f"{found.get('samples')} samples of {found.get('epochs')} epochs", once)
    table.add_row("picture", os.path.relpath(picture, ROOT) if drawn.returncode == 0 else f"[red]{drawn.stderr}[/]")
    console.print(table)
    return same and audit.returncode == 0 and drawn.returncode == 0


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
    args = options.parse_args()
    begun = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    RUNS.mkdir(parents=True)
    good = True
    for name in args.models:
        model = MODELS[name]
        if args.epochs:
            model = Model(model.name, model.title, args.epochs, model.steps, model.apart)
        console.rule(f"[bold]{model.name}[/]")
        run_elastic(model)
        plain = run_fixed(model)
        good = conclude(model, plain) and good
    console.print(f"{time.monotonic() - begun:.0f} s; everything is in {os.path.relpath(FOLDER)}/")
    if not good:
        raise SystemExit("a promise did not hold: see above")


if __name__ == "__main__":
    main()
