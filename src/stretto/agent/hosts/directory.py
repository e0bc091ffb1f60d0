"""The jobs of a store, for the verbs of the command line. Reads and asks from any host, without joining a job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from stretto.agent.control_server import Answer
from stretto.agent.hosts.signed_rpc import ask
from stretto.agent.hosts.store_factory import Opened, open_store
from stretto.agent.hosts.store_options import StoreOptions
from stretto.core.errors import UsageError
from stretto.core.json_types import JsonObject, JsonValue, to_address
from stretto.membership import store_schema
from stretto.membership.stores.store import Put, StoreEntry, StoreError
from stretto.membership.worker_status import Phase

ASK_S = 5.0
"""Nobody's lease hangs on these answers: a store or an agent that is busy may take its time."""


@dataclass(frozen=True, slots=True)
class JobListing:
    """A job as its keys say."""

    name: str
    entries: Mapping[str, StoreEntry]

    @property
    def job(self) -> JsonObject:
        return store_schema.value(self.entries, store_schema.JOB)

    @property
    def agents(self) -> dict[str, JsonObject]:
        return store_schema.under(self.entries, store_schema.AGENTS)

    @property
    def state(self) -> str:
        if store_schema.OUTCOME in self.entries:
            return str(store_schema.value(self.entries, store_schema.OUTCOME).get("state"))
        if not self.job:
            return str(store_schema.value(self.entries, store_schema.ENDED).get("state", "unknown"))
        if not self.agents:
            return "stopped" if self.job.get("rests") else "abandoned"
        return "stopping" if store_schema.STOP in self.entries else "running"

    @property
    def members(self) -> int:
        roster = store_schema.roster(self.entries)
        return len(roster.members) if roster else 0

    @property
    def settled(self) -> bool:
        """The last roster is in effect on all of its members."""
        roster, statuses = store_schema.roster(self.entries), store_schema.statuses(self.entries)
        if roster is None or store_schema.broken(self.entries) >= roster.number:
            return False
        return all(worker in statuses and statuses[worker].roster >= roster.number for worker in roster.workers)

    @property
    def chief(self) -> str | None:
        """The agent of the first worker."""
        roster = store_schema.roster(self.entries)
        return roster.members[0].agent if roster and roster.members[0].agent in self.agents else next(iter(self.agents), None)

    def agent(self, name: str) -> str:
        """An agent by its name or its host's."""
        for agent, card in self.agents.items():
            if name in (agent, card.get("host")):
                return agent
        raise UsageError(f"job {self.name!r} has no agent {name!r}: it has {', '.join(self.agents) or 'none'}")

    def row(self) -> JsonObject:
        """What the listing of jobs shows."""
        job, statuses = self.job, store_schema.statuses(self.entries)
        hosts: list[JsonValue] = [
            {
                "agent": agent,
                **{name: card.get(name) for name in ("host", "address", "slots", "folder")},
                "draining": bool(card.get("draining")),
                "unreached": card.get("unreached") or [],
                "workers": sum(status.agent == agent and status.phase is not Phase.GONE for status in statuses.values()),
            }
            for agent, card in self.agents.items()
        ]
        return {
            "name": self.name,
            "state": self.state,
            "members": self.members,
            "settled": self.settled,
            "least": job.get("least"),
            "most": job.get("most"),
            "slices": job.get("slices"),
            "wanted": store_schema.value(self.entries, store_schema.WANTED).get("workers"),
            "leader": store_schema.leader(self.entries),
            "hosts": hosts,
        }


class Directory:
    """A store that is open for one command, which is no part of any job."""

    def __init__(self, shared: StoreOptions) -> None:
        self._shared = shared
        self.url = shared.url
        self._opened: Opened | None = None

    async def __aenter__(self) -> Directory:
        self._opened = await open_store(self._shared, serve=False, every_job=True, answer_s=ASK_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def jobs(self) -> list[JobListing]:
        jobs: dict[str, dict[str, StoreEntry]] = {}
        for entry in await self._read(""):
            name, _, key = entry.key.partition("/")
            jobs.setdefault(name, {})[key] = StoreEntry(key, entry.value, entry.revision, entry.created)
        return [JobListing(name, entries) for name, entries in sorted(jobs.items())]

    async def find(self, name: str) -> JobListing:
        """A job that has not ended."""
        listing = await self.read_job(name)
        if not listing.job:
            names = [other.name for other in await self.jobs() if other.job]
            ended = store_schema.value(listing.entries, store_schema.ENDED)
            why = f" any more: it is {ended['state']}" if ended else f": it has {', '.join(names) or 'no jobs'}"
            raise UsageError(f"{self._shared.url} has no job {name!r}{why}")
        return listing

    async def read_job(self, name: str) -> JobListing:
        prefix = f"{name}/"
        entries = [
            StoreEntry(entry.key.removeprefix(prefix), entry.value, entry.revision, entry.created)
            for entry in await self._read(prefix)
        ]
        return JobListing(name, {entry.key: entry for entry in entries})

    async def write(self, job: str, key: str, document: Mapping[str, object]) -> None:
        assert self._opened is not None
        try:
            await self._opened.store.commit([Put(f"{job}/{key}", store_schema.text(document))])
        except StoreError as error:
            raise UsageError(f"the store did not answer, so it is not known whether this was heard ({error}): ask again") from None

    async def ask(self, listing: JobListing, agent: str, verb: str, **arguments: object) -> Answer:
        address = to_address(listing.agents[agent]["address"])
        tls = self._shared.client_tls(agents=True)
        if listing.job.get("tls") and tls is None:
            raise UsageError(f"agents of job {listing.name!r} speak TLS: give --store-ca, --store-cert and --store-key here too")
        tls = tls if listing.job.get("tls") else None
        return await ask(address, verb, token=str(listing.job["token"]), tls=tls, timeout_s=ASK_S, **arguments)

    async def _read(self, prefix: str) -> list[StoreEntry]:
        assert self._opened is not None
        for left in (2, 1, 0):
            try:
                return (await self._opened.store.read(prefix))[0]
            except StoreError as error:
                if not left:
                    raise UsageError(f"the store {self._shared.url} stopped answering: {error}") from None
                await asyncio.sleep(0.3)
        raise AssertionError("unreachable")
