"""Where things are in the store, and the pure steps between the store's entries and the protocol's values.

| key | value | written by | lease |
|---|---|---|---|
| `job` | `{least, most, slices, …}`: what was asked for; others compare theirs with it | first agent | |
| `life` | `{life}`: how often the job has begun, from 1 on | leader | |
| `wanted` | `{workers}`: the number of workers asked for | anybody | |
| `agents/ID` | `{agent, slots, unreached, …}`: a node that may run up to `slots` workers | the agent | agent's |
| `workers/ID` | `WorkerStatus.to_dict()` | the agent | agent's |
| `leader` | `{agent, term, lease}` | the leader | agent's |
| `term` | `{term}`: of the last leader | the leader | |
| `roster` | `Roster.to_dict()`: the last one published | leader | |
| `broken` | `{number, reason}`: everything up to this number is broken | leader | |
| `dismissed/ID` | `{worker, reason}`: this worker has to go | leader | |
| `targets/AGENT` | `{workers}`: how many workers this agent shall keep running | leader | |
| `outcome` | `{state: finished, failed or lost; reason; tick; life; digests}` | leader; `failed` by any agent | |
| `stop` | `{now}`: the job shall end, at the next boundary or at once | anybody | |
| `drains/AGENT` | `{agent}`: this agent's workers shall leave, and then the agent | anybody | |
| `ranks` | `{life, chief, passed, holders, terms}`: the chief before the first roster, all ranks, the chief's terms | agents | |
| `joins/HOST` | `{count}`: agents that this host has had, which makes their names unique | the agent | |
| `ended` | `{id, state, digest, …}`: what was left of a job that has ended, for those who come late | last agent | a minute |

What an agent does: it keeps its own entry and its workers' entries (put after every change: ready, prepared, switched,
halted, finished, gone), passes `roster` and `broken` on to its workers whenever they change (and once to every new
worker), stops workers that are dismissed, and runs as many as its target says. A worker that left in order is `gone`
with `roster` set to the plan's number. The leader deletes records of the gone when no roster needs them; an agent
that did so earlier would make a known death look like a vanished worker. Names of workers are never used twice, and
`order` grows with every start in the whole job.

Everything that a leader writes is guarded by the revision of the key `leader` at its election: a deposed leader's
write fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from stretto.core.json_types import JsonObject, to_int, to_list, to_object
from stretto.core.roster import Roster
from stretto.membership.leader_view import Cuts
from stretto.membership.protocol import Action, Break, Dismiss, Fail, LeaderView, Lost, Phase, Publish, WorkerStatus
from stretto.membership.stores.store import Guard, Put, StoreEntry

JOB = "job"
LIFE = "life"
WANTED = "wanted"
AGENTS = "agents/"
WORKERS = "workers/"
LEADER = "leader"
TERM = "term"
ROSTER = "roster"
BROKEN = "broken"
DISMISSED = "dismissed/"
TARGETS = "targets/"
OUTCOME = "outcome"
STOP = "stop"
DRAINS = "drains/"
RANKS = "ranks"
JOINS = "joins/"
ENDED = "ended"

Entries = Mapping[str, StoreEntry]


@dataclass(frozen=True, slots=True)
class Write:
    """A transaction that is ready to be committed."""

    puts: tuple[Put, ...]
    guards: tuple[Guard, ...] = ()


def text(document: Mapping[str, object]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _parse(document: str) -> JsonObject:
    return to_object(json.loads(document))


def value(entries: Entries, key: str) -> JsonObject:
    """The document under a key; empty where there is none."""
    entry = entries.get(key)
    return dict(_parse(entry.value)) if entry else {}


def under(entries: Entries, prefix: str) -> dict[str, JsonObject]:
    """The documents under a prefix, by the rest of their keys."""
    return {key.removeprefix(prefix): value(entries, key) for key in entries if key.startswith(prefix)}


def revision(entries: Entries, key: str) -> int:
    entry = entries.get(key)
    return entry.revision if entry else 0


@lru_cache(maxsize=64)
def _read_roster(document: str) -> Roster:
    return Roster.from_dict(json.loads(document))


@lru_cache(maxsize=4096)
def _read_status(document: str) -> WorkerStatus:
    return WorkerStatus.from_dict(json.loads(document))


def roster(entries: Entries) -> Roster | None:
    entry = entries.get(ROSTER)
    return _read_roster(entry.value) if entry else None


def broken(entries: Entries) -> int:
    return to_int(value(entries, BROKEN).get("number"))


def leader(entries: Entries) -> str | None:
    """The agent that leads."""
    agent = value(entries, LEADER).get("agent")
    return str(agent) if agent else None


def life_number(entries: Entries) -> int:
    """How often the job has begun, from 1 on."""
    return to_int(value(entries, LIFE).get("life"), 1)


def statuses(entries: Entries) -> dict[str, WorkerStatus]:
    return {key.removeprefix(WORKERS): _read_status(entry.value) for key, entry in entries.items() if key.startswith(WORKERS)}


def view(
    entries: Entries, *, term: int, awaited: frozenset[str] = frozenset(), unfenced: frozenset[str] = frozenset()
) -> LeaderView:
    """What the leader decides from."""
    job = value(entries, JOB)
    least, most = to_int(job.get("least"), 1), to_int(job.get("most"), 1)
    return LeaderView(
        roster=roster(entries),
        broken=broken(entries),
        workers=statuses(entries),
        wanted=to_int(value(entries, WANTED).get("workers"), most),
        least=least,
        most=most,
        slices=to_int(job.get("slices")),
        term=term,
        awaited=awaited,
        unfenced=unfenced,
        cuts=cuts(entries),
    )


def cuts(entries: Entries) -> Cuts:
    """What agents say of each other: one word is enough."""
    agents = under(entries, AGENTS)
    return frozenset(
        frozenset((agent, other))
        for agent, card in agents.items()
        for other in map(str, to_list(card.get("unreached")))
        if other in agents
    )


def candidacy(entries: Entries, *, agent: str, lease: int) -> Write | None:
    """What makes this agent the leader, if there is none."""
    if LEADER in entries:
        return None
    term = to_int(value(entries, TERM).get("term")) + 1
    puts = (Put(LEADER, text({"agent": agent, "term": term, "lease": lease}), lease), Put(TERM, text({"term": term})))
    return Write(puts, (Guard(LEADER, 0), Guard(TERM, revision(entries, TERM))))


def write(action: Action, entries: Entries, *, office: Guard) -> Write | None:
    """The transaction for an action, or None where it has been done already. `office` is the guard on the leader's key.

    Rosters and breaks are also guarded by what they follow, so that a request that is repeated is not done twice.
    """
    follows = _follows(entries, office)
    match action:
        case Publish(published):
            return Write((Put(ROSTER, text(published.to_dict())), *_forget(entries, published)), follows)
        case Break(number, reason):
            return Write((Put(BROKEN, text({"number": number, "reason": reason})),), follows)
        case Dismiss(worker, reason):
            if DISMISSED + worker in entries:
                return None
            return Write((Put(DISMISSED + worker, text({"worker": worker, "reason": reason})),), follows)
        case Lost():
            return _outcome(entries, follows, {"state": "lost", "reason": "nobody who had the state is left"})
        case Fail(reason):
            return _outcome(entries, follows, {"state": "failed", "reason": reason})


def finish(entries: Entries, *, office: Guard, tick: int) -> Write | None:
    """The job is over and its final state is at this tick. `digests` has one worker for each digest that was told."""
    ended = (status for status in statuses(entries).values() if status.phase is Phase.FINISHED and status.digest)
    digests = {status.digest: status.worker for status in ended}
    return _outcome(entries, _follows(entries, office), {"state": "finished", "reason": "", "tick": tick, "digests": digests})


def revive(entries: Entries, *, office: Guard) -> Write:
    """Begins a new life after `Lost`: the next roster is a first one again, with a higher number than any before."""
    last = roster(entries)
    number = max(broken(entries), last.number if last else 0)
    life = life_number(entries) + 1
    puts = (
        Put(LIFE, text({"life": life})),
        Put(BROKEN, text({"number": number, "reason": "a new life"})),
        Put(ROSTER, None),
        Put(OUTCOME, None),
    )
    return Write(puts, (office, Guard(ROSTER, revision(entries, ROSTER)), Guard(OUTCOME, revision(entries, OUTCOME))))


def _follows(entries: Entries, office: Guard) -> tuple[Guard, ...]:
    return (office, Guard(ROSTER, revision(entries, ROSTER)), Guard(BROKEN, revision(entries, BROKEN)))


def _outcome(entries: Entries, follows: tuple[Guard, ...], document: Mapping[str, object]) -> Write | None:
    if OUTCOME in entries:
        return None
    life = life_number(entries)
    return Write((Put(OUTCOME, text({**document, "life": life})),), (*follows, Guard(OUTCOME, 0)))


def _forget(entries: Entries, published: Roster) -> Iterable[Put]:
    """Records of workers that are gone and that neither this roster nor its base can still need."""
    needed = {*published.workers, *published.left}
    records = statuses(entries)
    gone = {worker for worker, status in records.items() if status.phase is Phase.GONE and worker not in needed}
    yield from (Put(WORKERS + worker, None) for worker in sorted(gone))
    for key in entries:
        worker = key.removeprefix(DISMISSED)
        if key.startswith(DISMISSED) and (worker in gone or worker not in records):
            yield Put(key, None)
