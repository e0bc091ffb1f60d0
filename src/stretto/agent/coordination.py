"""Coordination with the job's other agents: this agent writes its workers' statuses to the store and reads the leader's decisions.

Every agent has one, and is a candidate for leader through it. `membership.store_schema` says who writes what in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace

from stretto.agent.completion import RunOutcome
from stretto.core.json_types import JsonObject, to_int, to_object
from stretto.core.roster import Roster
from stretto.membership import store_schema
from stretto.membership.leader import Leader
from stretto.membership.lease_session import LeaseSession
from stretto.membership.startup_ranks import Ranks, assign_rank, begin, passed
from stretto.membership.stores.store import Guard, Put, Store, StoreError
from stretto.membership.stores.watch_cache import WatchCache
from stretto.membership.timeouts import Timeouts
from stretto.membership.worker_status import Phase, WorkerStatus

ALONE = Timeouts(lease_s=86_400.0, fence_s=10 * 86_400.0)
"""For a store inside the only agent: it cannot be out of reach, so a slow machine must not cost anybody the lease."""
RETRIES = 200
RETRY_S = 0.5
"""Writes retry for longer than the longest store outage that training survives."""
ANNOUNCE_S = 3.0


@dataclass(frozen=True, slots=True)
class RosterPublished:
    """The leader has published a roster."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class RosterBroken:
    """A member of the roster is gone: everybody stops at the last common step."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerDismissed:
    """The leader has no use for one of this agent's workers."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """The number of workers that this agent shall run may have changed."""


@dataclass(frozen=True, slots=True)
class StoreChanged:
    """Something in the store has changed. Frequent."""


@dataclass(frozen=True, slots=True)
class FingerprintKnown:
    """The job's fingerprint is known, or another one than before."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user wants the whole job to end."""

    now: bool


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """A user wants this agent out of the job."""


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The leader says that the job is over."""


@dataclass(frozen=True, slots=True)
class JobLost:
    """Every worker that held the state is gone."""


@dataclass(frozen=True, slots=True)
class FailureReported:
    """The job failed, here or on another host."""

    reason: str
    traceback: str = ""
    exit_code: int = 1


@dataclass(frozen=True, slots=True)
class EndedWhileAway:
    """The other agents ended the job while this one could not reach the store."""

    state: str
    digest: str | None


@dataclass(frozen=True, slots=True)
class JobReplaced:
    """The store has another job under this one's name."""

    reason: str


CoordinationEvent = (
    RosterPublished
    | RosterBroken
    | WorkerDismissed
    | TargetChanged
    | StoreChanged
    | FingerprintKnown
    | StopRequested
    | LeaveRequested
    | JobFinished
    | JobLost
    | FailureReported
    | EndedWhileAway
    | JobReplaced
)
"""What the store tells an agent."""


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """What the first agent of a job writes into the store."""

    least: int
    most: int
    wanted: int


class Coordination:
    """Holds no state of its own but the statuses of this agent's workers, and which decisions it has emitted."""

    def __init__(
        self,
        store: Store,
        *,
        on_event: Callable[[CoordinationEvent], None],
        on_fence: Callable[[], None],
        agent: str,
        slots: int,
        request: ScaleRequest,
        timing: Timeouts = ALONE,
        job: str = "",
        card: Mapping[str, object] | None = None,
        life: int = 1,
    ) -> None:
        """`on_event` receives every decision, in order. `on_fence` is called when the store has been out of reach for too long: it
        must have killed all workers when it returns. `job` is the id of a job on several hosts, `life` the number of this attempt,
        `card` what the other agents shall know of this one."""
        self._emit = on_event
        self._store = store
        self._agent = agent
        self._request = request
        self._job = job
        self._life = life
        self._timing = timing
        self._card: dict[str, object] = {"agent": agent, "slots": slots, **(card or {})}
        self._mirror = WatchCache(store, doubt=self._check_job)
        self._presence = LeaseSession(store, agent=agent, timing=timing, on_fence=on_fence)
        self._leader = Leader(
            store, agent=agent, mirror=self._mirror, presence=self._presence, timing=timing, on_lost=lambda lost: lost < life
        )
        self._mine: dict[str, WorkerStatus] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._roster = self._broken = 0
        self._dismissed: set[str] = set()
        self._target: int | None = None
        self._wish: int | None = None
        self.cut_off = False
        """The store cannot be reached: its entries here may be stale."""
        self._concluded = False
        self._fingerprint: dict[str, str] = {}
        self._stopping = 0
        self.update_card()

    async def open(self) -> None:
        """Joins the job, or begins it."""
        if self._job:
            return self._begin()
        puts = [
            Put(store_schema.JOB, store_schema.text({"least": self._request.least, "most": self._request.most, "slices": 0})),
            Put(store_schema.WANTED, store_schema.text({"workers": self._request.wanted})),
        ]
        await self._store.commit(puts, guards=[Guard(store_schema.JOB, 0)])
        self._begin()

    def _begin(self) -> None:
        parts = (self._mirror.run(), self._presence.run(), self._leader.run(), self._follow())
        self._tasks = [asyncio.create_task(part) for part in parts]
        for task in list(self._tasks):
            task.add_done_callback(self._part_ended)

    async def close(self) -> None:
        """Workers must have been stopped."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._presence.leave()
        except StoreError:
            pass  # the lease will run out

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            self._emit(FailureReported(f"the agent's part in the leadership failed: {task.exception()!r}"))

    # ---- what the store says

    @property
    def roster(self) -> Roster | None:
        return store_schema.roster(self._mirror.entries)

    @property
    def statuses(self) -> Mapping[str, WorkerStatus]:
        """Of all workers of the job; this agent's own as last reported."""
        return {**store_schema.statuses(self._mirror.entries), **self._mine}

    @property
    def wanted(self) -> int:
        """How many workers the job shall have. A number that this agent has just set counts at once."""
        return self._wish if self._wish is not None else self._stored_wish()

    def _stored_wish(self) -> int:
        return to_int(store_schema.value(self._mirror.entries, store_schema.WANTED).get("workers"), self._request.wanted)

    @property
    def target(self) -> int:
        """How many workers this agent shall run."""
        return self._target or 0

    @property
    def over(self) -> bool:
        """The job has finished: a worker holds the final state, and no worker trains further."""
        return store_schema.value(self._mirror.entries, store_schema.OUTCOME).get("state") == "finished"

    @property
    def settled(self) -> bool:
        """The last roster is in effect on all of its members."""
        roster, statuses = self.roster, self.statuses
        if roster is None or store_schema.broken(self._mirror.entries) >= roster.number:
            return False
        return all(worker in statuses and statuses[worker].roster >= roster.number for worker in roster.workers)

    @property
    def chief(self) -> str | None:
        roster = self.roster
        return roster.members[0].worker if roster is not None else None

    @property
    def chief_is_here(self) -> bool:
        roster = self.roster
        return roster is not None and roster.members[0].agent == self._agent

    @property
    def agents(self) -> dict[str, JsonObject]:
        """The cards of all agents of the job."""
        return store_schema.under(self._mirror.entries, store_schema.AGENTS)

    @property
    def room(self) -> int:
        """Workers that all agents together may run."""
        return sum(to_int(card.get("slots")) for card in self.agents.values() if not card.get("draining"))

    @property
    def leader(self) -> str | None:
        return store_schema.leader(self._mirror.entries)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the job's final state, each with a worker that reported it."""
        digests = to_object(store_schema.value(self._mirror.entries, store_schema.OUTCOME).get("digests"))
        return {digest: str(worker) for digest, worker in digests.items()}

    @property
    def fingerprint(self) -> dict[str, str]:
        """The machine and the versions of the job's first worker; empty before they are known."""
        fingerprint = to_object(store_schema.value(self._mirror.entries, store_schema.JOB).get("fingerprint"))
        return {name: str(value) for name, value in fingerprint.items()}

    @property
    def fingerprint_of(self) -> str:
        return str(store_schema.value(self._mirror.entries, store_schema.JOB).get("fingerprint_of", ""))

    @property
    def life(self) -> int:
        """How often the job has begun, as the store says."""
        return store_schema.life_number(self._mirror.entries)

    @property
    def slices(self) -> int:
        return to_int(store_schema.value(self._mirror.entries, store_schema.JOB).get("slices"))

    @property
    def ranks(self) -> Ranks:
        """Who is chief before the first roster of this life."""
        ranks = Ranks.from_dict(store_schema.value(self._mirror.entries, store_schema.RANKS))
        return ranks if ranks.life == self._life else Ranks(self._life)

    # ---- what this agent says

    def report(self, status: WorkerStatus) -> None:
        """Writes the status of one of this agent's workers. A worker that was asked to leave stays so."""
        before = self._mine.get(status.worker)
        if before is not None and before.leaving:
            status = replace(status, leaving=True)
        self._mine[status.worker] = status
        self._presence.put(store_schema.WORKERS + status.worker, status.to_dict())

    def forget(self, worker: str) -> None:
        """A dead worker that no roster can name any more."""
        self._mine.pop(worker, None)
        self._presence.put(store_schema.WORKERS + worker, None)

    def request_leave(self, worker: str) -> None:
        """Asks the leader to leave one of this agent's workers out of the next roster."""
        self.report(replace(self._mine[worker], leaving=True))

    def set_wanted(self, workers: int) -> None:
        """Sets the number of workers of the whole job."""
        self._wish = workers
        self._write(Put(store_schema.WANTED, store_schema.text({"workers": workers})))

    def update_card(self, **changes: object) -> None:
        """Changes what the other agents know of this one."""
        self._card.update(changes)
        self._presence.put(store_schema.AGENTS + self._agent, self._card)

    def request_stop(self, *, now: bool) -> None:
        """Asks every agent to stop the job."""
        self._write(Put(store_schema.STOP, store_schema.text({"now": now})))

    def request_drain(self, agent: str) -> None:
        """Asks an agent to leave the job, with its workers."""
        self._write(Put(store_schema.DRAINS + agent, store_schema.text({"agent": agent})))

    async def announce_failure(self, outcome: RunOutcome, *, life: int) -> None:
        """The job has failed here: all agents end with it. The first such announcement counts."""
        document = {
            "state": "failed",
            "reason": outcome.error,
            "traceback": outcome.traceback[-20_000:],
            "exit_code": outcome.exit_code,
            "life": life,
        }
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(ANNOUNCE_S):
                await self._store.commit(
                    [Put(store_schema.OUTCOME, store_schema.text(document))], guards=[Guard(store_schema.OUTCOME, 0)]
                )

    def propose(self, **facts: object) -> None:
        """Writes what the first worker knows of the job (its slices, its fingerprint), unless it is known already."""
        job = store_schema.value(self._mirror.entries, store_schema.JOB)
        if any(not job.get(name) for name in facts):
            self._spawn(self._propose(facts))

    async def _propose(self, facts: Mapping[str, object]) -> None:
        async def attempt() -> bool:
            entries = {entry.key: entry for entry in (await self._store.read(store_schema.JOB))[0]}
            job = store_schema.value(entries, store_schema.JOB)
            missing = {name: value for name, value in facts.items() if not job.get(name)}
            if not job or not missing:
                return True
            guard = Guard(store_schema.JOB, store_schema.revision(entries, store_schema.JOB))
            return (
                await self._store.commit([Put(store_schema.JOB, store_schema.text({**job, **missing}))], guards=[guard]) is not None
            )

        await self._retry(attempt)

    async def take_rank(self, worker: str, *, mine: Callable[[], set[str]]) -> Ranks:
        """A rank for a worker that is being started; `mine` are this agent's workers that live."""

        def change(ranks: Ranks) -> Ranks:
            statuses, agents = self.statuses, self.agents
            gone = {name for name in ranks.holders if self._is_gone(name, ranks.agent(name), statuses, agents, mine())}
            return assign_rank(ranks, worker, agent=self._agent, life=self._life, began=self.roster is not None, gone=gone)

        return await self._revise_ranks(change)

    def _is_gone(
        self, worker: str, agent: str, statuses: Mapping[str, WorkerStatus], agents: Mapping[str, object], mine: set[str]
    ) -> bool:
        if agent == self._agent:
            return worker not in mine
        return agent not in agents or (worker in statuses and not statuses[worker].alive)

    def pass_barrier(self, worker: str, count: int) -> None:
        """The chief has come to its barrier number `count`."""

        async def write() -> None:
            await self._revise_ranks(lambda ranks: passed(ranks, worker, count=count))

        self._spawn(write())

    async def begin(self, worker: str, *, terms: Mapping[str, Mapping[str, str]]) -> None:
        """The chief is ready. Returns once every agent can know what it has made."""
        await self._revise_ranks(lambda ranks: begin(ranks, worker, terms=terms))

    async def _revise_ranks(self, change: Callable[[Ranks], Ranks]) -> Ranks:
        """Repeats until it succeeds: a worker that waits for its rank cannot start without it."""
        while True:
            version = self._mirror.version
            if self._mirror.revision and self._mirror.trouble is None:
                entries = self._mirror.entries
                before = Ranks.from_dict(store_schema.value(entries, store_schema.RANKS))
                ranks = change(before)
                if ranks == before:
                    return ranks
                guards = [Guard(key, store_schema.revision(entries, key)) for key in (store_schema.RANKS, store_schema.ROSTER)]
                revision = None
                with contextlib.suppress(StoreError):
                    revision = await self._store.commit(
                        [Put(store_schema.RANKS, store_schema.text(ranks.to_dict()))], guards=guards
                    )
                while revision is not None and self._mirror.revision < revision:
                    await self._mirror.changed(RETRY_S)
                if revision is not None:
                    return ranks
            await self._mirror.changed(RETRY_S, since=version)

    def _write(self, put: Put) -> None:
        async def attempt() -> bool:
            return await self._store.commit([put]) is not None

        self._spawn(self._retry(attempt))

    async def _retry(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Repeats an attempt until it succeeds, for as long as an outage of the store may last."""
        for _ in range(RETRIES):
            with contextlib.suppress(StoreError):
                if await attempt():
                    return
            await asyncio.sleep(RETRY_S)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._part_ended)

    # ---- events

    def _check_job(self, entries: store_schema.Entries) -> str:
        """Why this is not the store of this agent's job, or nothing."""
        job = store_schema.value(entries, store_schema.JOB).get("id", "") if self._job else ""
        if job == self._job:
            return ""
        ended = store_schema.value(entries, store_schema.ENDED)
        if ended.get("id") == self._job:
            digest = ended.get("digest")
            self._emit(EndedWhileAway(str(ended.get("state", "failed")), str(digest) if digest else None))
            return "the job has ended"
        if job:
            host = store_schema.value(entries, store_schema.JOB).get("host")
            self._emit(JobReplaced(f"another job of this name has begun in the store (on host {host})"))
        return "the store does not know this job any more"

    async def _follow(self) -> None:
        while not self._concluded:
            if self._mirror.trouble is not None:
                self.cut_off = True
            elif self._mirror.revision:
                back, self.cut_off = self.cut_off, False
                self._emit_changes()
                if back:
                    self._emit(TargetChanged())
            await self._mirror.changed()

    def _emit_changes(self) -> None:
        """Breaks before rosters: a rescue comes after the break that it answers."""
        entries = self._mirror.entries
        if self._wish == self._stored_wish():
            self._wish = None
        if self._job and self.life != self._life:
            return self._handle_other_attempt()
        broken = store_schema.value(entries, store_schema.BROKEN)
        if to_int(broken.get("number")) > self._broken:
            self._broken = to_int(broken["number"])
            self._emit(RosterBroken(self._broken, str(broken.get("reason", ""))))
        roster = store_schema.roster(entries)
        if roster is not None and roster.number > self._roster:
            self._roster = roster.number
            self._emit(RosterPublished(roster))
        self._emit_dismissals(entries)
        target = to_int(store_schema.value(entries, store_schema.TARGETS + self._agent).get("workers"))
        if target != self._target:
            self._target = target
            self._emit(TargetChanged())
        self._emit_requests(entries)
        self._emit(StoreChanged())
        outcome = store_schema.value(entries, store_schema.OUTCOME)
        if outcome:
            self._conclude(outcome)

    def _handle_other_attempt(self) -> None:
        """Ignores what an earlier attempt left. A later one has begun because all workers of this one were lost, or seemed so."""
        if self.life > self._life:
            self._conclude({"state": "lost"})

    def _emit_requests(self, entries: store_schema.Entries) -> None:
        stop = store_schema.revision(entries, store_schema.STOP)
        if stop > self._stopping:
            self._stopping = stop
            self._emit(StopRequested(now=bool(store_schema.value(entries, store_schema.STOP).get("now"))))
        if store_schema.DRAINS + self._agent in entries:
            self._emit(LeaveRequested())
        fingerprint = self.fingerprint
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            self._emit(FingerprintKnown())

    def _emit_dismissals(self, entries: store_schema.Entries) -> None:
        for worker, document in store_schema.under(entries, store_schema.DISMISSED).items():
            status = self._mine.get(worker)
            if worker not in self._dismissed and status is not None and status.phase is not Phase.GONE:
                self._dismissed.add(worker)
                self._emit(WorkerDismissed(worker, str(document.get("reason", ""))))

    def _conclude(self, outcome: JsonObject) -> None:
        self._concluded = True
        match outcome["state"]:
            case "finished":
                self._emit(JobFinished())
            case "lost":
                self._emit(JobLost())
            case _:
                reason, trace = str(outcome.get("reason", "")), str(outcome.get("traceback", ""))
                self._emit(FailureReported(reason, trace, to_int(outcome.get("exit_code"), 1)))
