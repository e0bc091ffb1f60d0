"""The agent of one job: starts workers, replaces them, and carries out what the leader decides.

Everything here runs on one event loop and never waits for a worker, so the agent notices a death or a freeze at once. The parts do
the work: `workers.worker_pool` has the processes, `worker_messages` what they send, `coordination` the store. `workers.liveness`
decides who is dead, `workers.failure_policy` whose fault it was, `workers.replacement` whether it is replaced,
`membership.protocol` who trains next.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from dataclasses import replace

from stretto.agent.completion import INTERRUPTED, STOPPED, Completion, RunOutcome
from stretto.agent.context import BackgroundTasks, JobContext
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
from stretto.agent.drain import Drain
from stretto.agent.hosts.join import Joined
from stretto.agent.hosts.multi_host import MultiHostJob
from stretto.agent.options import RunOptions
from stretto.agent.records.recorder import Recorder
from stretto.agent.records.run_folder import RunFolder
from stretto.agent.sizing import SizingController
from stretto.agent.worker_messages import WorkerMessages, too_many
from stretto.agent.workers.failure_policy import Failure
from stretto.agent.workers.liveness import LivenessLimits, watch_heartbeats
from stretto.agent.workers.replacement import Replacement
from stretto.agent.workers.stall_detection import ProgressMonitor
from stretto.agent.workers.startup_ranks import StartupRanks
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.agent.workers.worker_pool import WorkerPool
from stretto.core.errors import UsageError
from stretto.core.json_types import JsonObject, to_address
from stretto.core.messages import HaltMessage, RosterMessage, ToAgent
from stretto.core.roster import Roster
from stretto.core.schema import Unknown
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
        card: JsonObject | None = None,
    ) -> None:
        """`joined` is the agent's place in a job on several hosts, `card` what the other agents shall know of it."""
        self.options = options
        self.folder = folder
        self.recorder = recorder
        self.coordination = self._coordination(joined, card, life)
        self.completion = Completion()
        tasks = BackgroundTasks(on_error=self._agent_failed)
        self._context = context = JobContext(options, folder, recorder, self.coordination, self.completion, tasks)
        self._life = life
        self._multi_host = (
            MultiHostJob(context, joined, address=to_address((card or {})["address"])) if joined is not None else None
        )
        self._replacement = Replacement(context, multi_host=self._multi_host, balance=self.balance)
        self._pool = WorkerPool(
            context,
            multi_host=self._multi_host,
            replacement=self._replacement,
            first_worker=first_worker,
            worker_options=options.for_workers(run=joined.job if joined else folder.name, life=life, resume=resume),
            on_message=self._receive,
            on_death=self._worker_ended,
        )
        self.forks = self._pool.forks
        self._drain = Drain(context, joined, dismiss=self._pool.dismiss, stop=self.stop)
        self._sizing = SizingController(context, scale=self.scale, balance=self.balance)
        self._startup_ranks = StartupRanks(context, start_worker=self._start_worker, dismiss=self._pool.dismiss)
        self._progress = ProgressMonitor(context, mark_dead=self._pool.mark_dead)
        self._messages = WorkerMessages(
            context,
            pool=self._pool,
            startup_ranks=self._startup_ranks,
            sizing=self._sizing,
            multi_host=self._multi_host,
            balance=self.balance,
            check_completed=self._check_completed,
        )

    def _coordination(self, joined: Joined | None, card: JsonObject | None, life: int) -> Coordination:
        options = self.options
        request = ScaleRequest(least=options.least, most=options.most, wanted=options.wanted)
        if joined is None:
            return Coordination(
                EmbeddedStore(),
                on_event=self._handle,
                on_fence=self._fence,
                agent=options.agent,
                slots=options.most,
                request=request,
            )
        return Coordination(
            joined.store,
            on_event=self._handle,
            on_fence=self._fence,
            agent=joined.agent,
            slots=joined.slots,
            request=request,
            timing=joined.timing,
            job=joined.id,
            card=card,
            life=life,
        )

    @property
    def mixed(self) -> bool:
        """Workers that compute other bits were admitted."""
        return self._context.mixed

    @property
    def restarts(self) -> int:
        """Workers that were replaced."""
        return self._replacement.made

    async def run(self) -> RunOutcome:
        """Runs the job to its end. The fork server must have been started."""
        options, context = self.options, self._context
        limits = LivenessLimits(
            outside_s=options.hang_timeout_s,
            slice_s=options.slice_timeout_s,
            first_slice_s=max(options.slice_timeout_s, LivenessLimits().first_slice_s),
        )
        context.tasks.spawn(watch_heartbeats(lambda: list(context.workers.values()), limits=limits, mark_dead=self._pool.mark_dead))
        context.tasks.spawn(self._progress.watch())
        await self.coordination.open()
        if self._multi_host is not None:
            context.tasks.spawn(self._multi_host.watch_store())
        try:
            outcome = await self.completion.outcome
            if self._multi_host is not None and outcome.state == "failed" and not outcome.own and not outcome.lost:
                await self.coordination.announce_failure(outcome, life=self._life)
            return outcome
        finally:
            await self._tear_down()

    async def _tear_down(self) -> None:
        await self._pool.close()
        await self.coordination.close()
        self._context.tasks.cancel()
        await self._pool.close_handles()
        self.recorder.settle()

    def inherit(self, previous: Supervisor) -> None:
        """Continues the numbering, the record of failures and the totals of an earlier attempt."""
        self._pool.inherit(previous._pool)
        self._replacement.made, self._context.mixed = previous.restarts, previous.mixed

    def _agent_failed(self, error: BaseException) -> None:
        failure = Failure(f"the agent itself failed: {error!r}", "".join(traceback.format_exception(error)))
        self.completion.end(replace(RunOutcome.failed(failure), own=True))

    # ---- the number of workers

    def balance(self) -> None:
        """Starts missing workers; dismisses surplus workers that do not train yet. The leader's plan lets members go."""
        context, coordination = self._context, self.coordination
        if self._pool.closing or self.completion.begun or coordination.cut_off or self._drain.exit_code is not None:
            return
        if any(worker.status.phase is Phase.FINISHED for worker in context.workers.values()):
            return  # the end has begun: a newcomer would find nothing to do
        target = coordination.target + self._sizing.spare
        serving = context.serving
        for _ in range(target - len(serving) - self._replacement.scheduled - self._replacement.forfeited):
            self._start_worker()
        roster = coordination.roster
        members = roster.workers if roster is not None else ()
        waiting = [worker for worker in serving if worker.status.tick is None and worker.name not in members]
        waiting.sort(key=lambda worker: not self._startup_ranks.is_chief(worker.name))  # the chief goes last
        for worker in waiting[::-1][: max(0, len(serving) - target)]:
            self._pool.dismiss(worker, "is no longer wanted")
        if not self._replacement.scheduled:
            self._startup_ranks.replace_chief()

    def scale(self, workers: int) -> None:
        """Sets the wanted number of workers. Refuses a number outside the job's bounds."""
        options = self.options
        if self.completion.stopping is not None:
            raise UsageError(f"run {self.folder.name!r} is being stopped: it cannot be scaled any more")
        if not options.least <= workers <= options.most:
            raise UsageError(
                f"{quantity(workers, 'worker')} would be out of this run's bounds, {options.least} to {options.most}: "
                "choose a number between, or start the run with other --workers"
            )
        slices = self._context.known_slices
        if slices and workers > slices:
            raise UsageError(too_many(slices, workers))
        self._replacement.forgive()
        count = quantity(workers, "worker")
        before = self.coordination.wanted
        self.recorder.event("scale", f"from {before} to {count}" if before != workers else f"already at {count}")
        self.coordination.set_wanted(workers)
        self.balance()

    def _start_worker(self) -> None:
        self._startup_ranks.assign(self._pool.start())

    def _receive(self, worker: WorkerHandle, message: ToAgent | Unknown) -> None:
        self._messages.handle(worker, message)

    def _worker_ended(self) -> None:
        self._check_completed()
        self.balance()

    # ---- what the leader and the other agents decide

    def _handle(self, event: CoordinationEvent) -> None:
        match event:
            case RosterPublished(roster):
                self._publish(roster)
            case RosterBroken(number, reason):
                self._halt(number, reason)
            case WorkerDismissed(name, reason):
                worker = self._context.workers.get(name)
                if worker is not None and not worker.dead:
                    self._pool.dismiss(worker, reason, refused=worker.status.tick is None)
            case TargetChanged():
                self.balance()
            case StoreChanged():
                self._startup_ranks.release()
            case FingerprintKnown():
                self._messages.compare_fingerprints()
            case StopRequested(now):
                self._stop(now=now, code=STOPPED)
            case LeaveRequested():
                self._drain.leave(now=False, code=0)
            case JobFinished():
                self._check_completed()
            case JobLost():
                self.completion.end(replace(RunOutcome.failed(self._pool.failure_of_all()), lost=True))
            case FailureReported(reason, trace, exit_code):
                hint = self.completion.hint if reason.startswith(ENDED_EARLY) else ""
                self.completion.fail(Failure(f"{reason}{hint}", trace, exit_code))
            case EndedWhileAway(state, digest):
                if self._multi_host is not None:
                    self._multi_host.ended_while_away(state, digest)
            case JobReplaced(reason):
                self.completion.end(replace(RunOutcome.failed(Failure(reason)), own=True))

    def _publish(self, roster: Roster) -> None:
        self.recorder.roster(roster, agent=self.options.agent)
        message = RosterMessage(roster)
        for name in (*roster.workers, *roster.left):
            self._pool.send(name, message)
        self._pool.forget_dead(needed={*roster.workers, *roster.left})

    def _halt(self, number: int, reason: str) -> None:
        self.recorder.event("broken", f"roster {number}: {reason}")
        for name in list(self._context.workers):
            self._pool.send(name, HaltMessage(number))

    def _fence(self) -> None:
        self.recorder.event("warning", "the store has been out of reach for too long: this agent stops its workers")
        self._pool.fence("the store is out of reach")

    # ---- the end of the job

    def quit(self, *, now: bool, interrupted: bool = False) -> None:
        """This process was asked to exit. In a job on several hosts the others continue."""
        code = INTERRUPTED if interrupted else STOPPED
        if self._multi_host is not None:
            self._drain.leave(now=now, code=code)
        else:
            self._stop(now=now, code=code)

    def drain(self, agent: str) -> dict[str, object]:
        """Takes an agent out of the job, at the next step boundary."""
        return self._drain.request(agent)

    def stop(self, *, now: bool) -> None:
        """Ends the job: in order at the next boundary, or at once. A second call may make it `now`."""
        if self._multi_host is not None:
            self.coordination.request_stop(now=now)
        else:
            self._stop(now=now, code=STOPPED)

    def _stop(self, *, now: bool, code: int) -> None:
        if self.completion.stopping is None:
            self.recorder.event("stop", "now" if now else "at the next step boundary")
        self.completion.stopping = code
        if now or self.coordination.roster is None:
            return self.completion.end(RunOutcome("stopped", code))
        self._pool.ask_chief_to_stop()

        async def kill_after_grace() -> None:
            await asyncio.sleep(self.options.grace_s)
            self.recorder.event(
                "warning", f"the workers have not stopped within {self.options.grace_s:g} s (--grace): they are killed"
            )
            self.completion.end(RunOutcome("stopped", code))

        self._context.tasks.spawn(kill_after_grace())

    def _check_completed(self) -> None:
        """Ends the job when its members have, and their processes too: a script may still write its model."""
        workers = self._context.workers.values()
        alive = [worker for worker in workers if not worker.dead]
        finished = [worker for worker in workers if worker.status.phase is Phase.FINISHED]
        untrained = bool(finished) and self.coordination.roster is None and not self._context.serving
        if any(not worker.dead for worker in finished):
            return
        if self.coordination.over or untrained:
            return self.completion.conclude(self.coordination.digests)
        if finished and self._multi_host is not None:
            return self._multi_host.finish()
        if not finished and not alive and self.completion.stopping is not None and self._multi_host is None:
            self.completion.end(RunOutcome("stopped", self.completion.stopping))

    # ---- status

    def status(self) -> dict[str, object]:
        """What `ps`, `show` and the server ask the agent for."""
        tally, coordination, options = self.recorder.tally, self.coordination, self.options
        roster = coordination.roster
        workers = [
            {
                "worker": worker.name,
                "pid": worker.pid,
                "phase": worker.status.phase.value,
                "tick": worker.status.tick,
                "roster": worker.status.roster,
            }
            for worker in self._context.workers.values()
            if not worker.dead
        ]
        return {
            "name": self.folder.name,
            "state": "stopping" if self.completion.stopping is not None else "running",
            "pid": os.getpid(),
            "workers": workers,
            "wanted": coordination.wanted,
            "least": options.least,
            "most": options.most,
            "members": len(roster.members) if roster else 0,
            "roster": roster.number if roster else 0,
            "settled": coordination.settled,
            "slices": self._context.known_slices,
            "agent": options.agent,
            "agents": sorted(coordination.agents),
            "leader": coordination.leader,
            "steps": tally.steps,
            "step": tally.last_step,
            "epoch": tally.last.epoch if tally.last is not None else None,
            "metrics": tally.metrics,
            "steps_per_s": round(tally.steps_per_s, 3),
            "restarts": self.restarts,
            "stalled": self._progress.stalled,
        }
