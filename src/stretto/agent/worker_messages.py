"""What workers say to their agent, and what the agent makes of it: statuses for the leader, lines for the journal."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stretto.agent.workers.failure_policy import Crash
from stretto.agent.workers.fingerprints import differences, remedy, told
from stretto.agent.workers.liveness import Liveness
from stretto.agent.workers.worker_channel import Message, misread
from stretto.agent.workers.worker_handle import WorkerHandle
from stretto.core.source import comparable
from stretto.core.text import quantity
from stretto.membership.worker_status import Phase

if TYPE_CHECKING:
    from stretto.agent.supervisor import Supervisor

JOURNALLED = {
    "loader": ("loader",),
    "epoch": ("loader", "epoch"),
    "eval": ("loader", "epoch", "step"),
    "report": ("step", "of"),
    "checkpoint": ("step", "path"),
    "plan": ("step", "loader", "batch", "parts"),
}
"""Messages that go to the journal as they are, and what makes two of them the same."""


class WorkerMessages:
    """One agent's ear. A worker that counts as dead, or was let go, is not listened to any more."""

    def __init__(self, agent: Supervisor) -> None:
        self._agent = agent
        self._options = agent.options
        self._recorder = agent.recorder
        self._council = agent.council
        self._fingerprint: dict[str, Any] | None = None
        self._fingerprint_of = ""

    def hear(self, name: str, message: Message) -> None:
        worker = self._agent.workers[name]
        if worker.dead or worker.verdict is not None:
            return
        if worker.dismissed:
            return  # what it still says cannot bring it back
        wrong = misread(message)
        if wrong:
            return self._agent.condemn(worker, Liveness("fault", wrong))
        self._take(worker, message["kind"], {key: value for key, value in message.items() if key != "kind"})

    def _take(self, worker: WorkerHandle, kind: str, fields: dict[str, Any]) -> None:
        match kind:
            case "hello":
                worker.greeted = True
                host, port = fields["address"]
                worker.status = replace(worker.status, address=(str(host), int(port)))
                self._compare(worker, fields.get("fingerprint"))
            case "ready":
                self._agent.early.ready(worker, lambda: self._meet(worker, fields))
            case "barrier":
                self._agent.early.barrier(worker, int(fields["count"]))
            case "prepared":
                worker.status = replace(worker.status, prepared=int(fields["number"]))
            case "switched":
                self._switched(worker, fields)
            case "resumed":
                self._recorder.resumed(worker.name, fields)
            case "halted":
                worker.status = replace(worker.status, halted=int(fields["number"]), tick=fields["tick"])
                self._council.tell(worker.status)
                if self._agent.part is not None:
                    self._agent.part.doubt()
            case "commit":
                if "order" in fields:
                    self._recorder.order(
                        worker.name, loader=int(fields["loader"]), epoch=int(fields["epoch"]), order=str(fields["order"])
                    )
                if self._recorder.commit(fields):
                    self._agent.tuning.commit(fields)
                self._goes_on(worker, fields)
            case "order":
                self._recorder.order(worker.name, **{name: fields[name] for name in ("loader", "epoch", "order")})
            case "digest":
                self._digest(worker, fields)
            case "event":
                self._agent.mixed = self._agent.mixed or fields["what"] == "mixed"
                self._recorder.event(str(fields["what"]), str(fields.get("text", "")), worker=worker.name)
            case "crash":
                shown = "" if fields.get("usage") else str(fields.get("traceback", ""))
                worker.crash = Crash(
                    worker.name, fields.get("tick"), fields["type"], fields["text"], shown, usage=bool(fields.get("usage"))
                )
            case "misplaced":
                self._agent.let_go(worker, fields["text"], refused=True, recurring=True)
            case "finished":
                self._finished(worker, fields)
            case "ended":
                self._agent.spawn(self._see_out(worker))
            case "left":
                self._left(worker, fields)
            case _ if kind in JOURNALLED:
                self._recorder.once(kind, fields, *JOURNALLED[kind])
            case _:
                pass

    def _compare(self, worker: WorkerHandle, fingerprint: dict[str, Any] | None) -> None:
        """Workers that would compute other bits are refused."""
        if fingerprint is None:
            return
        worker.fingerprint = fingerprint
        if self._fingerprint is None:
            self._fingerprint = fingerprint
            self._fingerprint_of = worker.name
            if self._agent.part is not None:
                self._council.agree(fingerprint=fingerprint, fingerprint_of=worker.name)
            return
        self._refuse_other_bits(
            worker,
            differences(
                fingerprint,
                self._council.fingerprint or self._fingerprint,
                worker=worker.name,
                of=self._council.fingerprint_of or self._fingerprint_of,
            ),
        )

    def _meet(self, worker: WorkerHandle, fields: dict[str, Any]) -> None:
        """A worker has made its model and its loaders. What the chief has made is what the job is; others must fit it."""
        terms = {"settings": dict(fields["settings"]), "contract": dict(fields["contract"])}
        slices, shape = int(fields["slices"]), str(fields["shape"])
        ranks = self._council.ranks
        if ranks.chief == worker.name and not ranks.terms:
            return self._agent.spawn(self._begin(worker, terms, slices=slices, shape=shape))
        if ranks.terms:
            mine, chief = terms["contract"], ranks.terms["contract"]
            found = differences(comparable(mine, chief), comparable(chief, mine), worker=worker.name, of=ranks.chief)
            if found:
                text = f"would train on other samples or another model: {told(found)}. {remedy(found)}"
                return self._agent.let_go(worker, text, refused=True, recurring=True)
            self._refuse_other_bits(
                worker, differences(terms["settings"], ranks.terms["settings"], worker=worker.name, of=ranks.chief)
            )
        if worker.serving:
            self._ready(worker, slices=slices, shape=shape)

    async def _begin(self, worker: WorkerHandle, terms: dict[str, dict[str, str]], *, slices: int, shape: str) -> None:
        """The others hear of the terms before they hear that the chief is ready."""
        await self._council.begin(worker.name, terms=terms)
        if worker.serving:
            self._ready(worker, slices=slices, shape=shape)
            self._agent.early.look()

    def _refuse_other_bits(self, worker: WorkerHandle, found: list[str]) -> None:
        if not found:
            return
        text = f"would compute other bits: {told(found)}"
        if self._options.allow_mixed:
            if not self._agent.mixed:
                self._recorder.event(
                    "warning",
                    f"{text}; admitted by --allow-mixed, so the result is no longer the same bits for any number of workers",
                    worker=worker.name,
                )
            self._agent.mixed = True
        elif not worker.dismissed:
            self._agent.let_go(worker, f"{text}. Make them alike, or allow it with --allow-mixed", refused=True, recurring=True)

    def compare(self) -> None:
        """The job's fingerprint is known: it may be another host's."""
        self._fingerprint = self._council.fingerprint or self._fingerprint
        for worker in list(self._agent.workers.values()):
            if worker.serving and worker.status.phase is not Phase.MEMBER:
                self._compare(worker, worker.fingerprint)

    def _ready(self, worker: WorkerHandle, *, slices: int, shape: str) -> None:
        worker.status = replace(worker.status, phase=Phase.READY, slices=slices, shape=shape)
        self._recorder.event("ready", f"after {time.monotonic() - worker.started:.2f} s", worker=worker.name)
        if not self._agent.slices and slices >= self._options.least:
            self._agent.slices = slices
            self._council.agree(slices=slices)
            if self._council.wanted > slices:
                self._recorder.event("warning", f"{too_many(slices, self._council.wanted)}; going on with {slices}")
                self._council.want(slices)
        self._council.tell(worker.status)
        self._agent.tuning.ready(worker.name)
        self._agent.balance()

    def _switched(self, worker: WorkerHandle, fields: dict[str, Any]) -> None:
        worker.status = replace(worker.status, phase=Phase.MEMBER, roster=int(fields["number"]), tick=fields["tick"])
        self._recorder.switched(worker.name, fields)
        self._council.tell(worker.status)
        self._agent.tuning.switched(worker.name, fields)
        self._agent.ask_chief_to_stop()

    def _digest(self, worker: WorkerHandle, fields: dict[str, Any]) -> None:
        step = int(fields["step"])
        if "digests" in fields:
            differ = self._recorder.digests(step, dict(fields["digests"]))
        else:
            members = self._council.roster.workers if self._council.roster is not None else ()
            differ = self._recorder.digest(step, worker.name, str(fields["digest"]), members=members)
        if differ:
            self._agent.ending.differ(f"after step {step}", differ)

    def _finished(self, worker: WorkerHandle, fields: dict[str, Any]) -> None:
        self._agent.ending.finished(worker.name, fields)
        worker.status = replace(
            worker.status, phase=Phase.FINISHED, tick=fields.get("tick"), digest=str(fields.get("digest") or "")
        )
        self._recorder.event("finished", worker=worker.name)
        self._council.tell(worker.status)
        self._agent.see_whether_over()
        if not fields.get("closed"):  # after job.close() the script goes on; its end is told by itself
            self._agent.spawn(self._see_out(worker))

    async def _see_out(self, worker: WorkerHandle) -> None:
        """A script that has ended may still have threads and exit handlers; they are not waited for without end."""
        await asyncio.sleep(self._options.grace_s)
        if not worker.dead:
            self._recorder.event(
                "warning",
                f"its script ended {self._options.grace_s:g} s ago (--grace), its process does not: it is killed",
                worker=worker.name,
            )
            self._agent.forks.kill(worker.pid)

    def _goes_on(self, worker: WorkerHandle, fields: dict[str, Any]) -> None:
        """Once somebody has finished, the leader has to know of everybody who trains further than that one did."""
        if any(one.phase is Phase.FINISHED for one in self._council.statuses.values()) and isinstance(fields.get("tick"), int):
            worker.status = replace(worker.status, tick=fields["tick"])
            self._council.tell(worker.status)

    def _left(self, worker: WorkerHandle, fields: dict[str, Any]) -> None:
        worker.left = True
        roster = self._council.roster
        let_go = roster.number if roster is not None and worker.name in roster.left else worker.status.roster
        number = int(fields.get("number") or let_go)
        worker.status = replace(worker.status, phase=Phase.GONE, roster=number)
        self._recorder.event("left", "in order", worker=worker.name)
        self._council.tell(worker.status)
        self._agent.balance()


def too_many(slices: int, workers: int) -> str:
    return (
        f"slices={slices} allows at most {quantity(slices, 'worker')}, {workers} were asked for: raise slices= in "
        "job.loader(...) or lower the number of workers"
    )
