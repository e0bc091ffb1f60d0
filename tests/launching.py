"""Real runs for tests: `stretto run` as a process of its own, its folder, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stretto.agent.control_server import ask
from stretto.agent.records.run_folder import RunFolder
from stretto.core.errors import UsageError
from stretto.core.journal import Commit, JournalEvent, Record

SOURCE = Path(__file__).parent.parent / "src"
GUARD_S = 240.0
"""Only against hanging for ever: the machine may be busy."""

TRAIN = """
import os, sys, time
import torch
import stretto

WORKER = os.environ.get("STRETTO_WORKER", "alone")
job = stretto.join(seed=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.share(model=model, optimizer=optimizer)
generator = torch.Generator().manual_seed(7)
inputs = torch.randn(64, 4, generator=generator)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
data = job.loader(dataset, batch_size=16, slices=SLICES)
def trouble(step, place): pass
TROUBLE
print("hello from", WORKER)
for epoch in job.epochs(EPOCHS):
    for step in data:
        for place, (x, y) in enumerate(step):
            trouble(job.step, place)
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            step.log(loss=loss)
            time.sleep(PAUSE)
        optimizer.step()
        optimizer.zero_grad()
print("digest", job.digest())
"""


def script(trouble: str = "", *, epochs: int = 4, pause_s: float = 0.0, slices: int = 8) -> str:
    """A small real training script with four steps an epoch. `trouble` may define `trouble(step, place)`."""
    text = TRAIN.replace("TROUBLE", textwrap.dedent(trouble)).replace("EPOCHS", str(epochs))
    return text.replace("PAUSE", str(pause_s)).replace("SLICES", str(slices))


class Launched:
    """One `stretto run`, started by a test."""

    def __init__(self, process: subprocess.Popen[str], folder: RunFolder) -> None:
        self.process = process
        self.folder = folder

    def until(self, what: Callable[[], Any]) -> Any:
        """Waits for something true, and gives it."""
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            if self.process.poll() is not None:
                found = what()
                assert found, f"the run ended before that: {self.output()}"
                return found
            time.sleep(0.02)
        raise AssertionError(f"waited for {GUARD_S} s: {self.records()[-10:]}")

    def records(self) -> list[Record]:
        return self.folder.records()

    def events(self, *what: str) -> list[JournalEvent]:
        return [one for one in self.records() if isinstance(one, JournalEvent) and one.what in what]

    def commits(self) -> list[Commit]:
        return [one for one in self.records() if isinstance(one, Commit)]

    def until_step(self, step: int) -> None:
        self.until(lambda: [one for one in self.commits() if one.step >= step])

    def until_event(self, *what: str) -> JournalEvent:
        return self.until(lambda: self.events(*what))[0]

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return ask(self.folder, verb, timeout_s=60, **arguments)

    def until_workers(self, count: int) -> dict[str, Any]:
        """The run trains with so many; its status."""

        def settled() -> dict[str, Any] | None:
            try:
                status = self.ask("status")
            except UsageError:
                return None
            return status if status["members"] == count and status["settled"] else None

        return self.until(settled)

    def pids(self) -> dict[str, int]:
        return {one["worker"]: one["pid"] for one in self.ask("status")["workers"] if one["pid"]}

    def end(self) -> int:
        """Waits for the end; the exit code."""
        return self.process.wait(timeout=GUARD_S)

    def output(self) -> str:
        self.process.wait(timeout=GUARD_S)
        return (self.folder.path.parent / f"{self.folder.name}.out").read_text()

    @property
    def result(self) -> dict[str, Any]:
        result = self.folder.read(self.folder.result)
        assert result is not None, self.output()
        return result


def stretto(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A verb, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "stretto.cli.main", *arguments],
        cwd=cwd,
        env=environment(env),
        text=True,
        capture_output=True,
        timeout=GUARD_S,
        check=False,
    )


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200", "PYTHONFAULTHANDLER": "1", **(extra or {})}


def gone(pid: int) -> bool:
    """Whether a process is no more (or only waits to be collected)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def launcher(folder: Path) -> Iterator[Callable[..., Launched]]:
    """Starts runs in a folder, and kills what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def start(
        text: str, *options: str, name: str = "job", args: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> Launched:
        path = folder / f"{name}.py"
        path.write_text(text)
        runs = folder / "runs"
        runs.mkdir(exist_ok=True)
        with open(runs / f"{name}.out", "w") as out:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stretto.cli.main",
                    "run",
                    "--runs",
                    str(runs),
                    "--name",
                    name,
                    "--no-tensorboard",
                    *options,
                    str(path),
                    *args,
                ],
                cwd=folder,
                env=environment(env),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        return Launched(process, RunFolder(runs / name))

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
