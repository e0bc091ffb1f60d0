"""One agent's worker processes: starts them, sends to them, ends them, and finds out why they ended.

A worker that counts as dead is dead for everybody from that moment, whatever the kernel still has to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from stretto.agent.completion import RunOutcome
from stretto.agent.context import JobContext
from stretto.agent.hosts.multi_host import MultiHostJob
from stretto.agent.workers.failure_policy import Death, Failure, FailureHistory, exit_code_of
from stretto.agent.workers.fork_client import ForkServer, describe_exit
from stretto.agent.workers.liveness import Liveness
from stretto.agent.workers.replacement import Replacement
from stretto.agent.workers.worker_handle import WorkerHandle, prepare
from stretto.core.errors import JobFailed
from stretto.core.messages import StopMessage, ToAgent, ToWorker
from stretto.core.schema import Unknown
from stretto.membership.worker_status import Phase


class WorkerPool:
    """`on_message` receives what workers send, `on_death` is called when a process is gone and accounted for."""

    def __init__(
        self,
        context: JobContext,
        *,
        multi_host: MultiHostJob | None,
        replacement: Replacement,
        first_worker: int,
        worker_options: str,
        on_message: Callable[[WorkerHandle, ToAgent | Unknown], None],
        on_death: Callable[[], None],
    ) -> None:
        """`worker_options` is the text of STRETTO_OPTIONS."""
        self._context = context
        self._multi_host = multi_host
        self._replacement = replacement
        self._worker_options = worker_options
        self._on_message = on_message
        self._on_death = on_death
        self._history = FailureHistory()
        self._next_number = first_worker
        self.closing = False
        """The job has ended: deaths are the agent's own doing, nobody is blamed or replaced."""
        self.forks = ForkServer(died=self._died, gone=self._fork_server_ended)
        self.last_death = ""
        """Who died last and of what, in words."""

    def inherit(self, previous: WorkerPool) -> None:
        """Continues the numbering and the record of failures of an earlier attempt."""
        self._next_number, self._history = previous._next_number, previous._history

    # ---- starting and sending

    def start(self) -> WorkerHandle:
        """Starts a worker. Its process is forked in the background."""
        context, number = self._context, self._next_number
        self._next_number += 1
        name = f"w{number}" if self._multi_host is None else self._multi_host.worker_name(number)

        def receive(message: ToAgent | Unknown) -> None:
            self._on_message(worker, message)

        def fail(text: str) -> None:
            self.mark_dead(worker, Liveness("fault", text))

        worker, descriptors = prepare(
            name,
            agent=context.options.agent,
            number=number,
            log=context.folder.log(number),
            order=number if self._multi_host is None else self._multi_host.next_order(),
            on_message=receive,
            on_fault=fail,
            show=lambda line, error: context.recorder.output(name, line, error),
        )
        context.workers[name] = worker
        env = {
            "STRETTO_WORKER": name,
            "STRETTO_AGENT": context.options.agent,
            "STRETTO_RUN": str(context.folder.path.resolve()),
            "STRETTO_OPTIONS": self._worker_options,
        }

        async def fork() -> None:
            try:
                worker.pid = await self.forks.fork(name, descriptors, env=env, threads=context.options.threads)
                worker.started = time.monotonic()
                context.recorder.event("started", f"pid {worker.pid}", worker=name)
            except JobFailed as error:
                context.completion.fail(Failure(str(error)))

        context.coordination.report(worker.status)
        context.tasks.spawn(fork())
        return worker

    def send(self, name: str, message: ToWorker) -> None:
        """Sends to a worker, if it is one of this agent's and alive."""
        worker = self._context.workers.get(name)
        if worker is not None and not worker.dead:
            worker.link.send(message)

    def ask_chief_to_stop(self) -> None:
        """Passes a requested stop on to the chief, if it is here."""
        chief = self._context.coordination.chief
        if self._context.completion.stopping is not None and chief is not None:
            self.send(chief, StopMessage())

    def forget_dead(self, *, needed: set[str]) -> None:
        """Drops dead workers that the roster does not name."""
        workers = self._context.workers
        for name in [name for name, worker in workers.items() if worker.dead and name not in needed]:
            if not workers[name].status.alive:
                self._context.coordination.forget(name)
                del workers[name]

    # ---- ending

    def dismiss(self, worker: WorkerHandle, reason: str, *, refused: bool = False, recurring: bool = False) -> None:
        """Ends a worker that is not at fault, or that does not fit: killed, because it may be anywhere in its script.

        `recurring` says that the next worker would probably be refused for the same reason.
        """
        worker.dismissed = reason
        self._context.recorder.event("refused" if refused else "dismissed", reason, worker=worker.name)
        self.kill(worker)
        if refused:
            self._replacement.refused(worker, reason, recurring=recurring)
        elif worker.status.tick is not None:
            self._replacement.replace(worker, reason, counted=False)

    def mark_dead(self, worker: WorkerHandle, verdict: Liveness) -> None:
        """Kills a worker that counts as dead, and replaces it."""
        if self.closing or worker.dead or worker.verdict is not None:
            return
        worker.verdict = verdict
        self.last_death = f"{worker.name} was {verdict.what}: {verdict.text}"
        self._context.recorder.event(verdict.what, verdict.text, worker=worker.name)
        self.kill(worker)
        if verdict.what == "hung":
            self._context.completion.fail(self._history.hung(worker.name, worker.beat.read()))
        self._replacement.replace(worker, f"was {verdict.what} ({verdict.text})")

    def kill(self, worker: WorkerHandle) -> None:
        """Kills the process and reports the worker as gone."""
        if worker.pid:
            self.forks.kill(worker.pid)
        self._report_gone(worker)

    def fence(self, reason: str) -> None:
        """Kills all workers that train or could. They are not replaced."""
        for worker in self._context.serving:
            worker.dismissed = reason
            self.kill(worker)

    async def close(self) -> None:
        """Kills all processes and ends the fork server. Nobody is blamed or replaced from now on."""
        self.closing = True
        for worker in self._context.workers.values():
            if worker.pid and not worker.dead:
                self.forks.kill(worker.pid)
        await self.forks.close()

    async def close_handles(self) -> None:
        """Reads the remaining output of the workers that `close` has killed."""
        for worker in self._context.workers.values():
            if not worker.dead:
                await worker.drain_output()
                worker.close()

    # ---- deaths

    def failure_of_all(self) -> Failure:
        """Every worker that held the state is gone."""
        crash = self._history.crashes[-1] if self._history.crashes else None
        text = f"every worker that held the state is gone: {self.last_death}"
        return Failure(text, crash.traceback if crash else "", exit_code_of(crash))

    def _died(self, name: str, code: int) -> None:
        self._context.tasks.spawn(self._account_for(self._context.workers[name], code))

    async def _account_for(self, worker: WorkerHandle, code: int) -> None:
        await worker.drain_output()
        worker.dead = True
        if self.closing:
            return worker.close()
        if worker.verdict is None and not worker.dismissed and not worker.left:
            self._explain(worker, code)
        if worker.status.phase is not Phase.FINISHED and worker.status.alive:
            self._report_gone(worker)
        worker.close()
        self._on_death()

    def _report_gone(self, worker: WorkerHandle) -> None:
        worker.status = replace(worker.status, phase=Phase.GONE)
        self._context.coordination.report(worker.status)

    def _explain(self, worker: WorkerHandle, code: int) -> None:
        """Handles a death that the agent did not cause."""
        context, crash = self._context, worker.crash
        if worker.status.phase is Phase.FINISHED and crash is not None:
            context.recorder.event("crashed", f"after job.close(): {crash.summary}", worker=worker.name)
            text = f"the script of {worker.name} failed after job.close(): {crash.summary}"
            return context.completion.fail(Failure(text, crash.traceback, exit_code_of(crash)))
        if worker.status.phase is Phase.FINISHED or context.completion.stopping is not None:
            return
        if crash is not None and crash.tick is None and self._state_survives(worker):
            context.recorder.event("crashed", crash.summary, worker=worker.name)
            self.last_death = f"{worker.name} failed with {crash.summary}"
            why = "its script failed in code that has run before and runs again on a worker that joins or resumes"
            return self._replacement.refused(worker, f"{why}: {crash.summary}", recurring=True)
        death = Death(worker.name, describe_exit(code), code == 0, crash, worker.greeted, worker.beat.read())
        finding = self._history.explain(death, started=context.coordination.roster is not None, script=context.options.script)
        context.recorder.event(finding.what, finding.text, worker=worker.name)
        self.last_death = f"{worker.name} {finding.why}"
        if finding.failure is not None:
            return context.completion.fail(finding.failure)
        self._replacement.replace(worker, finding.why)

    def _state_survives(self, worker: WorkerHandle) -> bool:
        """Whether others hold the state: what a newcomer's script does on its way to them costs the newcomer only."""
        statuses = self._context.coordination.statuses.values()
        return any(status.alive and status.tick is not None for status in statuses if status.worker != worker.name)

    def _fork_server_ended(self, code: int) -> None:
        failure = Failure(
            f"the fork server ended with {describe_exit(code)}, and its workers with it: was the machine out of memory?"
        )
        self._context.completion.end(replace(RunOutcome.failed(failure), lost=self._multi_host is None, own=True))
