"""Runs of `scripts/paced.py` and figures from their journals, for the straggler and autoscale benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import BIN, finish, launch
from stretto.agent.records.run_folder import RunFolder
from stretto.core.journal import Commit, JournalEvent, Record

LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class PacedRun:
    """One finished run."""

    records: list[Record]
    digest: str

    @property
    def commits(self) -> list[Commit]:
        return [record for record in self.records if isinstance(record, Commit)]

    @property
    def seconds(self) -> float:
        """From the first step to the last, without the start of the job."""
        return self.commits[-1].t - self._started_at

    @property
    def cost(self) -> float:
        """Worker-seconds: each worker from its start, or the job's first step if that is later, to its end."""
        began, end = self._started_at, self.commits[-1].t
        starts = {event.worker: max(event.t, began) for event in self._events("started")}
        ends = {event.worker: min(event.t, end) for event in self._events("left", "finished", "died")}
        return sum(max(0.0, ends.get(worker, end) - start) for worker, start in starts.items())

    @property
    def sizes(self) -> str:
        """The numbers of workers, in order."""
        sizes: list[int] = []
        for commit in self.commits:
            if not sizes or sizes[-1] != commit.workers:
                sizes.append(commit.workers)
        return "-".join(map(str, sizes))

    @property
    def _started_at(self) -> float:
        return self.commits[0].t - self.commits[0].step_s

    def _events(self, *what: str) -> list[JournalEvent]:
        return [record for record in self.records if isinstance(record, JournalEvent) and record.what in what]


def run_paced(folder: Path, name: str, flags: list[str], script: list[str]) -> PacedRun:
    """Runs the script to its end."""
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
    return PacedRun(run.records(), str((run.read(run.result) or {}).get("digest")))
