"""This machine as a cluster: nodes are groups of slots, jobs are `stretto run` processes in sessions of their own.

The folders under `home` are the truth, not this process's memory: `jobs/ID/life-N/` has the keeper's lock and the
exit code, `runs/NAME/` is the run's own. A server that comes back finds every life by them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import join

from stretto.clusters.agent_client import AgentUnreachable, Denied, ask
from stretto.clusters.attempt import GRACE_S, JobAttempt, mark
from stretto.clusters.base import Assignment, ClusterEvent, EventKind, NodeInfo, Stop, Work
from stretto.clusters.core_binding import Held, assign, cores
from stretto.clusters.file_checks import missing, restarts
from stretto.clusters.journal_tail import Tail
from stretto.core.errors import StrettoError
from stretto.train.checkpoint.catalog import entries
from stretto.train.checkpoint.storage import open_vault

LOOK_S = 0.25
MANY = 16
"""With more lives than this, one look a second half."""
LOOK_MANY_S = 0.5
STOP_AGAIN_S = 5.0
KILL_AFTER_S = {Stop.GRACEFUL: GRACE_S + 15.0, Stop.NOW: 10.0}
"""Whoever is still there after this is killed; a graceful stop may take the agent's own grace."""

CHECKPOINT_EVERY = "30s"
"""What a job of the server loses at most when all of its processes are lost at once."""

STRETTO = (sys.executable, "-c", "from stretto.cli.main import main; main()")


def default_slots() -> int:
    """GPUs if there are any, else cores."""
    gpus = len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])
    return gpus or len(os.sched_getaffinity(0))


@dataclass(slots=True)
class LocalCluster:
    """Implements `Cluster`."""

    home: Path
    infos: tuple[NodeInfo, ...]
    launcher: tuple[str, ...] = STRETTO
    name: str = "local"
    lives: dict[tuple[str, int], JobAttempt] = field(default_factory=dict)
    _held: Held = field(default_factory=dict)
    _cpus: list[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False
    _news: list[ClusterEvent] = field(default_factory=list)
    _scanned: bool = False

    def nodes(self) -> Sequence[NodeInfo]:
        return self.infos

    # -- bringing about ------------------------------------------------------------------------------------------

    async def apply(self, wanted: Sequence[Assignment]) -> None:
        listed = {(one.job, one.life): one for one in wanted}
        if not self._scanned:
            self._scanned = True
            await asyncio.to_thread(self._find_strays, listed)
        for key, life in list(self.lives.items()):
            if key not in listed and life.gone:
                del self.lives[key]
            elif key not in listed:
                life.assignment = _stopped(life.assignment)
        for key, one in listed.items():
            if key in self.lives:
                self.lives[key].assignment = one
            else:
                self.lives[key] = self._life(one)
        self._bind()
        self._wake.set()

    def _find_strays(self, listed: Mapping[tuple[str, int], Assignment]) -> None:
        """Lives that an earlier server was about to stop when it was killed: nobody wants them, so they are stopped now."""
        for path in self.home.glob("jobs/*/life-*/keeper.lock"):
            name, _, number = path.parent.name.partition("-")
            job = path.parent.parent.name
            if name == "life" and number.isdigit() and (job, int(number)) not in listed:
                stray = Assignment(job, int(number), Work(), 1, 1, {}, stop=Stop.NOW)
                life = self._life(stray)
                if life.locked():
                    self.lives[job, int(number)] = life

    def _life(self, one: Assignment) -> JobAttempt:
        run = self.home / "runs" / (one.run or one.job)
        folder = self.home / "jobs" / one.job / f"life-{one.life}"
        return JobAttempt(one, folder, run, Tail(run / "journal.jsonl", one.offset))

    def _bind(self) -> None:
        wanted = {life.assignment.job: life.assignment.nodes for life in self.lives.values() if not life.gone}
        before, self._held = self._held, assign(self.infos, wanted, self._held)
        for life in self.lives.values():
            job = life.assignment.job
            if not life.gone and life.seen and before.get(job) != self._held.get(job):
                life.bind(self._cores(job))

    def _cores(self, job: str) -> set[int]:
        return cores(self.infos, self._held.get(job, {}), available=self._cpus)

    def _start(self, life: JobAttempt) -> None:
        """Starts a life that has never begun."""
        one = life.assignment
        cwd = Path(one.workdir) if one.workdir else self.home / "jobs" / one.job / "work"
        life.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not one.workdir:
            cwd.mkdir(exist_ok=True)
        if not cwd.is_dir():
            self._end(life, code=126, text=f"workdir {one.workdir} is not a folder here: make it, or change workdir")
            return
        try:
            env = {**one.env, **mark(one.job, one.life)}
            life.launch(self._command(one), cwd=cwd, env=env, cpus=self._cores(one.job))
            life.asked = one.workers
        except OSError as error:
            life.tries += 1
            self._news.append(ClusterEvent(EventKind.TROUBLE, one.job, one.life, text=f"cannot be started yet: {error}"))

    def _command(self, one: Assignment) -> list[str]:
        run = [*self.launcher, "resume" if one.resume else "run"]
        flags = ["--runs", str(self.home / "runs"), "--name", one.run or one.job]
        flags += ["--workers", f"{one.least}:{one.most}", "--start", str(max(one.least, min(one.most, one.workers)))]
        if one.resume:
            return [*run, one.run or one.job, "--runs", str(self.home / "runs"), *flags[4:]]
        if not restarts(one.work):
            flags += ["--checkpoint", str(self._checkpoints(one.job, one.run)), "--checkpoint-every", CHECKPOINT_EVERY]
        flags += ["--max-restarts", str(one.restarts)]
        if one.work.elastic:
            return [*run, *flags, *one.work.script]
        if one.work.command:
            return list(one.work.command)
        return [os.environ.get("SHELL") or "/bin/sh", "-c", _prelude([*run, *flags]) + one.work.shell]

    def _checkpoints(self, job: str, run: str) -> Path:
        """A run that begins from nothing has a folder of its own: it does not find what another has left unfinished there."""
        return self.home / "jobs" / job / "checkpoints" / (run or job)

    # -- looking -------------------------------------------------------------------------------------------------

    async def watch(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        while not self._closed:
            sightings = await asyncio.to_thread(self._look)
            self._steer_all()
            sightings, self._news = sightings + self._news, []
            if sightings:
                yield sightings
            pause = LOOK_S if len(self.lives) <= MANY else LOOK_MANY_S
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                pass

    def _look(self) -> list[ClusterEvent]:
        found: list[ClusterEvent] = []
        for key, life in list(self.lives.items()):
            if life.gone:
                continue
            try:
                self._look_at(life, found)
            except OSError as error:
                found.append(ClusterEvent(EventKind.TROUBLE, *key, text=f"cannot be looked at: {error}"))
        return found

    def _look_at(self, life: JobAttempt, found: list[ClusterEvent]) -> None:
        one = life.assignment
        alive = life.alive()
        if not life.seen:
            if not alive and life.exit() is None and not life.begun():
                if one.stop is None:
                    self._start(life)
                else:
                    self._end(life, code=-15, text="stopped before it was started")
                return
            life.seen = True
            kind = EventKind.STARTED if life.process is not None else EventKind.ADOPTED
            found.append(ClusterEvent(kind, one.job, one.life))
        lines = life.tail.read()
        if lines:
            found.append(ClusterEvent(EventKind.LINES, one.job, one.life, lines=lines, offset=life.tail.offset))
        if not alive and not lines:
            if life.exit() is None and not life.seal():
                return
            ended = life.exit() or {}
            code = ended.get("code")
            text = str(ended.get("text", ""))[-4000:]
            self._end(life, code=code if isinstance(code, int) else None, text=text)

    def _end(self, life: JobAttempt, *, code: int | None, text: str) -> None:
        life.gone = True
        one = life.assignment
        self._news.append(ClusterEvent(EventKind.GONE, one.job, one.life, offset=life.tail.offset, code=code, text=text))

    def _steer_all(self) -> None:
        """Each life by itself: an agent that does not answer holds up nobody else's news."""
        for life in self.lives.values():
            idle = life.steering is None or life.steering.done()
            if idle and life.seen and not life.gone and (life.assignment.stop is not None or life.asked != life.assignment.workers):
                life.steering = asyncio.create_task(self._steer(life))

    async def _steer(self, life: JobAttempt) -> None:
        """Brings one running life to what is wanted of it. What does not work is tried at the next look."""
        one = life.assignment
        try:
            if one.stop is not None:
                await self._stop(life, one.stop)
            elif life.asked != one.workers and (life.run / "control.json").exists():
                await ask(life.run, "scale", workers=one.workers)
                life.asked = one.workers
        except AgentUnreachable:
            pass
        except OSError as error:
            self._news.append(ClusterEvent(EventKind.TROUBLE, one.job, one.life, text=f"cannot be steered: {error}"))
        except Denied as error:
            life.asked = one.workers
            self._news.append(ClusterEvent(EventKind.TROUBLE, one.job, one.life, text=str(error)))

    async def _stop(self, life: JobAttempt, stop: Stop) -> None:
        now = time.monotonic()
        if now - life.stop_since.setdefault(stop, now) > KILL_AFTER_S[stop]:
            self._kill(life)
            return
        if now - life.stop_sent.get(stop, -STOP_AGAIN_S) < STOP_AGAIN_S:
            return
        again = stop in life.stop_sent
        life.stop_sent[stop] = now
        try:
            if stop is Stop.GRACEFUL:
                await ask(life.run, "drain")
            else:
                await ask(life.run, "stop", now=True)
        except (AgentUnreachable, Denied):
            # No agent to ask: a plain command, or one that has not opened its port yet. The keeper passes a signal on.
            life.signal()
            if stop is Stop.NOW and again:
                life.signal()

    def _kill(self, life: JobAttempt) -> None:
        """The last resort: the keeper's second signal kills the job and sweeps up what it has left."""
        life.signal()
        life.signal()

    # -- what is left --------------------------------------------------------------------------------------------

    def missing(self, work: Work, workdir: str | None, env: Mapping[str, str]) -> str | None:
        return missing(work, workdir, env=env, scripts=self.launcher == STRETTO)  # another launcher knows what its scripts are

    def log(self, job: str, life: int, run: str) -> Mapping[str, str]:
        found = {"console": str(self.home / "jobs" / job / f"life-{life}" / "console.log")}
        logs = self.home / "runs" / run / "logs"
        if logs.is_dir():
            found.update({path.stem: str(path) for path in sorted(logs.glob("*.log"))[:4096]})
        return found

    def resumable(self, job: str, run: str) -> bool:
        try:
            return any(entry.complete and not entry.final for entry in entries(open_vault(str(self._checkpoints(job, run)))))
        except (StrettoError, OSError):
            return False

    async def forget(self, job: str, runs: Sequence[str]) -> None:
        for path in [self.home / "jobs" / job, *(self.home / "runs" / run for run in runs)]:
            await asyncio.to_thread(shutil.rmtree, path, True)
        for key in [key for key in self.lives if key[0] == job]:
            del self.lives[key]

    async def close(self) -> None:
        self._closed = True
        self._wake.set()
        for life in self.lives.values():
            if life.steering is not None:
                life.steering.cancel()


def _stopped(one: Assignment) -> Assignment:
    return replace(one, stop=Stop.NOW)


def _prelude(run: Sequence[str]) -> str:
    """In a shell job, `stretto run script.py` is this job's elastic part: name, folder and limits are filled in."""
    return f'stretto() {{ if [ "$1" = run ]; then shift; {join(run)} "$@"; else {join(STRETTO)} "$@"; fi; }}\n'
