"""Runs of `scripts/paced.py`, and what their journals say: for the straggler and autoscale benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import BIN, finish, launch
from stretto.agent.records.run_folder import RunFolder
from stretto.core.journal import Commit, JournalEvent, Record

LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Paced:
    """One finished run."""

    records: list[Record]
    digest: str

    @property
    def commits(self) -> list[Commit]:
        return [one for one in self.records if isinstance(one, Commit)]

    @property
    def seconds(self) -> float:
        """From the first step to the last: without the start of the job, which is the same for all."""
        return self.commits[-1].t - self._began

    @property
    def cost(self) -> float:
        """Worker-seconds: every worker from its start, or from the job's first step, to its end."""
        began, end = self._began, self.commits[-1].t
        starts = {one.worker: max(one.t, began) for one in self._events("started")}
        ends = {one.worker: min(one.t, end) for one in self._events("left", "finished", "died")}
        return sum(max(0.0, ends.get(worker, end) - start) for worker, start in starts.items())

    @property
    def sizes(self) -> str:
        """The numbers of workers in order."""
        found: list[int] = []
        for one in self.commits:
            if not found or found[-1] != one.workers:
                found.append(one.workers)
        return "-".join(map(str, found))

    @property
    def _began(self) -> float:
        return self.commits[0].t - self.commits[0].step_s

    def _events(self, *what: str) -> list[JournalEvent]:
        return [one for one in self.records if isinstance(one, JournalEvent) and one.what in what]


def paced(folder: Path, name: str, flags: list[str], script: list[str]) -> Paced:
    """Runs it to its end."""
    command = [
        BIN / "stretto",
        "run",
        "--quiet",
        "--no-tensorboard",
        "--runs",
        folder,
        "--name",
        name,
        *flags,
        "benchmarks/scripts/paced.py",
        *script,
    ]
    process = launch(command, log=folder / f"{name}.log")
    try:
        code = process.wait(LIMIT_S)
    finally:
        finish([process])
    if code:
        raise RuntimeError(f"the run {name} ended with exit code {code}: {(folder / f'{name}.log').read_text()[-2000:]}")
    run = RunFolder(folder / name)
    return Paced(run.records(), str((run.read(run.result) or {}).get("digest")))
