"""Verbs for a job on several hosts, by its store: `--store URL` makes RUN the job's name, and any host will do."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from stretto.agent.hosts.directory import Directory, JobListing
from stretto.agent.hosts.signed_rpc import PeerUnreachable
from stretto.agent.hosts.store_options import StoreOptions
from stretto.cli.options import OutputFormat
from stretto.cli.printing import emit, table
from stretto.cli.targets import Document
from stretto.core.errors import JobFailed, UsageError
from stretto.core.json_types import to_int, to_object
from stretto.core.text import quantity
from stretto.membership import store_schema

POLL_S = 0.3


async def ps(shared: StoreOptions, output: OutputFormat) -> None:
    """Lists the jobs of a store."""
    async with Directory(shared) as directory:
        jobs = await directory.jobs()
        rows = [{**await _progress(directory, job), **job.row()} for job in jobs]
    if output is not OutputFormat.TABLE:
        return emit(rows, output)
    if not rows:
        return print(f"no jobs in {shared.url}")
    table(("job", "state", "workers", "step", "steps/s", "leader", "hosts"), [_cells(row) for row in rows])


def _cells(row: Document) -> tuple[object, ...]:
    workers = f"{row['members']} of {row['least']}:{row['most']}" if row["least"] else ""
    hosts = ", ".join(map(_host, row["hosts"]))
    return row["name"], row["state"], workers, row.get("step", ""), row.get("steps_per_s", ""), row["leader"] or "", hosts


def _host(row: Document) -> str:
    cut = f" does not reach {' '.join(row['unreached'])}" if row["unreached"] else ""
    return f"{row['agent']} {row['workers']}/{row['slots']}{' draining' if row['draining'] else ''}{cut}"


async def _progress(directory: Directory, listing: JobListing) -> Document:
    """What only an agent knows: the step and the speed."""
    if listing.chief is None:
        return {}
    try:
        status = await directory.ask(listing, listing.chief, "status")
    except UsageError:
        return {}
    return {name: status.get(name) for name in ("step", "epoch", "steps_per_s", "metrics", "steps")}


async def scale(shared: StoreOptions, run: str, workers: int, output: OutputFormat, *, wait: bool, timeout_s: float) -> None:
    """Writes the wanted number of workers into the store; with `wait`, returns when the job trains with it."""
    async with Directory(shared) as directory:
        listing = await directory.find(run)
        _check(listing, workers)
        await directory.write(run, store_schema.WANTED, {"workers": workers})
        if wait:
            listing = await _until(
                directory,
                run,
                lambda job: job.members == workers and job.settled,
                timeout_s=timeout_s,
                why=f"train with {quantity(workers, 'worker')}",
            )
    if output is not OutputFormat.TABLE:
        return emit(listing.row(), output)
    print(f"{run}: {quantity(listing.members, 'worker')}" if wait else f"{run}: {quantity(workers, 'worker')} wanted")


def _check(listing: JobListing, workers: int) -> None:
    job = listing.job
    least, most, slices = to_int(job["least"]), to_int(job["most"]), to_int(job.get("slices"))
    if not least <= workers <= most:
        raise UsageError(
            f"{quantity(workers, 'worker')} would be out of this job's bounds, {least} to {most}: choose a number "
            "between, or start the job with other --workers"
        )
    if slices and workers > slices:
        raise UsageError(
            f"slices={slices} allows at most {quantity(slices, 'worker')}, {workers} were asked for: raise slices= in "
            "job.loader(...) or lower the number of workers"
        )


async def stop(shared: StoreOptions, run: str, output: OutputFormat, *, now: bool, wait: bool, timeout_s: float) -> None:
    """Ends the job at its next step boundary, or now."""
    async with Directory(shared) as directory:
        await directory.find(run)
        await directory.write(run, store_schema.STOP, {"now": now})
        listing = await directory.read_job(run)
        if wait:
            listing = await _until(
                directory, run, lambda job: not job.job or job.state == "stopped", timeout_s=timeout_s, why="end"
            )
    if output is not OutputFormat.TABLE:
        return emit(listing.row(), output)
    print(f"{run}: {listing.state if wait else 'stopping'}")


async def drain(shared: StoreOptions, run: str, output: OutputFormat, *, agent: str | None) -> None:
    """Lets one agent's workers leave, then the agent."""
    async with Directory(shared) as directory:
        listing = await directory.find(run)
        if agent is None:
            raise UsageError(f"say which agent of job {run!r} shall go, with --agent: it has {', '.join(listing.agents) or 'none'}")
        name = listing.agent(agent)
        await directory.write(run, store_schema.DRAINS + name, {"agent": name})
    if output is not OutputFormat.TABLE:
        return emit({"agent": name}, output)
    print(f"agent {name}: its workers leave at the next step boundary, then the agent does")


async def logs(shared: StoreOptions, run: str, *, follow: bool, worker: str | None) -> None:
    """Prints the logs of all hosts, each line with its worker's name."""
    places: dict[str, dict[str, int]] = {}
    async with Directory(shared) as directory:
        listing = await directory.find(run)
        while True:
            for agent in listing.agents:
                await _print_log(directory, listing, agent, places.setdefault(agent, {}), worker)
            if not follow:
                return
            await asyncio.sleep(POLL_S)
            listing = await directory.read_job(run)
            if not listing.job:
                return


async def _print_log(directory: Directory, listing: JobListing, agent: str, places: dict[str, int], worker: str | None) -> None:
    if worker is not None and "." in worker and worker.rpartition(".")[0] != agent:
        return
    more = True
    while more:
        try:
            answer = await directory.ask(listing, agent, "log", worker=worker, places=places)
        except PeerUnreachable as error:
            print(f"agent {agent} does not answer: {error}", file=sys.stderr)
            return
        more = False
        for stem, piece in to_object(answer["pieces"]).items():
            log = to_object(piece)
            places[stem], more = to_int(log["place"]), True
            label = f"{agent}.w{stem.removeprefix('worker-')}" if stem.startswith("worker-") else f"{agent}.{stem}"
            for line in str(log["text"]).splitlines():
                sys.stdout.write(f"[{label}] {line}\n")
    sys.stdout.flush()


async def _until(directory: Directory, name: str, what: Callable[[JobListing], bool], *, timeout_s: float, why: str) -> JobListing:
    deadline = time.monotonic() + timeout_s
    while True:
        listing = await directory.read_job(name)
        if what(listing):
            return listing
        if time.monotonic() > deadline or (not listing.job and why != "end"):
            raise JobFailed(
                f"job {name!r} does not {why} after {timeout_s:g} s (it is {listing.state}, with "
                f"{quantity(listing.members, 'worker')}): see `stretto logs {name} --store {directory.url}`"
            )
        await asyncio.sleep(POLL_S)
