"""What the agent does with its workers' messages: statuses for the leader, lines for the journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from stretto.agent.context import JobContext
from stretto.agent.hosts.multi_host import MultiHostJob
from stretto.agent.sizing import SizingController
from stretto.agent.workers.failure_policy import Crash, differences, listed, remedy
from stretto.agent.workers.startup_ranks import StartupRanks
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.agent.workers.worker_pool import WorkerPool
from stretto.core.journal import (
    Checkpoint,
    Commit,
    Digests,
    EpochEnd,
    Evaluation,
    JournalEvent,
    JournalReport,
    LoaderLine,
    Plan,
)
from stretto.core.messages import (
    BarrierMessage,
    CrashMessage,
    EndedMessage,
    FinishedMessage,
    HaltedMessage,
    HelloMessage,
    LeftMessage,
    MisplacedMessage,
    OrderMessage,
    PreparedMessage,
    ReadyMessage,
    ResumedMessage,
    SwitchedMessage,
    ToAgent,
)
from stretto.core.schema import VERSION, Unknown
from stretto.core.source import comparable
from stretto.core.text import quantity
from stretto.membership.worker_status import Phase


class WorkerMessages:
    """Handles what one agent's workers send. Ignores a worker that counts as dead or was dismissed."""

    def __init__(
        self,
        context: JobContext,
        *,
        pool: WorkerPool,
        startup_ranks: StartupRanks,
        sizing: SizingController,
        multi_host: MultiHostJob | None,
        balance: Callable[[], None],
        check_completed: Callable[[], None],
    ) -> None:
        self._context = context
        self._options = context.options
        self._recorder = context.recorder
        self._coordination = context.coordination
        self._pool = pool
        self._startup_ranks = startup_ranks
        self._sizing = sizing
        self._multi_host = multi_host
        self._balance = balance
        self._check_completed = check_completed
        self._fingerprint: Mapping[str, str] | None = None
        self._fingerprint_of = ""
        self._unknown: set[str] = set()

    def handle(self, worker: WorkerHandle, message: ToAgent | Unknown) -> None:
        if worker.dead or worker.verdict is not None:
            return
        if worker.dismissed:
            return  # nothing that it still sends can bring it back
        if not self._record(message):
            self._dispatch(worker, message)

    def _record(self, message: ToAgent | Unknown) -> bool:
        """Writes messages that are journal lines as they are, once for all workers. Whether it was one of these."""
        match message:
            case LoaderLine():
                self._recorder.once(message, message.loader)
            case EpochEnd():
                self._recorder.once(message, message.loader, message.epoch)
            case Evaluation():
                self._recorder.once(message, message.loader, message.epoch, message.step)
            case JournalReport():
                self._recorder.once(message, message.step, message.of)
            case Checkpoint():
                self._recorder.once(message, message.step, message.path)
            case Plan():
                self._recorder.once(message, message.step, message.loader, message.batch, message.parts)
            case _:
                return False
        return True

    def _dispatch(self, worker: WorkerHandle, message: ToAgent | Unknown) -> None:
        match message:
            case HelloMessage():
                self._greet(worker, message)
            case ReadyMessage():
                self._startup_ranks.ready(worker, lambda: self._compare_terms(worker, message))
            case BarrierMessage(count=count):
                self._startup_ranks.barrier(worker, count)
            case PreparedMessage(number=number):
                worker.status = replace(worker.status, prepared=number)
            case SwitchedMessage():
                self._switched(worker, message)
            case ResumedMessage():
                self._recorder.resumed(worker.name, message)
            case HaltedMessage(number=number, tick=tick):
                worker.status = replace(worker.status, halted=number, tick=tick)
                self._coordination.report(worker.status)
                if self._multi_host is not None:
                    self._multi_host.check_connectivity()
            case Commit():
                self._commit(worker, message)
            case OrderMessage(loader=loader, epoch=epoch, order=order):
                self._recorder.order(worker.name, loader=loader, epoch=epoch, order=order)
            case Digests():
                if self._recorder.digests(message):
                    self._context.completion.differ(f"after step {message.step}", message.digests)
            case JournalEvent(what=what, text=text):
                self._context.mixed = self._context.mixed or what == "mixed"
                self._recorder.event(what, text, worker=worker.name)
            case CrashMessage():
                shown = "" if message.usage else message.traceback
                worker.crash = Crash(worker.name, message.tick, message.type, message.text, shown, usage=message.usage)
            case MisplacedMessage(text=text):
                self._pool.dismiss(worker, text, refused=True, recurring=True)
            case FinishedMessage():
                self._finished(worker, message)
            case EndedMessage():
                self._context.tasks.spawn(self._kill_after_grace(worker))
            case LeftMessage():
                self._left(worker)
            case Unknown(kind=kind):
                self._ignore(worker, kind)
            case _:
                pass

    def _greet(self, worker: WorkerHandle, hello: HelloMessage) -> None:
        if hello.schema > VERSION:
            text = f"its stretto {hello.version} sends messages of version {hello.schema}, this agent reads up to {VERSION}"
            return self._pool.dismiss(worker, f"{text}: install the same stretto for both", refused=True, recurring=True)
        worker.greeted = True
        worker.status = replace(worker.status, address=hello.address)
        self._compare_fingerprint(worker, hello.fingerprint)

    def _ignore(self, worker: WorkerHandle, kind: str) -> None:
        """A later version of the worker's side may send more than this agent knows."""
        if kind not in self._unknown:
            self._unknown.add(kind)
            self._recorder.event("warning", f"sent a message {kind[:40]!r} that this agent does not know", worker=worker.name)

    def _commit(self, worker: WorkerHandle, commit: Commit) -> None:
        if commit.order:
            self._recorder.order(worker.name, loader=commit.loader, epoch=commit.epoch, order=commit.order)
        if self._recorder.commit(commit):
            self._sizing.commit(commit)
        self._report_tick(worker, commit)

    def _compare_fingerprint(self, worker: WorkerHandle, fingerprint: Mapping[str, str] | None) -> None:
        """Workers that would compute other bits are refused."""
        if fingerprint is None:
            return
        worker.fingerprint = fingerprint
        if self._fingerprint is None:
            self._fingerprint = fingerprint
            self._fingerprint_of = worker.name
            if self._multi_host is not None:
                self._coordination.propose(fingerprint=dict(fingerprint), fingerprint_of=worker.name)
            return
        self._refuse_other_bits(
            worker,
            differences(
                fingerprint,
                self._coordination.fingerprint or self._fingerprint,
                worker=worker.name,
                of=self._coordination.fingerprint_of or self._fingerprint_of,
            ),
        )

    def _compare_terms(self, worker: WorkerHandle, message: ReadyMessage) -> None:
        """A worker has built its model and its loaders. The chief's define the job; the others must match them."""
        terms = {"settings": dict(message.settings), "contract": dict(message.contract)}
        slices, shape = message.slices, message.shape
        ranks = self._coordination.ranks
        if ranks.chief == worker.name and not ranks.terms:
            return self._context.tasks.spawn(self._begin(worker, terms, slices=slices, shape=shape))
        if ranks.terms:
            mine, chief = terms["contract"], ranks.terms["contract"]
            differing = differences(comparable(mine, chief), comparable(chief, mine), worker=worker.name, of=ranks.chief)
            if differing:
                text = f"would train on other samples or another model: {listed(differing)}. {remedy(differing)}"
                return self._pool.dismiss(worker, text, refused=True, recurring=True)
            self._refuse_other_bits(
                worker, differences(terms["settings"], ranks.terms["settings"], worker=worker.name, of=ranks.chief)
            )
        if worker.serving:
            self._ready(worker, slices=slices, shape=shape)

    async def _begin(self, worker: WorkerHandle, terms: dict[str, dict[str, str]], *, slices: int, shape: str) -> None:
        """Publishes the terms before the others can see that the chief is ready."""
        await self._coordination.begin(worker.name, terms=terms)
        if worker.serving:
            self._ready(worker, slices=slices, shape=shape)
            self._startup_ranks.release()

    def _refuse_other_bits(self, worker: WorkerHandle, differing: list[str]) -> None:
        if not differing:
            return
        text = f"would compute other bits: {listed(differing)}"
        if self._options.allow_mixed:
            if not self._context.mixed:
                self._recorder.event(
                    "warning",
                    f"{text}; admitted by --allow-mixed, so the result is no longer the same bits for any number of workers",
                    worker=worker.name,
                )
            self._context.mixed = True
        elif not worker.dismissed:
            self._pool.dismiss(worker, f"{text}. Make them alike, or allow it with --allow-mixed", refused=True, recurring=True)

    def compare_fingerprints(self) -> None:
        """Compares all workers with the job's fingerprint, which may come from another host."""
        self._fingerprint = self._coordination.fingerprint or self._fingerprint
        for worker in list(self._context.workers.values()):
            if worker.serving and worker.status.phase is not Phase.MEMBER:
                self._compare_fingerprint(worker, worker.fingerprint)

    def _ready(self, worker: WorkerHandle, *, slices: int, shape: str) -> None:
        worker.status = replace(worker.status, phase=Phase.READY, slices=slices, shape=shape)
        self._recorder.event("ready", f"after {time.monotonic() - worker.started:.2f} s", worker=worker.name)
        if not self._context.slices and slices >= self._options.least:
            self._context.slices = slices
            self._coordination.propose(slices=slices)
            if self._coordination.wanted > slices:
                self._recorder.event("warning", f"{too_many(slices, self._coordination.wanted)}; going on with {slices}")
                self._coordination.set_wanted(slices)
        self._coordination.report(worker.status)
        self._sizing.ready(worker.name)
        self._balance()

    def _switched(self, worker: WorkerHandle, message: SwitchedMessage) -> None:
        worker.status = replace(worker.status, phase=Phase.MEMBER, roster=message.number, tick=message.tick)
        self._recorder.switched(worker.name, message)
        self._coordination.report(worker.status)
        self._sizing.switched(worker.name, message)
        self._pool.ask_chief_to_stop()

    def _finished(self, worker: WorkerHandle, message: FinishedMessage) -> None:
        self._context.completion.finished(worker.name, message)
        worker.status = replace(worker.status, phase=Phase.FINISHED, tick=message.tick, digest=message.digest or "")
        self._recorder.event("finished", worker=worker.name)
        self._coordination.report(worker.status)
        self._check_completed()
        if not message.closed:  # after job.close() the script goes on, and says itself when it ends
            self._context.tasks.spawn(self._kill_after_grace(worker))

    async def _kill_after_grace(self, worker: WorkerHandle) -> None:
        """A script that has ended may still have threads and exit handlers. It gets --grace to finish them."""
        await asyncio.sleep(self._options.grace_s)
        if not worker.dead:
            self._recorder.event(
                "warning",
                f"its script ended {self._options.grace_s:g} s ago (--grace), its process does not: it is killed",
                worker=worker.name,
            )
            self._pool.forks.kill(worker.pid)

    def _report_tick(self, worker: WorkerHandle, commit: Commit) -> None:
        """Once a worker has finished, the leader must know of every worker that trains further than it did."""
        if commit.tick is not None and any(status.phase is Phase.FINISHED for status in self._coordination.statuses.values()):
            worker.status = replace(worker.status, tick=commit.tick)
            self._coordination.report(worker.status)

    def _left(self, worker: WorkerHandle) -> None:
        worker.left = True
        roster = self._coordination.roster
        number = roster.number if roster is not None and worker.name in roster.left else worker.status.roster
        worker.status = replace(worker.status, phase=Phase.GONE, roster=number)
        self._recorder.event("left", "in order", worker=worker.name)
        self._coordination.report(worker.status)
        self._balance()


def too_many(slices: int, workers: int) -> str:
    return (
        f"slices={slices} allows at most {quantity(slices, 'worker')}, {workers} were asked for: raise slices= in "
        "job.loader(...) or lower the number of workers"
    )
