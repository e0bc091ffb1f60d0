"""The attempts of a run: each begins with a checkpoint of the one before.

An attempt ends when all workers that held the state are gone. The agent begins the next one itself, from the newest checkpoint
whose every byte is right, as often as the restart budget allows. If the agent itself ends, `stretto resume` begins
the next attempt.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from stretto.agent.completion import RunOutcome
from stretto.agent.hosts.join import Joined
from stretto.agent.options import Checkpoints, RunOptions
from stretto.agent.records.recorder import Recorder
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.supervisor import Supervisor
from stretto.agent.workers.replacement import RestartBudget
from stretto.core.errors import UsageError
from stretto.core.journal import Resume, Start
from stretto.core.json_types import JsonObject
from stretto.train.checkpoint.catalog import CheckpointEntry, sound
from stretto.train.checkpoint.storage import open_storage


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. `step` is the number of steps that its checkpoint has behind it, None for a run's first attempt."""

    number: int = 1
    step: int | None = None
    path: str = ""
    first_worker: int = 0
    """The number of the first worker: earlier attempts used those below."""


def next_life(folder: RunFolder, entry: CheckpointEntry | None) -> Attempt:
    """The attempt after those in the journal, from this checkpoint."""
    numbers = [line.life for line in folder.records() if isinstance(line, Start | Resume)]
    logs = [int(name.stem.rpartition("-")[2]) for name in folder.logs.glob("worker-*.log") if name.stem[7:].isdigit()]
    return Attempt(max(numbers, default=1) + 1, entry.step if entry else 0, entry.path if entry else "", max(logs, default=-1) + 1)


async def newest(checkpoints: Checkpoints, *, warn: Callable[[str], None]) -> CheckpointEntry | None:
    """The newest checkpoint whose every byte is right."""
    entry, problems = await asyncio.to_thread(lambda: sound(open_storage(checkpoints.url)))
    for problem in problems:
        warn(f"{problem}: an older checkpoint is used instead")
    return entry


async def later(number: int, options: RunOptions, recorder: Recorder) -> Attempt:
    """A later attempt of a job on several hosts, for an agent that was not in the one before."""
    if options.checkpoints is None:
        return Attempt(number)
    entry = await newest(options.checkpoints, warn=lambda text: recorder.event("warning", text))
    return Attempt(number, entry.step if entry else 0, entry.path if entry else "")


class Attempts:
    """The attempts of a run under one agent. `supervisor` is that of the current one."""

    def __init__(
        self,
        options: RunOptions,
        folder: RunFolder,
        recorder: Recorder,
        life: Attempt,
        *,
        joined: Joined | None = None,
        card: JsonObject | None = None,
    ) -> None:
        self.options = options
        self._joined = joined
        self._card = card
        self.folder = folder
        self.recorder = recorder
        self.life = life
        self.resumes = 0
        self._budget = RestartBudget(options.max_restarts)
        self.supervisor = self._supervisor()

    def _supervisor(self) -> Supervisor:
        return Supervisor(
            self.options,
            self.folder,
            self.recorder,
            life=self.life.number,
            resume=self.life.step,
            first_worker=self.life.first_worker,
            joined=self._joined,
            card=self._card,
        )

    async def start_forks(self) -> None:
        options = self.options
        await self.supervisor.forks.start(options.script, options.args, threads=options.threads, env={}, cwd=os.getcwd())

    def record_start(self) -> None:
        options, life = self.options, self.life
        if self.life.number == 1 or self.resumes == 0:
            self.recorder.write(options.start_line(life=life.number))
        if life.step is not None:
            self.recorder.resume(life=life.number, finished=life.step, path=life.path)

    async def run(self) -> RunOutcome:
        """Runs to the end of the last attempt. The fork server of the first must have been started."""
        while True:
            self.record_start()
            outcome = await self.supervisor.run()
            if not outcome.lost or not await self._again(outcome):
                return outcome

    async def _again(self, outcome: RunOutcome) -> bool:
        """Begins the next attempt, if there is one."""
        checkpoints = self.options.checkpoints
        if checkpoints is None:
            return False
        delay = self._budget.spend(time.monotonic())
        if delay is None:
            self.recorder.event(
                "warning",
                f"everybody is gone again, and the run is not resumed any more (--max-restarts "
                f"{self.options.max_restarts}): see `stretto resume`",
            )
            return False
        await asyncio.sleep(delay)
        if self.supervisor.completion.stopping is not None:
            return False
        try:
            entry = await newest(checkpoints, warn=lambda text: self.recorder.event("warning", text))
        except OSError as error:
            self.recorder.event("warning", f"the checkpoints in {checkpoints.url} cannot be read: {error}")
            return False
        source = f"going on from {entry.path}" if entry is not None else "there is no checkpoint yet, so it begins anew"
        self.recorder.event("lost", f"{outcome.error}; {source}")
        previous, self.resumes = self.supervisor, self.resumes + 1
        self.options = replace(self.options, start=previous.coordination.wanted)
        number = self.life.number + 1 if self._joined is None else max(self.life.number + 1, previous.coordination.life)
        self.life = Attempt(number, entry.step if entry else 0, entry.path if entry else "")
        self.supervisor = self._supervisor()
        self.supervisor.inherit(previous)
        await self.start_forks()
        return True


class RunLock:
    """Keeps other agents out of the run. The kernel releases the lock when the process ends."""

    def __init__(self, folder: RunFolder) -> None:
        self._fd = os.open(folder.path / ".agent", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise UsageError(f"run {folder.name!r} runs already, or is just being resumed: see `stretto ps`") from None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
