"""Restart mode: scripts that were never written for us, scaled by stopping everybody and starting the new number.

The script is any torch.distributed program that torchrun could start; what it saves and loads itself is all that survives a change.
None of the three promises holds here: the result depends on the number of workers, everybody stops at every change, and which
samples are seen how often is the script's own business. What is left is what torchrun gives, and a number that can be changed.

A generation ends when all ranks have ended well (the job is finished), one has failed (all are stopped and started again, within
--max-restarts), or another number is wanted. Stopping is SIGTERM to all, --grace seconds, then SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from stretto.agent.completion import INTERRUPTED, STOPPED, RunOutcome
from stretto.agent.options import RunOptions
from stretto.agent.records.recorder import Recorder
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.restart import rank_launcher
from stretto.agent.restart.pauses import Pauses
from stretto.agent.restart.rank_launcher import Rank, RankLaunch
from stretto.agent.workers.failure_policy import Failure
from stretto.agent.workers.fork_client import describe_exit
from stretto.core.errors import UsageError
from stretto.core.journal import RosterLine, RosterMember, Switch
from stretto.core.text import quantity

NOTICE = (
    "restart mode gives none of the three promises: the result depends on the number of workers, everybody stops at every "
    "change, and samples are the script's own business (see docs/guides/restart-mode.md)"
)


class Restarter:
    """One job in restart mode. Speaks to the control port and to signals as a supervisor does."""

    def __init__(self, options: RunOptions, folder: RunFolder, recorder: Recorder) -> None:
        self.options = options
        self.folder = folder
        self.recorder = recorder
        self.restarts = 0
        self.mixed = False
        self._wanted = options.wanted
        self._generation = 0
        self._ranks: list[Rank] = []
        self._pauses = Pauses(folder.path, recorder)
        self._changing_at = time.monotonic()
        self._changed = asyncio.Event()
        self._stopping: int | None = None
        self._now = False

    @property
    def supervisor(self) -> Restarter:
        return self

    async def run(self) -> RunOutcome:
        options = self.options
        self.recorder.write(options.start_line(life=1, mode="restart"))
        self.recorder.event("notice", NOTICE)
        cause = "start"
        try:
            while True:
                await self._start(cause)
                cause = await self._watch()
                self._pauses.generation_ended()
                if isinstance(cause, RunOutcome):
                    return cause
        finally:
            await self._halt(grace_s=0.0)
            self._pauses.close()

    async def _start(self, cause: str) -> None:
        self._changed.clear()
        before, world = len(self._ranks), self._wanted
        launch = RankLaunch(
            self.options.script,
            self.options.args,
            world,
            self._generation,
            self.restarts,
            self.options.max_restarts,
            self.folder.name,
            (self.folder.path / "saves").absolute(),
            self._pauses.prepare(self._generation),
            self.options.threads,
        )
        self._ranks = await rank_launcher.start(launch, logs=self.folder.log, show=self._show)
        self._generation += 1
        names = [f"w{rank.number}" for rank in self._ranks]
        self.recorder.write(
            RosterLine(
                number=self._generation,
                members=tuple(RosterMember(name, self.options.agent, (0, 0)) for name in names),
                base=self._generation - 1,
                rescue=cause == "restart",
                cause=cause,
            )
        )
        self._pauses.generation_began(
            Switch(
                number=self._generation,
                step=0,
                workers=world,
                joined=tuple(names[before:] if before else names),
                left=tuple(f"w{k}" for k in range(world, before)),
                cause=cause,
                pause_ms=None,
                switch_ms=round((time.monotonic() - self._changing_at) * 1e3, 3),
            )
        )

    def _show(self, rank: int, line: str, error: bool) -> None:
        self.recorder.output(f"w{rank}", line, error)

    async def _watch(self) -> str | RunOutcome:
        """Until this generation is over: why the next one is started, or how the job ended."""
        change = asyncio.create_task(self._changed.wait())
        try:
            while True:
                living = [rank.ended for rank in self._ranks if not rank.ended.done()]
                failed = [rank for rank in self._ranks if rank.ended.done() and rank.process.returncode]
                if self._changed.is_set():
                    return await self._change()
                if failed:
                    return await self._failure(failed)
                if not living:
                    return RunOutcome("finished", 0)
                await asyncio.wait([*living, change], return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    async def _change(self) -> str | RunOutcome:
        self._changing_at = time.monotonic()
        await self._halt(grace_s=0.0 if self._now else self.options.grace_s)
        if self._stopping is not None:
            return RunOutcome("stopped", self._stopping)
        return "scale"

    async def _failure(self, failed: Sequence[Rank]) -> str | RunOutcome:
        self._changing_at = time.monotonic()
        first = failed[0]
        code = first.process.returncode or 1
        text = f"w{first.number} (rank {first.number}) died with {describe_exit(code)}"
        self.recorder.event("died", describe_exit(code), worker=f"w{first.number}")
        await self._halt(grace_s=self.options.grace_s)
        if self._stopping is not None:
            return RunOutcome("stopped", self._stopping)
        if self.restarts >= self.options.max_restarts:
            log = self.folder.log(first.number)
            return RunOutcome.failed(
                Failure(
                    f"{text}, and --max-restarts {self.options.max_restarts} is used up: see {log}",
                    exit_code=code if code > 0 else 1,
                )
            )
        self.restarts += 1
        self.recorder.event(
            "restarted",
            f"{quantity(self._wanted, 'worker')}, because {text} ({self.restarts} of --max-restarts {self.options.max_restarts})",
        )
        return "restart"

    async def _halt(self, *, grace_s: float) -> None:
        """SIGTERM to all, patience, SIGKILL to what is left."""
        living = [rank for rank in self._ranks if rank.alive]
        if grace_s:
            for rank in living:
                rank.signal(signal.SIGTERM)
            if living:
                _, late = await asyncio.wait([rank.ended for rank in living], timeout=grace_s)
                if late:
                    count = quantity(len(late), "worker")
                    self.recorder.event("warning", f"{count} did not end within {grace_s:g} s (--grace): killed")
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            await rank.ended
            await rank.close()

    # ---- what the control port and signals ask for

    def scale(self, workers: int) -> None:
        options = self.options
        if self._stopping is not None:
            raise UsageError(f"run {self.folder.name!r} is being stopped: it cannot be scaled any more")
        if not options.least <= workers <= options.most:
            raise UsageError(
                f"{quantity(workers, 'worker')} would be out of this run's bounds, {options.least} to {options.most}: "
                "choose a number between, or start the run with other --workers"
            )
        if workers == self._wanted:
            self.recorder.event("scale", f"already at {quantity(workers, 'worker')}")
            return
        self.recorder.event("scale", f"from {self._wanted} to {quantity(workers, 'worker')}: all stop and start again")
        self._wanted = workers
        self._changed.set()

    def stop(self, *, now: bool) -> None:
        self.quit(now=now)

    def quit(self, *, now: bool, interrupted: bool = False) -> None:
        self.recorder.event("stop", "now" if now else f"SIGTERM, and {self.options.grace_s:g} s of grace")
        self._stopping = INTERRUPTED if interrupted else STOPPED
        self._now = self._now or now
        self._changed.set()
        if now:
            for rank in self._ranks:
                rank.kill()

    def drain(self, agent: str) -> dict[str, object]:
        """The only agent leaves: the job stops."""
        self.stop(now=False)
        return {"agent": agent, "leaving": [], "stops": True, "checkpoint": False}

    def status(self) -> dict[str, object]:
        workers = [
            {"worker": f"w{rank.number}", "pid": rank.process.pid, "phase": "member", "tick": None, "roster": self._generation}
            for rank in self._ranks
            if rank.alive
        ]
        return {
            "name": self.folder.name,
            "state": "stopping" if self._stopping is not None else "running",
            "pid": os.getpid(),
            "mode": "restart",
            "workers": workers,
            "wanted": self._wanted,
            "least": self.options.least,
            "most": self.options.most,
            "members": len(workers),
            "roster": self._generation,
            "slices": 0,
            "steps": 0,
            "epoch": None,
            "step": None,
            "metrics": {},
            "steps_per_s": 0.0,
            "restarts": self.restarts,
        }


def processes(text: str | None) -> int | None:
    """torchrun's --nproc-per-node: a number, `cpu`, `gpu` or `auto`."""
    if text is None:
        return None
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    match text:
        case "cpu":
            return os.cpu_count() or 1
        case "gpu" | "auto" if gpus:
            return gpus
        case "auto":
            return os.cpu_count() or 1
        case "gpu":
            raise UsageError("--nproc-per-node gpu: this machine has no GPU; write a number, or cpu")
        case _ if text.isdigit() and int(text) > 0:
            return int(text)
        case _:
            raise UsageError(f"--nproc-per-node {text!r} is no number of processes: write a number, auto, cpu or gpu")


def one_node(text: str | None) -> None:
    """torchrun's --nnodes. Restart mode runs on one machine."""
    if text is None:
        return
    low = text.partition(":")[0]
    if low != "1":
        raise UsageError(
            f"--nnodes {text}: restart mode runs on one machine; use --nnodes 1, or write the loop with stretto.join, "
            "which runs on many"
        )
