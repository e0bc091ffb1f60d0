"""Verbs for a job on several hosts, by its store: `--store URL` makes RUN the job's name, and any host will do."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from typer import Option

from stretto.agent.hosts.directory import Directory, JobListing
from stretto.agent.hosts.signed_rpc import PeerUnreachable
from stretto.agent.hosts.store_options import StoreOptions
from stretto.cli.common import emit
from stretto.core.errors import JobFailed, UsageError
from stretto.core.text import quantity
from stretto.membership import store_schema

POLL_S = 0.3
Command = Callable[..., Any]

Store = Annotated[
    str | None, Option("--store", metavar="URL", help="A job on several hosts: the store that they share.", show_default=False)
]
Token = Annotated[str | None, Option("--store-token", metavar="FILE", help="The store's secret.", show_default=False)]
Ca = Annotated[str | None, Option("--store-ca", metavar="FILE", help="The store's CA certificate.", show_default=False)]
Cert = Annotated[str | None, Option("--store-cert", metavar="FILE", help="A client certificate.", show_default=False)]
Key = Annotated[str | None, Option("--store-key", metavar="FILE", help="The certificate's key.", show_default=False)]
ADDED = {"store": Store, "store_token": Token, "store_ca": Ca, "store_cert": Cert, "store_key": Key}


def by_store(inner: Command, verb: str) -> Command:
    """The command with the store's options; with --store it is this module's function of that name."""
    signature = inspect.signature(inner, eval_str=True)
    own = list(signature.parameters.values())
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in ADDED.items()]

    def command(**given: Any) -> Any:
        options = {name: given.pop(name) for name in ADDED}
        if options["store"] is None:
            return inner(**given)
        shared = StoreOptions(
            options["store"],
            str(given.get("run") or "any"),
            token_file=options["store_token"],
            ca=options["store_ca"],
            certificate=options["store_cert"],
            key=options["store_key"],
        )
        shared.validate()
        work: Callable[..., Coroutine[Any, Any, None]] = VERBS[verb]
        wanted = inspect.signature(work).parameters
        return asyncio.run(work(shared, **{name: value for name, value in given.items() if name in wanted}))

    command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in [*own, *more]}
    command.__doc__ = inner.__doc__
    return command


async def ps(shared: StoreOptions, *, json: bool = False) -> None:
    async with Directory(shared) as directory:
        jobs = await directory.jobs()
        rows = [{**await _progress(directory, one), **one.row()} for one in jobs]
    if json:
        return emit(rows)
    if not rows:
        return print(f"no jobs in {shared.url}")
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("job", "state", "workers", "step", "steps/s", "leader", "hosts"):
        table.add_column(title, overflow="fold")
    for row in rows:
        hosts = ", ".join(map(_host, row["hosts"]))
        workers = f"{row['members']} of {row['least']}:{row['most']}" if row["least"] else ""
        table.add_row(
            row["name"],
            row["state"],
            workers,
            str(row.get("step", "")),
            str(row.get("steps_per_s", "")),
            str(row["leader"] or ""),
            hosts,
        )
    Console(highlight=False).print(table)


def _host(row: dict[str, Any]) -> str:
    cut = f" does not reach {' '.join(row['unreached'])}" if row["unreached"] else ""
    return f"{row['agent']} {row['workers']}/{row['slots']}{' draining' if row['draining'] else ''}{cut}"


async def _progress(directory: Directory, seen: JobListing) -> dict[str, Any]:
    """What only an agent knows: the step and the speed."""
    if seen.chief is None:
        return {}
    try:
        status = await directory.ask(seen, seen.chief, "status")
    except UsageError:
        return {}
    return {name: status.get(name) for name in ("step", "epoch", "steps_per_s", "metrics", "steps")}


async def scale(
    shared: StoreOptions, *, run: str, workers: int, wait: bool = False, timeout: float = 300.0, json: bool = False
) -> None:
    async with Directory(shared) as directory:
        seen = await directory.find(run)
        _check(seen, workers)
        await directory.write(run, store_schema.WANTED, {"workers": workers})
        if wait:
            seen = await _until(
                directory,
                run,
                lambda one: one.members == workers and one.settled,
                timeout_s=timeout,
                why=f"train with {quantity(workers, 'worker')}",
            )
    if json:
        return emit(seen.row())
    print(f"{run}: {quantity(seen.members, 'worker')}" if wait else f"{run}: {quantity(workers, 'worker')} wanted")


def _check(seen: JobListing, workers: int) -> None:
    job = seen.job
    least, most, slices = int(job["least"]), int(job["most"]), int(job.get("slices") or 0)
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


async def stop(
    shared: StoreOptions, *, run: str, now: bool = False, wait: bool = False, timeout: float = 120.0, json: bool = False
) -> None:
    async with Directory(shared) as directory:
        await directory.find(run)
        await directory.write(run, store_schema.STOP, {"now": now})
        seen = await directory.look(run)
        if wait:
            seen = await _until(directory, run, lambda one: not one.job or one.state == "stopped", timeout_s=timeout, why="end")
    if json:
        return emit(seen.row())
    print(f"{run}: {seen.state if wait else 'stopping'}")


async def drain(shared: StoreOptions, *, run: str, agent: str | None = None, json: bool = False) -> None:
    async with Directory(shared) as directory:
        seen = await directory.find(run)
        if agent is None:
            raise UsageError(f"say which agent of job {run!r} shall go, with --agent: it has {', '.join(seen.agents) or 'none'}")
        name = seen.agent(agent)
        await directory.write(run, store_schema.DRAINS + name, {"agent": name})
    if json:
        return emit({"agent": name})
    print(f"agent {name}: its workers leave at the next step boundary, then the agent does")


async def logs(shared: StoreOptions, *, run: str, follow: bool = False, worker: str | None = None) -> None:
    places: dict[str, dict[str, int]] = {}
    async with Directory(shared) as directory:
        seen = await directory.find(run)
        while True:
            for agent in seen.agents:
                await _print_log(directory, seen, agent, places.setdefault(agent, {}), worker)
            if not follow:
                return
            await asyncio.sleep(POLL_S)
            seen = await directory.look(run)
            if not seen.job:
                return


async def _print_log(directory: Directory, seen: JobListing, agent: str, places: dict[str, int], worker: str | None) -> None:
    if worker is not None and "." in worker and worker.rpartition(".")[0] != agent:
        return
    more = True
    while more:
        try:
            answer = await directory.ask(seen, agent, "log", worker=worker, places=places)
        except PeerUnreachable as error:
            print(f"agent {agent} does not answer: {error}", file=sys.stderr)
            return
        more = False
        for stem, piece in answer["pieces"].items():
            places[stem], more = int(piece["place"]), True
            label = f"{agent}.w{stem.removeprefix('worker-')}" if stem.startswith("worker-") else f"{agent}.{stem}"
            for line in piece["text"].splitlines():
                sys.stdout.write(f"[{label}] {line}\n")
    sys.stdout.flush()


async def _until(directory: Directory, name: str, what: Callable[[JobListing], bool], *, timeout_s: float, why: str) -> JobListing:
    deadline = time.monotonic() + timeout_s
    while True:
        seen = await directory.look(name)
        if what(seen):
            return seen
        if time.monotonic() > deadline or (not seen.job and why != "end"):
            raise JobFailed(
                f"job {name!r} does not {why} after {timeout_s:g} s (it is {seen.state}, with "
                f"{quantity(seen.members, 'worker')}): see `stretto logs {name} --store {directory.url}`"
            )
        await asyncio.sleep(POLL_S)


VERBS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"ps": ps, "scale": scale, "stop": stop, "drain": drain, "logs": logs}
