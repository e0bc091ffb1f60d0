"""A server whose jobs are over in a moment without a process being started: hostile requests must not run hostile commands.

instant_server.py HOME   prints [url, token]
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import uvicorn

from stretto.clusters.base import Assignment, ClusterEvent, EventKind, LogPage, NodeInfo, RunRef, Workload
from stretto.core.journal import Switch
from stretto.server import app
from stretto.server.serve import address, listen, login
from stretto.server.settings import ServerSettings

LOG = b"a line\n" * 100


class Fleeting:
    name = "instant"

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], float] = {}
        self.wanted: dict[tuple[str, int], Assignment] = {}
        self.closed = False

    async def start(self) -> None:
        return

    def nodes(self) -> Sequence[NodeInfo]:
        return (NodeInfo("node0", 4),)

    async def apply(self, wanted: Sequence[Assignment]) -> None:
        self.wanted = {(one.job, one.attempt): one for one in wanted}

    async def watch(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        while not self.closed:
            await asyncio.sleep(0.05)
            found: list[ClusterEvent] = []
            for key, one in list(self.wanted.items()):
                if key not in self.seen:
                    self.seen[key] = 0.0
                    line = Switch(1, 0, one.workers, (), (), "start", 1.0, t=1.0)
                    found += [ClusterEvent(EventKind.STARTED, *key), ClusterEvent(EventKind.LINES, *key, lines=[line], offset=10)]
                elif one.stop is not None or self.seen[key] > 20:
                    found.append(ClusterEvent(EventKind.GONE, *key, code=0))
                    del self.wanted[key]
                self.seen[key] += 1
            if found:
                yield found

    async def logs(self, run: RunRef, source: str, *, after: int | None, limit: int) -> LogPage:
        return LogPage(("console",), LOG[after or 0 :][:limit], min(after or 0, len(LOG)), len(LOG))

    async def check(self, workload: Workload, *, workdir: str | None, env: Mapping[str, str]) -> str | None:
        return None

    async def resumable(self, run: RunRef) -> bool:
        return False

    async def delete(self, job: str, runs: Sequence[str]) -> None:
        return

    async def close(self) -> None:
        self.closed = True


def main() -> None:
    settings = ServerSettings(home=Path(sys.argv[1]), port=0, policy="fifo", interval_s=1.0, rate=1e6, most_jobs=2000)
    server = app.build(settings, cluster=Fleeting())
    listening = listen(settings)
    port = listening.getsockname()[1]
    token = login(server, port=port)
    print(json.dumps([address(settings, port), token]), flush=True)
    config = uvicorn.Config(app.create_app(server, port=port), log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
