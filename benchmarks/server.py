"""The job server under load: 2,000 jobs in the database, 200 of them running, 50 dashboards open.

The running jobs are simulated agents that speak the real protocol (tests/server/simulated_agent.py): real processes,
journals and control ports, no torch. Dashboards hold a stream open and read what the page reads. What is measured:
the time of reads, the server's memory and CPU, and whether every dashboard got every event exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import ROOT, Row, at_most, inform, publish

sys.path.insert(0, str(ROOT / "tests" / "server"))

from server_harness import Running, job, running

from stretto.server.client import Client
from stretto.server.jobs.job_store import JobStore
from stretto.server.jobs.run_progress import Point
from stretto.server.jobs.state import NewEvent
from stretto.server.storage.database import connect, migrate
from stretto.server.storage.repository import Batch, Storage
from stretto.server.storage.tokens import make_id

POINTS = 100
"""Points of each ended job's curve."""
STEP_S = 0.5


@dataclass
class Load:
    url: str
    token: str
    jobs: list[str]
    until: float
    times: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


def fill(home: Path, count: int) -> None:
    """Ended jobs with events and curves, written as the server itself writes them."""
    home.mkdir(parents=True)
    engine = connect(f"sqlite:///{home / 'server.db'}")
    migrate(engine)
    storage = Storage(engine)

    async def write() -> None:
        book = JobStore(storage, publish=lambda stored: None)
        for begin in range(0, count, 100):
            await asyncio.gather(
                *(book.append(job_id, ended(job_id)) for job_id in [make_id("j") for _ in range(min(100, count - begin))])
            )
        for job_id in list(book.records):
            storage.write(Batch(points=[(job_id, Point(step, 1.0 * step, 1, {"loss": 1 / (1 + step)})) for step in range(POINTS)]))

    asyncio.run(write())
    engine.dispose()


def ended(one: str) -> list[NewEvent]:
    spec = job(f"old-{one[2:8]}", most=4)
    return [
        NewEvent("submitted", "submitted", {"id": one, "tenant": "default", "spec": spec}),
        NewEvent("allocated", "gets 2 workers", {"nodes": {"node0": 2}, "run": one}),
        NewEvent("ready", "trains on 2 workers", {"workers": 2, "step": 0}),
        NewEvent("resized", "2 → 3 workers", {"workers": 3, "before": 2, "step": 10, "cause": "join", "pause_ms": 9.0}),
        NewEvent("finished", "finished", {"digest": "0" * 64, "steps": POINTS}),
    ]


async def get(load: Load, path: str, *, kind: str) -> None:
    """One request on a raw connection, so that the client takes little of the machine that the server runs on."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection(*load.place)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {load.token}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read(-1)
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        load.errors.append(f"{path}: {answer[:80]!r}")
    load.times.setdefault(kind, []).append(time.perf_counter() - begun)


async def dashboard(load: Load, chance: random.Random, seen: list[bytes]) -> None:
    """One open page: a stream, and the requests of somebody who clicks around."""
    stream = asyncio.create_task(listen(load, seen))
    await asyncio.sleep(chance.uniform(0, 2))
    while time.monotonic() < load.until:
        job_id = chance.choice(load.jobs)
        kind, path = chance.choice(
            [
                ("list", "/v1/jobs?limit=100"),
                ("list", "/v1/jobs?state=running&limit=200"),
                ("job", f"/v1/jobs/{job_id}"),
                ("curve", f"/v1/jobs/{job_id}/metrics"),
                ("events", f"/v1/jobs/{job_id}/events"),
                ("overview", "/v1/overview"),
                ("allocation", "/v1/allocations"),
                ("explanation", f"/v1/jobs/{job_id}/explanation"),
                ("history", "/v1/allocations/history"),
                ("health", "/healthz"),
            ]
        )
        await get(load, path, kind=kind)
        await asyncio.sleep(chance.uniform(1, 3))
    await stream


async def listen(load: Load, seen: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection(*load.place)
    writer.write(f"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {load.token}\r\n\r\n".encode())
    while time.monotonic() < load.until + 2:
        try:
            data = await asyncio.wait_for(reader.read(1 << 18), 1.0)
        except TimeoutError:
            continue
        if not data:
            load.errors.append("a stream was closed")
            break
        seen.append(data)
    writer.close()


async def disturb(load: Load, client: Client, chance: random.Random) -> None:
    """Users who scale jobs, which causes events for all dashboards."""
    while time.monotonic() < load.until:
        await asyncio.to_thread(client.scale, chance.choice(load.jobs), chance.choice([1, 2]))
        await asyncio.sleep(0.3)


async def measure(load: Load, server: Running, dashboards: int) -> list[list[bytes]]:
    seen: list[list[bytes]] = [[] for _ in range(dashboards)]
    with server.client() as client:
        pages = [dashboard(load, random.Random(place), seen[place]) for place in range(dashboards)]
        await asyncio.gather(*pages, disturb(load, client, random.Random(99)))
    return seen


def identifiers(frames: Sequence[bytes]) -> list[int]:
    return [int(number) for number in re.findall(rb"(?:^|\n)id: (\d+)\nevent: event\n", b"".join(frames))]


def lost(server: Running, seen: Sequence[Sequence[bytes]], since: int, until: int) -> int:
    """Counts events that a dashboard missed or received twice."""
    with server.client() as client:
        stored: list[int] = []
        after = since
        while page := client.events(after=after).items:
            stored += [event.id for event in page]
            after = page[-1].id
    count = 0
    for frames in seen:
        got = identifiers(frames)
        expected = [number for number in stored if got and got[0] <= number <= min(until, max(got, default=0))]
        received = [number for number in got if number <= until]
        count += len(set(expected) ^ set(received)) + len(received) - len(set(received)) + (not got)
    return count


def used(pid: int) -> tuple[float, float]:
    """(MB, CPU seconds) of a process."""
    resident = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return (int(resident[1]) / 1024 if resident else 0.0), ticks / os.sysconf("SC_CLK_TCK")


def machine_s() -> tuple[float, float]:
    """CPU seconds of all processes here, and those that the host of a virtual machine gave to others meanwhile."""
    fields = [int(field) / os.sysconf("SC_CLK_TCK") for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq, stolen, *_ = fields
    return user + nice + system + irq + softirq, stolen


def p(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def bench(arguments: argparse.Namespace) -> list[Row]:
    home = Path(tempfile.mkdtemp(prefix="stretto-bench-")) / "home"
    try:
        fill(home, arguments.jobs - arguments.running)
        slots = 2 * arguments.running
        with (
            running(home, slots=slots, policy=arguments.policy, interval_s=10.0, cooldown_s=5.0, rate=1e5) as server,
            server.client() as client,
        ):
            print(f"{arguments.jobs - arguments.running} ended jobs are in the database; starting {arguments.running}", flush=True)
            made = [
                client.submit(job(f"live-{place}", steps=10**6, step_s=STEP_S, most=2)).id for place in range(arguments.running)
            ]
            while (count := client.overview().jobs["running"]) < arguments.running:  # type: ignore[index]
                print(f"  {count} run", flush=True)
                time.sleep(3)
            assert server.process is not None
            since = client.overview().last_event
            _, before = used(server.process.pid)
            busy, stolen = machine_s()
            load = Load(server.url, server.token, made, time.monotonic() + arguments.seconds)
            begun = time.monotonic()
            seen = asyncio.run(measure(load, server, arguments.dashboards))
            wall = time.monotonic() - begun
            memory, after = used(server.process.pid)
            all_busy, all_stolen = machine_s()
            cores = {"server": (after - before) / wall, "all": (all_busy - busy) / wall, "stolen": (all_stolen - stolen) / wall}
            missing = lost(server, seen, since, client.overview().last_event)
            events = len(identifiers(seen[0]))
            return rows(load, memory, cores, missing, events, arguments)
    finally:
        for lock in home.glob("jobs/*/life-*/keeper.json"):
            try:
                os.kill(json.loads(lock.read_text())["pid"], 9)
            except (OSError, ValueError):
                continue
        time.sleep(1)
        shutil.rmtree(home.parent, ignore_errors=True)


def rows(load: Load, memory: float, cores: dict[str, float], missing: int, events: int, arguments: argparse.Namespace) -> list[Row]:
    reads = [time_s for kind, times in load.times.items() if kind != "health" for time_s in times]
    health = load.times.get("health", [0.0])
    peers = {"healthz p99 (ms)": p(health, 0.99), "median (ms)": 1000 * statistics.median(reads), "reads": len(reads)}
    made = [
        at_most("p99 of reads (ms)", p(reads, 0.99), 100, bar="< 100", peers=peers),
        at_most("memory of the server (MB)", memory, 400, bar="< 400"),
        at_most(
            "events lost or doubled", missing, 0, bar="0", peers={"events a dashboard": events, "dashboards": arguments.dashboards}
        ),
        at_most("reads that failed", len(load.errors), 0, bar="0", peers={"first": load.errors[0] if load.errors else "none"}),
        inform(
            "CPU of the server (cores)",
            cores["server"],
            peers={"of all here": cores["all"], "taken by the host": cores["stolen"], "cores": os.cpu_count()},
        ),
    ]
    return made + [
        inform(f"p99 of {kind} (ms)", p(times, 0.99), peers={"reads": len(times)}) for kind, times in sorted(load.times.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--running", type=int, default=200)
    parser.add_argument("--dashboards", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--policy", default="goodput")
    arguments = parser.parse_args()
    publish(
        "server",
        bench(arguments),
        notes=[
            f"{arguments.running} agents, {arguments.dashboards} dashboards and the server share the same {os.cpu_count()} cores",
        ],
    )


if __name__ == "__main__":
    main()
