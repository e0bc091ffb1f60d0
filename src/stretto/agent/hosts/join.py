"""Joining a job through its store, or beginning it: compares what must be equal on all hosts and names the agent.

The first agent writes the job's card under the key `job`. Later agents compare their own with it, so that a wrong script or version
is refused before any worker starts. A job whose agents are all gone begins anew under the same name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import ssl
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.agent.hosts.address import choose_address
from stretto.agent.hosts.store_factory import Opened, open_store
from stretto.agent.hosts.store_options import StoreOptions, default_slots
from stretto.core.errors import UsageError
from stretto.core.json_types import JsonObject, JsonValue, to_int
from stretto.core.version import VERSION
from stretto.membership import store_schema
from stretto.membership.stores.store import Guard, Put, Store, StoreError
from stretto.membership.timeouts import Timeouts

if TYPE_CHECKING:
    from stretto.agent.options import RunOptions

ENTER_S = 20.0
POLL_S = 0.1
TRIES = 50
"""Attempts at a transaction that conflicts with others."""
ALIKE = {
    "script": "another script (its text differs): start all hosts with the same file",
    "args": "other arguments for the script: start all hosts with the same command",
    "version": "another version of stretto: install the same one on all hosts",
    "least": "another --workers: start all hosts with the same command",
    "most": "another --workers: start all hosts with the same command",
    "threads": "another --threads: start all hosts with the same command",
    "lease": "another --lease: start all hosts with the same command",
    "fence": "another --fence: start all hosts with the same command",
    "digest_every": "another --digest-every: start all hosts with the same command",
    "tls": "other TLS options: give --store-ca, --store-cert and --store-key on all hosts or on none",
    "checkpoint": "another --checkpoint: start all hosts with the same command, on storage that all of them see",
}
"""What the cards of a job's agents must agree on, and the message where they do not."""
TOMB_S = 60.0
"""How long a late agent can learn that the job has ended."""
LEAVE_S = 5.0
DELETED_AT_ONCE = 100


class AlreadyEnded(UsageError):
    """The job that this host was to join has finished a moment ago."""


@dataclass(frozen=True, slots=True)
class Joined:
    """This agent's place in a job on several hosts."""

    opened: Opened
    job: str
    id: str
    """Tells jobs of one name apart."""
    token: str
    """Signs what agents ask of each other."""
    agent: str
    host: str
    """This host's address."""
    slots: int
    timing: Timeouts
    run_id: str
    """Of the job's checkpoints."""
    life: int
    tls: ssl.SSLContext | None = None
    """For asking other agents, where they speak TLS."""

    @property
    def store(self) -> Store:
        return self.opened.store


def card(options: RunOptions) -> JsonObject:
    """The options of this host that must be equal on all hosts."""
    assert options.shared is not None
    timing = options.shared.timing()
    try:
        text = Path(options.script).read_bytes()
    except OSError as error:
        raise UsageError(f"{options.script} cannot be read: {error.strerror}") from None
    return {
        "script": hashlib.sha256(text).hexdigest()[:16],
        "args": list(options.args),
        "version": VERSION,
        "least": options.least,
        "most": options.most,
        "threads": options.threads,
        "digest_every": options.digest_every,
        "lease": timing.lease_s,
        "fence": timing.fence_s,
        "tls": options.shared.sealed,
        "checkpoint": options.checkpoints.url if options.checkpoints else None,
    }


async def join(options: RunOptions, shared: StoreOptions) -> Joined:
    """Raises `UsageError` where this host cannot be part of the job. Nothing is left behind then."""
    opened = await open_store(shared)
    try:
        host = choose_address(shared.interface, endpoints=opened.endpoints)
        try:
            document, life = await _enter(opened.store, options, shared)
            agent = await _name(opened.store, shared.label)
        except StoreError as error:
            raise UsageError(f"the store {shared.url} stopped answering: {error}") from None
    except BaseException:
        await opened.close()
        raise
    slots = shared.slots if shared.slots is not None else min(options.most, default_slots(options.threads))
    return Joined(
        opened,
        shared.job,
        str(document["id"]),
        str(document["token"]),
        agent,
        host,
        slots,
        shared.timing(),
        str(document["run_id"]),
        life,
        shared.client_tls(agents=True),
    )


async def _enter(store: Store, options: RunOptions, shared: StoreOptions) -> tuple[JsonObject, int]:
    """The job's card, which is this agent's own where there is no such job, and the number of its life."""
    own = card(options)
    fresh: JsonObject = {
        **own,
        "slices": 0,
        "id": uuid.uuid4().hex,
        "token": secrets.token_hex(32),
        "began": time.time(),
        "run_id": options.checkpoints.run_id if options.checkpoints else "",
        "host": shared.label,
    }
    alone: tuple[int, float] | None = None
    refused_at: float | None = None
    deadline = time.monotonic() + ENTER_S + shared.timing().fenced_s
    while time.monotonic() < deadline:
        entries = {entry.key: entry for entry in (await store.read(""))[0]}
        job = store_schema.value(entries, store_schema.JOB)
        if not job:
            _not_ended(store_schema.value(entries, store_schema.ENDED), own, shared)
            puts = [
                Put(store_schema.JOB, store_schema.text(fresh)),
                Put(store_schema.WANTED, store_schema.text({"workers": options.wanted})),
                Put(store_schema.ENDED, None),
            ]
            if await store.commit(puts, guards=[Guard(store_schema.JOB, 0)]) is not None:
                return fresh, 1
        elif store_schema.under(entries, store_schema.AGENTS):
            alone = None
            different = _difference(own, job, shared)
            if different:
                # Its agents may just have died, and the name is free when their leases have run out.
                refused_at = refused_at or time.monotonic() + shared.timing().settle_s + shared.timing().renewal_s
                if time.monotonic() > refused_at:
                    raise UsageError(different)
            elif store_schema.OUTCOME not in entries or store_schema.value(entries, store_schema.OUTCOME).get("state") == "lost":
                return job, store_schema.life_number(entries) + int(store_schema.OUTCOME in entries)
        else:
            life = store_schema.life_number(entries)
            alone = alone if alone is not None and alone[0] == life else (life, time.monotonic())
            if await _take_over(store, entries, own, alone_s=time.monotonic() - alone[1], timing=shared.timing()):
                return job, life + 1
        await asyncio.sleep(POLL_S)
    raise UsageError(
        f"job {shared.job!r} in {shared.url} could not be joined: it is being ended, or others begin and end it; "
        "try again, or choose another --job"
    )


async def _take_over(store: Store, entries: store_schema.Entries, own: JsonObject, *, alone_s: float, timing: Timeouts) -> bool:
    """A job without agents. They may come back after an outage of the store, and where it goes on from a checkpoint they may still
    be training meanwhile: until their fence they are waited for. True where this agent has begun the job's next life."""
    job = store_schema.value(entries, store_schema.JOB)
    same = all(own[name] == job.get(name) for name in ALIKE)
    if (
        same
        and own["checkpoint"]
        and store_schema.STOP not in entries
        and store_schema.value(entries, store_schema.OUTCOME).get("state", "lost") == "lost"
    ):
        if job.pop("rests", False) or alone_s > max(timing.settle_s, timing.fenced_s):
            revival = store_schema.revive(entries, office=Guard(store_schema.JOB, store_schema.revision(entries, store_schema.JOB)))
            return (
                await store.commit([*revival.puts, Put(store_schema.JOB, store_schema.text(job))], guards=revival.guards)
                is not None
            )
    elif alone_s > timing.settle_s + timing.renewal_s:
        await _clear(store, entries)
    return False


def _not_ended(ended: JsonObject, own: JsonObject, shared: StoreOptions) -> None:
    if ended.get("state") == "finished" and all(ended.get(name) == own[name] for name in ALIKE):
        raise AlreadyEnded(
            f"job {shared.job!r} has just finished without this host, with digest {ended.get('digest')}: to train "
            f"it once more choose another --job, or wait {TOMB_S:.0f} s"
        )


def _difference(own: JsonObject, job: JsonObject, shared: StoreOptions) -> str:
    """Why this host cannot be part of that job, or nothing."""
    for name, difference in ALIKE.items():
        if own[name] != job.get(name):
            return (
                f"host {shared.label} was started with {difference}; job {shared.job!r}, begun by host {job.get('host')}, has "
                f"{name}={_shown(job.get(name))}, this host {_shown(own[name])}. If it is meant to be another job, choose "
                "another --job"
            )
    return ""


def _shown(value: JsonValue) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


async def _name(store: Store, host: str) -> str:
    """`h1` for a host's first agent of this job, `h1.2` for the next: names are never used twice."""
    for _ in range(TRIES):
        key = store_schema.JOINS + host
        entries = {entry.key: entry for entry in (await store.read(key))[0]}
        count = to_int(store_schema.value(entries, key).get("count")) + 1
        if await store.commit(
            [Put(key, store_schema.text({"count": count}))], guards=[Guard(key, store_schema.revision(entries, key))]
        ):
            return host if count == 1 else f"{host}.{count}"
    raise UsageError(f"host {host} could not get a name in the job: too many agents of that name start at once")


async def retire(joined: Joined, *, state: str, digest: str | None, card: JsonObject) -> None:
    """Called after this agent has left: the last one clears the job away. An agent that serves the store waits for the others."""
    with contextlib.suppress(StoreError, TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            while True:
                entries = {entry.key: entry for entry in (await joined.store.read(""))[0]}
                if store_schema.value(entries, store_schema.JOB).get("id") != joined.id:
                    break
                if not store_schema.under(entries, store_schema.AGENTS):
                    if state == "stopped" and card["checkpoint"]:
                        await _mark_resumable(joined.store, entries)
                    elif store_schema.OUTCOME in entries or store_schema.STOP in entries:
                        await _tombstone(joined, entries, {**card, "state": state, "digest": digest, "id": joined.id})
                    break
                if joined.opened.serving is None:
                    break
                await asyncio.sleep(0.1)
    await joined.opened.close()


async def _mark_resumable(store: Store, entries: store_schema.Entries) -> None:
    """For a job that was stopped with a checkpoint: the same command continues it without waiting for other agents."""
    job = store_schema.value(entries, store_schema.JOB)
    guard = Guard(store_schema.JOB, store_schema.revision(entries, store_schema.JOB))
    await store.commit(
        [
            Put(store_schema.JOB, store_schema.text({**job, "rests": True})),
            Put(store_schema.STOP, None),
            Put(store_schema.OUTCOME, None),
        ],
        guards=[guard],
    )


async def _tombstone(joined: Joined, entries: store_schema.Entries, document: JsonObject) -> None:
    lease = await joined.store.grant(TOMB_S)
    await _clear(joined.store, entries, last=Put(store_schema.ENDED, store_schema.text(document), lease))


async def _clear(store: Store, entries: store_schema.Entries, *, last: Put | None = None) -> None:
    """Deletes a job whose agents are gone, unless another agent did. The card goes last, because it guards the rest."""
    guard = Guard(store_schema.JOB, store_schema.revision(entries, store_schema.JOB))
    keys = [key for key in entries if key not in (store_schema.JOB, store_schema.ENDED)]
    for low in range(0, len(keys), DELETED_AT_ONCE):
        if await store.commit([Put(key, None) for key in keys[low : low + DELETED_AT_ONCE]], guards=[guard]) is None:
            return
    await store.commit([Put(store_schema.JOB, None), *([last] if last is not None else [])], guards=[guard])
