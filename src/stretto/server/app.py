"""The server put together: parts, loops, routes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import cast

from fastapi import FastAPI

from stretto.clusters.base import Cluster
from stretto.clusters.registry import open_cluster
from stretto.core.errors import UsageError
from stretto.scheduling.registry import DEFAULT as DEFAULT_POLICY
from stretto.server import VERSION
from stretto.server.api import views
from stretto.server.api.problems import install
from stretto.server.api.routes import api
from stretto.server.api.security import Buckets, SecurityMiddleware
from stretto.server.api.sse import EventBroadcaster, dump
from stretto.server.api.static_files import Pages
from stretto.server.api.views import JobLines, allocation
from stretto.server.decisions.policy_runner import Runner, names
from stretto.server.decisions.scheduler_loop import SchedulerLoop
from stretto.server.jobs.job_store import JobStore
from stretto.server.jobs.state import JobRecord, NewEvent
from stretto.server.reconciler import Reconciler
from stretto.server.settings import ServerSettings
from stretto.server.storage.database import Lock, connect, migrate
from stretto.server.storage.decision_log import DecisionLog
from stretto.server.storage.repository import Storage, Stored
from stretto.server.storage.tokens import TokenStore

SLOW_LOOPS_S = 60.0
GC = (20_000, 20, 20)
"""Fewer collections: almost everything here lives either for one request or as long as its job."""


@dataclass(slots=True)
class Server:
    """Everything that a request may need."""

    settings: ServerSettings
    storage: Storage
    tokens: TokenStore
    book: JobStore
    hub: EventBroadcaster
    conductor: Reconciler
    decider: SchedulerLoop
    ledger: DecisionLog
    cluster: Cluster
    lock: Lock
    pages: Pages
    lines: JobLines
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: float = field(default_factory=time.time)
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def start(self) -> None:
        await self.cluster.start()
        self.conductor.adopt()
        await self.cluster.apply(self.conductor.assignments())
        await self.book.note(NewEvent("server", f"stretto {VERSION} has started", {"version": VERSION}))
        for name, loop in (
            ("hub", self.hub.run),
            ("cluster", self.conductor.watch),
            ("keeper", self.conductor.keep),
            ("decisions", self.decider.loop),
            ("housekeeping", self.housekeep),
        ):
            self.tasks.append(asyncio.create_task(self.conductor.supervise(name, loop), name=name))
        self.conductor.trigger("start")
        # What was loaded lives as long as the server: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC)

    async def stop(self) -> None:
        """Stops the server. Jobs continue; the next server finds them again."""
        self.stopping.set()
        for reader in list(self.hub.readers):
            reader.awake.set()
        await self.cluster.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self.book.flush(list(self.book.records))
        await self.decider.runner.close()
        await asyncio.to_thread(self.tokens.flush)
        self.lock.release()
        self.storage.engine.dispose()

    async def housekeep(self) -> None:
        while True:
            await asyncio.sleep(SLOW_LOOPS_S)
            await asyncio.to_thread(self.tokens.flush)
            await asyncio.to_thread(self.storage.forget_keys, before=time.time() - 86400)
            await self.decider.draw()
            if not await asyncio.to_thread(self.lock.alive):
                await self.conductor.alarm("lock", "the database session that holds this server's lock was lost: restart it")

    def reason(self, record: JobRecord) -> str:
        """Why a job has its size or waits; the cluster's own reason comes first."""
        pending = self.conductor.pending.get(record.id)
        return f"waits for the cluster: {pending}" if pending else self.decider.reason(record)


def build(settings: ServerSettings, *, cluster: Cluster | None = None) -> Server:
    """Opens the database and puts the parts together. Nothing runs yet."""
    settings = settings.checked()
    cluster = cluster or open_cluster(settings.cluster, settings.context, settings.all_cluster_options)
    settings.prepare()
    engine = connect(settings.url)
    migrate(engine)
    lock = Lock(engine, home=settings.folder)
    storage = Storage(engine)
    tokens = TokenStore(storage)

    hub = EventBroadcaster(
        summary=lambda job, tenant: lines.of(job, tenant),
        allocation=lambda tenant: allocation(server, tenant).model_dump_json(),
        event=lambda event: dump(views.event(event)),
    )

    def publish(stored: Sequence[Stored]) -> None:
        conductor.measures.events.inc(len(stored))
        hub.publish(stored)

    book = JobStore(storage, publish=publish)
    book.load()
    hub.last = storage.last_event()
    conductor = Reconciler(settings, book, hub, cluster)
    ledger = DecisionLog(storage)
    runner = Runner(timeout_s=settings.policy_timeout_s)
    decider = SchedulerLoop(conductor, ledger, runner, policy=_policy(settings, storage))
    decider.cordoned = frozenset(cast("list[str] | None", storage.setting("cordoned")) or ())
    lines = JobLines(book, lambda record: server.reason(record))
    server = Server(settings, storage, tokens, book, hub, conductor, decider, ledger, cluster, lock, Pages(), lines)
    return server


def _policy(settings: ServerSettings, storage: Storage) -> str:
    policies = names()
    chosen = settings.policy or str(storage.setting("policy") or "") or DEFAULT_POLICY
    if chosen not in policies:
        raise UsageError(f"--policy {chosen!r} does not exist: choose one of {', '.join(sorted(policies))}")
    return chosen


def create_app(server: Server, *, port: int) -> FastAPI:
    """The ASGI application. `port` is the one that clients use: it is part of the Host and Origin checks."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        await server.start()
        # A third of a second of work, which would otherwise be done while the first who asks for it, and everybody else, waits.
        described = asyncio.create_task(asyncio.to_thread(app.openapi))
        try:
            yield
        finally:
            await server.stop()
            await described

    app = FastAPI(
        title="stretto",
        version=VERSION,
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        description="The job server of stretto.",
    )
    app.state.server = server
    install(app)
    api(app, server)
    settings = server.settings
    app.add_middleware(
        SecurityMiddleware,
        check=lambda secret: server.tokens.check(secret, now=time.time()),
        hosts=settings.names(port),
        origins=settings.origins(port),
        page=server.pages.holds,
        requests=Buckets(rate=settings.rate, burst=2 * settings.rate),
    )
    return app
