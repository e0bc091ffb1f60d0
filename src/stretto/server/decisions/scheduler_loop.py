"""Decisions: at intervals, and at once when a job comes or goes, a node changes or a model is reported.

A decision is: a snapshot, the policy's answer, the guards, events for whatever changes, and a row with the reasons.
Nothing is changed by a policy that fails: the old allocation stays and an alarm is raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stretto.clusters.base import RunRef
from stretto.core.errors import PolicyError
from stretto.core.text import quantity
from stretto.scheduling import registry
from stretto.scheduling.guards import GuardLimits
from stretto.scheduling.pipeline import PipelineSettings
from stretto.scheduling.types import Placement, SchedulableJob, size
from stretto.server.decisions.policy_runner import Answer, PolicyInput, Runner
from stretto.server.decisions.snapshot import SCHEDULED, job_view, never, nodes_view, places_view, without_held
from stretto.server.jobs.exit_classification import next_run
from stretto.server.jobs.state import Conflict, JobRecord, NewEvent
from stretto.server.models import ACTIVE, JobState
from stretto.server.reconciler import Reconciler
from stretto.server.storage.decision_log import DecisionLog
from stretto.server.storage.repository import StorageDown

GATHER_S = 0.05
"""Triggers within this time share one decision."""
AT_MOST_EVERY_S = 0.2
SHARE = 4.0
"""The pause after a decision, in multiples of its duration: decisions leave most of the machine to others, however many jobs
there are."""
MOST_PAUSE_S = 2.0
KEPT_IDLE_S = 300.0
"""Decisions that change nothing are recorded at most this often."""


@dataclass(slots=True)
class SchedulerLoop:
    """Decides when something has changed, and at intervals. A decision that fails changes no allocation.

    `reasons` are those of the last decision, by job.
    """

    conductor: Reconciler
    ledger: DecisionLog
    runner: Runner
    policy: str
    cordoned: frozenset[str] = frozenset()
    last: int | None = None
    last_at: float | None = None
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    impossible: dict[str, str] = field(default_factory=dict[str, str])
    """Jobs that no decision can start, and why. Policies do not see them, so no other job waits for them."""
    alarm: str | None = None
    _idle_at: float = 0.0

    async def loop(self) -> None:
        conductor = self.conductor
        while True:
            try:
                await asyncio.wait_for(conductor.wake.wait(), conductor.settings.interval_s)
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                conductor.triggers.append("interval")
            conductor.wake.clear()
            why, conductor.triggers = conductor.triggers, []
            begun = time.perf_counter()
            await self.decide(_why(why))
            await asyncio.sleep(min(MOST_PAUSE_S, max(AT_MOST_EVERY_S, SHARE * (time.perf_counter() - begun))))

    async def decide(self, why: str) -> None:
        begun = time.perf_counter()
        self.impossible = self._impossible()
        snapshot = self._snapshot()
        try:
            answer = await self.runner.decide(snapshot)
        except PolicyError as error:
            await self._failed(why, str(error), time.perf_counter() - begun)
            return
        seconds = time.perf_counter() - begun
        self.conductor.measures.decision.observe(seconds)
        self.alarm = None
        await self.conductor.clear("policy")
        answer = replace(answer, reasons=self._reasons(snapshot, answer))
        changes = await self._carry_out(snapshot, answer)
        self.reasons = {**answer.reasons, **self.impossible}
        await self._write(why, seconds, changes)
        await self.conductor.apply()
        if changes:
            self.conductor.hub.allocated()

    def _impossible(self) -> dict[str, str]:
        conductor = self.conductor
        nodes = conductor.cluster.nodes()  # with the cordoned ones: they may come back
        quota = conductor.settings.quota
        waiting = conductor.book.with_state(JobState.QUEUED)
        why = {record.id: never(record, conductor.book.progress[record.id], nodes=nodes, quota=quota) for record in waiting}
        return {job: words for job, words in why.items() if words}

    @property
    def resizes(self) -> bool:
        """Whether the policy shrinks running jobs for waiting ones."""
        return not registry.load(self.policy).traits.fixed_sizes

    def _snapshot(self) -> PolicyInput:
        conductor = self.conductor
        records = [record for record in conductor.book.with_state(*SCHEDULED) if record.id not in self.impossible]
        leaving = conductor.book.with_state(*(ACTIVE - SCHEDULED))
        nodes = nodes_view(conductor.cluster.nodes(), cordoned=self.cordoned)
        progress = conductor.book.progress
        quota = conductor.settings.quota
        families = conductor.book.families
        paces = {record.id: pace for record in records if (pace := progress[record.id].pace()) is not None}
        for record in records:
            if record.id in paces:
                families.runs(record, paces[record.id])
        # A job that has not begun is assumed to be as fast as its family: with a declared number of steps, this gives its length.
        paces |= {record.id: pace for record in records if record.id not in paces and (pace := families.pace(record)) is not None}
        usable = without_held(nodes, leaving)
        now = time.time()
        jobs = [
            job_view(
                record,
                progress[record.id],
                quota=quota,
                now=now,
                finished=families.took(record),
                batch=paces[record.id][0] if record.id in paces else None,
            )
            for record in records
        ]
        settings = conductor.settings
        return PolicyInput(
            policy=self.policy,
            jobs=jobs,
            nodes=usable,
            places=places_view(records),
            time_s=now,
            paces=paces,
            settings=PipelineSettings(turn_s=settings.turn_s, guards=GuardLimits(cooldown_s=settings.cooldown_s)),
        )

    def _reasons(self, snapshot: PolicyInput, answer: Answer) -> dict[str, str]:
        """The policy's reasons; own ones where limits or waiting jobs had changed a placement before the policy saw it."""
        records = self.conductor.book.records
        seated = [records[job.name].name for job in snapshot.jobs if job.name in records and _seated(records[job.name], answer)]
        reasons: dict[str, str] = {}
        for job in snapshot.jobs:
            record, workers = records.get(job.name), size(answer.places.get(job.name, ()))
            words = answer.reasons.get(job.name, "")
            if record is not None and workers and workers == size(answer.shown.get(job.name, ())) != record.wanted:
                words = _moved(record, workers, job, seated, _seated(record, answer))
            elif record is not None and workers and _seated(record, answer):
                words = "; ".join([f"started on {quantity(workers, 'worker')}", *words.split("; ")[1:]])
            reasons[job.name] = words or _plain(workers, job.least)
        return reasons

    async def _carry_out(self, snapshot: PolicyInput, answer: Answer) -> list[dict[str, Any]]:
        """Appends an event for every change, jobs that shrink first, and returns the changes."""
        drafts: list[tuple[JobRecord, NewEvent, dict[str, Any]]] = []
        for job in snapshot.jobs:
            record = self.conductor.book.records.get(job.name)
            if record is None or record.state not in SCHEDULED:
                continue
            placement = answer.places.get(job.name, ())
            draft = await self._draft(record, placement, answer.reasons.get(job.name, ""))
            if draft is not None:
                change = {"job": record.id, "name": record.name, "tenant": record.tenant, "before": record.wanted}
                change |= {"after": size(placement), "reason": answer.reasons.get(job.name, "")}
                drafts.append((record, draft, change))
        drafts.sort(key=lambda draft: draft[2]["after"] - draft[2]["before"])
        done = await asyncio.gather(*(self._append(record, draft) for record, draft, _ in drafts))
        return [change for ok, (_, _, change) in zip(done, drafts, strict=True) if ok]

    async def _draft(self, record: JobRecord, placement: Placement, reason: str) -> NewEvent | None:
        nodes = {node: count for node, count in placement if count}
        workers = sum(nodes.values())
        if nodes == record.nodes:
            return None
        if workers == 0:
            if lost := self._lost_nodes(record):
                text = f"set back to the queue: {', '.join(lost)} is gone, and no other node has room"
                return NewEvent("pausing", text, {"by": "policy"})
            if record.state is JobState.RUNNING and record.spec.preemptible:
                return NewEvent("pausing", f"set back to the queue: {reason or 'others go first'}", {"by": "policy"})
            return None
        data: dict[str, Any] = {"nodes": nodes, "workers": workers, "before": record.wanted, "reason": reason}
        if record.state is JobState.QUEUED:
            ref = RunRef(record.id, record.life, record.run)
            resumable = record.life > 0 and await self.conductor.cluster.resumable(ref)
            data["run"] = record.run if resumable else next_run(record)
        words = f"{record.wanted} → {quantity(workers, 'worker')}" if record.wanted else f"gets {quantity(workers, 'worker')}"
        return NewEvent("allocated", f"{words}: {reason}" if reason else words, data)

    def _lost_nodes(self, record: JobRecord) -> list[str]:
        """Nodes of this job that the cluster has lost. Its workers there have to move or wait, even if it is not preemptible."""
        names = {node.name for node in self.conductor.cluster.nodes()}
        return [name for name in record.nodes if name not in names]

    async def _append(self, record: JobRecord, draft: NewEvent) -> bool:
        try:
            await self.conductor.book.append(record.id, [draft], expected=record.version)
            return True
        except Conflict:
            self.conductor.trigger("a job changed during a decision")
            return False
        except StorageDown as error:
            await self.conductor.alarm("database", str(error))
            return False

    async def _failed(self, why: str, text: str, seconds: float) -> None:
        self.alarm = text
        self.conductor.measures.failures.inc()
        await self.conductor.alarm("policy", f"{text}; the old allocation is kept")
        await self._write(why, seconds, [], alarm=text)
        await self.conductor.apply()

    async def _write(self, why: str, seconds: float, changes: Sequence[Mapping[str, Any]], *, alarm: str | None = None) -> None:
        now = time.time()
        if not changes and alarm is None and time.monotonic() - self._idle_at < KEPT_IDLE_S and self.last is not None:
            await self.draw()
            return
        self._idle_at = time.monotonic()
        row = {"t": now, "trigger": why[:64], "policy": self.policy, "seconds": seconds, "kept": int(alarm is not None)}
        row |= {"alarm": alarm, "changes": [dict(change) for change in changes]}
        try:
            self.last = await asyncio.to_thread(self.ledger.decide, row, holdings=self.holdings())
            self.last_at = now
        except StorageDown as error:
            await self.conductor.alarm("database", str(error))

    async def draw(self) -> None:
        """Updates the history of slots."""
        try:
            await asyncio.to_thread(self.ledger.draw, self.holdings(), t=time.time())
        except StorageDown as error:
            await self.conductor.alarm("database", str(error))

    def holdings(self) -> dict[tuple[str, str], tuple[str, str, int]]:
        active = self.conductor.book.with_state(*ACTIVE)
        return {(record.id, node): (record.tenant, record.name, count) for record in active for node, count in record.nodes.items()}

    def reason(self, record: JobRecord) -> str:
        """Why a job has its size or waits; for a paused job, why it was paused."""
        return self.reasons.get(record.id, record.reason) if record.state in SCHEDULED else record.pause or record.reason


def _seated(record: JobRecord, answer: Answer) -> bool:
    """Whether the pipeline made room for it before the policy decided."""
    return record.state is JobState.QUEUED and bool(answer.shown.get(record.id))


def _moved(record: JobRecord, workers: int, limit: SchedulableJob, seated: Sequence[str], own: bool) -> str:
    if own:
        return "gets its fewest workers first; the next decision may give it more"
    if workers < record.wanted and workers < limit.most and seated:
        return f"makes room for {', '.join(repr(name) for name in seated[:3])}{' and others' if len(seated) > 3 else ''}"
    return f"its limits are {limit.least} to {limit.most} now"


def _plain(workers: int, least: int) -> str:
    return "the policy decided so" if workers else f"waits: the policy gives its {quantity(least, 'slot')} to others now"


def _why(triggers: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(triggers)) or "interval"
