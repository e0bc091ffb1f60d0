"""The agent: starts workers, watches them, replaces them, and tells the leader what became of them.

Everything here runs on one event loop and nothing waits for a worker, so a death or a freeze is never behind something
slow. What is decided is decided elsewhere, by pure functions: who is dead (`watch`), whose fault it was (`blame`),
whether it may be replaced (`budget`), who trains next (`membership.protocol`).
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from stretto.agent.completion import Completion
from stretto.agent.coordination import (
    Coordination,
    CoordinationEvent,
    EndedWhileAway,
    FailureReported,
    FingerprintKnown,
    JobFinished,
    JobLost,
    JobReplaced,
    LeaveRequested,
    RosterBroken,
    RosterPublished,
    ScaleRequest,
    StopRequested,
    StoreChanged,
    TargetChanged,
    WorkerDismissed,
)
from stretto.agent.hosts.join import Joined
from stretto.agent.hosts.multi_host import MultiHostJob
from stretto.agent.options import RunOptions
from stretto.agent.outcome import INTERRUPTED, STOPPED, RunOutcome
from stretto.agent.records.recorder import Recorder
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.sizing.sizing_controller import SizingController
from stretto.agent.status import standing
from stretto.agent.worker_messages import WorkerMessages, too_many
from stretto.agent.workers.failure_policy import Failure, FailureHistory, exit_code_of
from stretto.agent.workers.fork_client import ForkServer, describe_exit
from stretto.agent.workers.health_monitor import patrol
from stretto.agent.workers.liveness import Liveness, LivenessLimits
from stretto.agent.workers.postmortem import examine, poisoned
from stretto.agent.workers.progress_monitor import ProgressMonitor
from stretto.agent.workers.replacement import Replacement
from stretto.agent.workers.startup_ranks import StartupRanks
from stretto.agent.workers.worker_handle import WorkerHandle, prepare
from stretto.core.errors import JobFailed, UsageError
from stretto.core.messages import HaltMessage, RosterMessage, StopMessage, ToWorker
from stretto.core.roster import Roster
from stretto.core.text import quantity
from stretto.membership.protocol import ENDED_EARLY
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.worker_status import Phase


class Supervisor:
    """One agent's workers of one job. `run` returns when the job has ended and every process is gone."""

    def __init__(
        self,
        options: RunOptions,
        folder: RunFolder,
        recorder: Recorder,
        *,
        life: int = 1,
        resume: int | None = None,
        first_worker: int = 0,
        joined: Joined | None = None,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        """`joined` is the agent's place in a job on several hosts, `card` what the others shall know of it."""
        self.options = options
        self.folder = folder
        self.recorder = recorder
        asked = ScaleRequest(least=options.least, most=options.most, wanted=options.wanted)
        self.part = None
        if joined is None:
            self.council = Coordination(
                EmbeddedStore(),
                on_event=self._handle,
                on_fence=self._fence,
                agent=options.agent,
                slots=options.most,
                asked=asked,
            )
        else:
            self.council = Coordination(
                joined.store,
                on_event=self._handle,
                on_fence=self._fence,
                agent=joined.agent,
                slots=joined.slots,
                asked=asked,
                timing=joined.timing,
                job=joined.id,
                card=card,
                life=life,
            )
            self.part = MultiHostJob(self, joined, address=(card or {})["address"])
        self.workers: dict[str, WorkerHandle] = {}
        self.slices = 0
        self.mixed = False
        self.forks = ForkServer(died=self._died, gone=self._forks_gone)
        self._ledger = FailureHistory()
        self._replacing = Replacement(self)
        self._limits = LivenessLimits(
            outside_s=options.hang_timeout_s,
            slice_s=options.slice_timeout_s,
            first_slice_s=max(options.slice_timeout_s, LivenessLimits().first_slice_s),
        )
        self.ending = Completion()
        self._tasks: set[asyncio.Task[None]] = set()
        self._life = life
        self._resume = resume
        self._number = first_worker
        self._last_words = ""
        self._closing = False
        self._hearing = WorkerMessages(self)
        self.tuning = SizingController(self)
        self.early = StartupRanks(self)
        self.progress = ProgressMonitor(self)

    @property
    def run_name(self) -> str:
        """What checkpoints are called by: on all hosts of a job the same."""
        return self.folder.name if self.part is None else self.part.joined.job

    @property
    def restarts(self) -> int:
        """Workers that were replaced."""
        return self._replacing.made

    async def run(self) -> RunOutcome:
        """The whole life of the job. The fork server must have been started."""
        watcher = asyncio.create_task(patrol(lambda: list(self.workers.values()), limits=self._limits, condemn=self.condemn))
        watcher.add_done_callback(self._task_done)
        self.spawn(self.progress.watch())
        await self.council.open()
        if self.part is not None:
            self.spawn(self.part.watch())
        try:
            outcome = await self.ending.outcome
            if self.part is not None and outcome.state == "failed" and not outcome.own and not outcome.lost:
                await self.council.announce(
                    {
                        "state": "failed",
                        "reason": outcome.error,
                        "traceback": outcome.traceback[-20_000:],
                        "exit_code": outcome.exit_code,
                        "life": self._life,
                    }
                )
            return outcome
        finally:
            self._closing = True
            watcher.cancel()
            await self._tear_down()

    def inherit(self, old: Supervisor) -> None:
        """What is known from an earlier life: the names in use, whose fault deaths were, and what was spent."""
        self._number, self._ledger = old._number, old._ledger
        self._replacing.made, self.mixed = old.restarts, old.mixed

    # ---- how many

    def balance(self) -> None:
        """Starts what is missing; ends what is too much and not yet training. Members are let go by the leader's plan."""
        if self._closing or self.ending.begun or self.council.cut_off or (self.part is not None and self.part.leaving is not None):
            return
        if any(worker.status.phase is Phase.FINISHED for worker in self.workers.values()):
            return  # the end has begun: whoever came now would find nothing to do
        wanted = self.council.target + self.tuning.spare
        serving = [worker for worker in self.workers.values() if worker.serving]
        missing = wanted - len(serving) - self._replacing.scheduled - self._replacing.forfeited
        for _ in range(missing):
            self.start_worker()
        roster = self.council.roster
        named = roster.workers if roster is not None else ()
        waiting = [worker for worker in serving if worker.status.tick is None and worker.name not in named]
        waiting.sort(key=lambda worker: not self.early.is_chief(worker.name))  # it goes last
        for worker in waiting[::-1][: max(0, len(serving) - wanted)]:
            self.let_go(worker, "is no longer wanted")
        if not self._replacing.scheduled:
            self.early.replace_chief()

    def scale(self, workers: int) -> None:
        """Another wanted number. Refused where it is out of the job's bounds."""
        options = self.options
        if self.ending.stopping is not None:
            raise UsageError(f"run {self.folder.name!r} is being stopped: it cannot be scaled any more")
        if not options.least <= workers <= options.most:
            raise UsageError(
                f"{quantity(workers, 'worker')} would be out of this run's bounds, {options.least} to {options.most}: "
                "choose a number between, or start the run with other --workers"
            )
        slices = self.slices or self.council.slices
        if slices and workers > slices:
            raise UsageError(too_many(slices, workers))
        self._replacing.forgive()
        count = quantity(workers, "worker")
        before = self.council.wanted
        self.recorder.event("scale", f"from {before} to {count}" if before != workers else f"already at {count}")
        self.council.want(workers)
        self.balance()

    def start_worker(self) -> None:
        number = self._number
        self._number += 1
        name = f"w{number}" if self.part is None else self.part.name(number)
        worker, fds = prepare(
            name,
            agent=self.options.agent,
            number=number,
            log=self.folder.log(number),
            order=number if self.part is None else self.part.order(),
            hear=lambda message: self._hearing.hear(name, message),
            fault=lambda text: self.condemn(self.workers[name], Liveness("fault", text)),
            show=lambda line, error: self.recorder.output(name, line, error),
        )
        self.workers[name] = worker
        env = {
            "STRETTO_WORKER": name,
            "STRETTO_AGENT": self.options.agent,
            "STRETTO_RUN": str(self.folder.path.resolve()),
            "STRETTO_OPTIONS": self.options.for_workers(run=self.run_name, life=self._life, resume=self._resume),
        }

        async def fork() -> None:
            try:
                worker.pid = await self.forks.fork(name, fds, env=env, threads=self.options.threads)
                worker.started = time.monotonic()
                self.recorder.event("started", f"pid {worker.pid}", worker=name)
            except JobFailed as error:
                self.ending.fail(Failure(str(error)))

        self.council.tell(worker.status)
        self.spawn(fork())
        self.early.started(worker)

    # ---- what the leader and the other agents decide

    def _handle(self, event: CoordinationEvent) -> None:
        match event:
            case RosterPublished(roster):
                self._publish(roster)
            case RosterBroken(number, reason):
                self._halt(number, reason)
            case WorkerDismissed(name, reason):
                worker = self.workers.get(name)
                if worker is not None and not worker.dead:
                    self.let_go(worker, reason, refused=worker.status.tick is None)
            case TargetChanged():
                self.balance()
            case StoreChanged():
                self.early.look()
            case FingerprintKnown():
                self._hearing.compare()
            case StopRequested(now):
                self._stop(now=now, code=STOPPED)
            case LeaveRequested():
                if self.part is not None:
                    self.part.leave(now=False, code=0)
            case JobFinished():
                self.see_whether_over()
            case JobLost():
                self._lose()
            case FailureReported(reason, trace, exit_code):
                hint = self.ending.hint if reason.startswith(ENDED_EARLY) else ""
                self.ending.fail(Failure(f"{reason}{hint}", trace, exit_code))
            case EndedWhileAway(state, digest):
                if self.part is not None:
                    self.part.ended(state, digest)
            case JobReplaced(reason):
                self.ending.end(replace(RunOutcome.failed(Failure(reason)), own=True))

    def _publish(self, roster: Roster) -> None:
        self.recorder.roster(roster, agent=self.options.agent)
        message = RosterMessage(roster)
        for name in (*roster.workers, *roster.left):
            self._send(name, message)
        needed = {*roster.workers, *roster.left}
        for name in [name for name, worker in self.workers.items() if worker.dead and name not in needed]:
            if not self.workers[name].status.alive:
                self.council.forget(name)
                del self.workers[name]

    def _halt(self, number: int, reason: str) -> None:
        self.recorder.event("broken", f"roster {number}: {reason}")
        for name in list(self.workers):
            self._send(name, HaltMessage(number))

    def _fence(self) -> None:
        self.recorder.event("warning", "the store has been out of reach for too long: this agent stops its workers")
        for worker in list(self.workers.values()):
            if worker.serving:
                worker.dismissed = "the store is out of reach"
                self._kill(worker)

    def _lose(self) -> None:
        """Nobody has the state any more; a checkpoint can help."""
        crash = self._ledger.crashes[-1] if self._ledger.crashes else None
        text = f"every worker that held the state is gone: {self._last_words}"
        failure = Failure(text, crash.traceback if crash else "", exit_code_of(crash))
        self.ending.end(replace(RunOutcome.failed(failure), lost=True))

    def _send(self, name: str, message: ToWorker) -> None:
        worker = self.workers.get(name)
        if worker is not None and not worker.dead:
            worker.link.send(message)

    # ---- ends of workers

    def let_go(self, worker: WorkerHandle, reason: str, *, refused: bool = False, recurring: bool = False) -> None:
        """Ends a worker that is not at fault, or that does not fit: killed, because it may be anywhere in its script.

        `recurring` says that the next worker would probably be refused for the same reason.
        """
        worker.dismissed = reason
        self.recorder.event("refused" if refused else "dismissed", reason, worker=worker.name)
        self._kill(worker)
        if refused:
            self._replacing.refused(worker, reason, recurring=recurring)
        elif worker.status.tick is not None:
            self._replacing.replace(worker, reason, counted=False)

    def condemn(self, worker: WorkerHandle, verdict: Liveness) -> None:
        """Kills a worker that counts as dead. It is dead for everybody from now on, whatever the kernel still has to do."""
        if worker.dead or worker.verdict is not None:
            return
        worker.verdict = verdict
        self._last_words = f"{worker.name} was {verdict.what}: {verdict.text}"
        self.recorder.event(verdict.what, verdict.text, worker=worker.name)
        self._kill(worker)
        if verdict.what == "hung":
            self.ending.fail(poisoned(worker, ledger=self._ledger))
        self._replacing.replace(worker, f"was {verdict.what} ({verdict.text})")

    def _kill(self, worker: WorkerHandle) -> None:
        if worker.pid:
            self.forks.kill(worker.pid)
        worker.status = replace(worker.status, phase=Phase.GONE)
        self.council.tell(worker.status)

    def _died(self, name: str, code: int) -> None:
        self.spawn(self._bury(self.workers[name], code))

    async def _bury(self, worker: WorkerHandle, code: int) -> None:
        await worker.last_words()
        worker.dead = True
        if self._closing:
            return worker.close()
        if worker.verdict is None and not worker.dismissed and not worker.left:
            self._explain(worker, code)
        if worker.status.phase is not Phase.FINISHED and worker.status.alive:
            worker.status = replace(worker.status, phase=Phase.GONE)
            self.council.tell(worker.status)
        worker.close()
        self.see_whether_over()
        self.balance()

    def _explain(self, worker: WorkerHandle, code: int) -> None:
        """A death that the agent did not cause."""
        if worker.status.phase is Phase.FINISHED and worker.crash is not None:
            summary = worker.crash.summary
            self.recorder.event("crashed", f"after job.close(): {summary}", worker=worker.name)
            return self.ending.fail(
                Failure(
                    f"the script of {worker.name} failed after job.close(): {summary}",
                    worker.crash.traceback,
                    exit_code_of(worker.crash),
                )
            )
        if worker.status.phase is Phase.FINISHED or self.ending.stopping is not None:
            return
        crash = worker.crash
        if crash is not None and crash.tick is None and self._trains_without(worker):
            self.recorder.event("crashed", crash.summary, worker=worker.name)
            self._last_words = f"{worker.name} failed with {crash.summary}"
            why = "its script failed in code that has run before and runs again on a worker that joins or resumes"
            return self._replacing.refused(worker, f"{why}: {crash.summary}", recurring=True)
        found = examine(worker, code, ledger=self._ledger, started=self.council.roster is not None, script=self.options.script)
        self.recorder.event(found.what, found.text, worker=worker.name)
        self._last_words = f"{worker.name} {found.why}"
        if found.failure is not None:
            return self.ending.fail(found.failure)
        self._replacing.replace(worker, found.why)

    def _trains_without(self, worker: WorkerHandle) -> bool:
        """Whether others hold the state: what a newcomer's script does on its way to them costs the newcomer only."""
        return any(one.alive and one.tick is not None for one in self.council.statuses.values() if one.worker != worker.name)

    def _forks_gone(self, code: int) -> None:
        failure = Failure(
            f"the fork server ended with {describe_exit(code)}, and its workers with it: was the machine out of memory?"
        )
        self.ending.end(replace(RunOutcome.failed(failure), lost=self.part is None, own=True))

    # ---- the end of the job

    def quit(self, *, now: bool, interrupted: bool = False) -> None:
        """This process was asked to go. In a job on several hosts the others go on."""
        code = INTERRUPTED if interrupted else STOPPED
        if self.part is not None:
            self.part.leave(now=now, code=code)
        else:
            self._stop(now=now, code=code)

    def stop(self, *, now: bool) -> None:
        """The job shall end: in order at the next boundary, or at once. A second call may make it `now`."""
        if self.part is not None:
            self.council.ask_to_stop(now=now)
        else:
            self._stop(now=now, code=STOPPED)

    def _stop(self, *, now: bool, code: int) -> None:
        members = self.council.roster is not None
        if self.ending.stopping is None:
            self.recorder.event("stop", "now" if now else "at the next step boundary")
        self.ending.stopping = code
        if now or not members:
            return self.ending.end(RunOutcome("stopped", code))
        self.ask_chief_to_stop()

        async def patience() -> None:
            await asyncio.sleep(self.options.grace_s)
            self.recorder.event(
                "warning", f"the workers have not stopped within {self.options.grace_s:g} s (--grace): they are killed"
            )
            self.ending.end(RunOutcome("stopped", code))

        self.spawn(patience())

    def ask_chief_to_stop(self) -> None:
        if self.ending.stopping is not None and self.council.chief is not None:
            self._send(self.council.chief, StopMessage())

    def see_whether_over(self) -> None:
        """Ends the job when its members have, and their processes too: a script may still write its model."""
        alive = [worker for worker in self.workers.values() if not worker.dead]
        finished = [worker for worker in self.workers.values() if worker.status.phase is Phase.FINISHED]
        untrained = bool(finished) and self.council.roster is None and not any(worker.serving for worker in self.workers.values())
        if any(worker in alive for worker in finished):
            return
        if self.council.over or untrained:
            return self.ending.conclude(self.council.digests)
        if finished and self.part is not None:
            return self.part.finished()
        if not finished and not alive and self.ending.stopping is not None and self.part is None:
            self.ending.end(RunOutcome("stopped", self.ending.stopping))

    async def _tear_down(self) -> None:
        for worker in self.workers.values():
            if worker.pid and not worker.dead:
                self.forks.kill(worker.pid)
        await self.forks.close()
        await self.council.close()
        for task in list(self._tasks):
            task.cancel()
        for worker in self.workers.values():
            if not worker.dead:
                await worker.last_words()
                worker.close()
        self.recorder.settle()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            failure = Failure(f"the agent itself failed: {error!r}", "".join(traceback.format_exception(error)))
            self.ending.end(replace(RunOutcome.failed(failure), own=True))

    def status(self) -> dict[str, Any]:
        return standing(self)
