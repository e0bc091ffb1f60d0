"""`stretto run --hosts a,b,c:4`: one terminal, agents everywhere; and `stretto attach`, after the terminal was lost."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from stretto.agent.hosts.daemonize import follow, start, to_stdout
from stretto.agent.hosts.ssh import (
    AGAIN,
    DETACHED,
    LOST,
    SshLaunch,
    Target,
    address_of,
    call,
    detached,
    explain,
    parse_hosts,
    passed_on,
)
from stretto.agent.hosts.store_options import StoreOptions
from stretto.cli.options import Runs
from stretto.cli.targets import runs_folder
from stretto.core.errors import JobFailed, UsageError

PORTS = (20_000, 30_000)
TAIL_BYTES = 4096


def launch(
    text: str, *, script: str, args: Sequence[str], shared: StoreOptions | None, job: str | None, runs: Path | None, token: str
) -> None:
    """Starts an agent on every host and shows what all of them say, to the job's end."""
    typed = sys.argv[2:]
    words = [*own_words(typed[: len(typed) - len(args) - 1]), script, *args]
    targets = parse_hosts(text)
    name = job or f"{re.sub(r'[^A-Za-z0-9_-]', '-', Path(script).stem)}-{secrets.token_hex(3)}"
    asyncio.run(_launch(targets, name, words, shared=shared, runs=runs_folder(runs), token=token))


async def _launch(targets: list[Target], job: str, own: list[str], *, shared: StoreOptions | None, runs: Path, token: str) -> None:
    if shared is not None:
        store = shared.url
    else:
        port = PORTS[0] + secrets.randbelow(PORTS[1] - PORTS[0])
        address = await address_of(targets[0].host)
        store = f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
        token = token or secrets.token_hex(32)
    plan = SshLaunch(job, store, token, os.getcwd(), sys.executable, passed_on(os.environ), targets, tls_words(shared))
    await _reachable(plan)
    runs.mkdir(parents=True, exist_ok=True)
    record = runs / f"{job}.hosts.json"
    print(
        f"job {job} on {', '.join(target.host for target in targets)}; after a lost terminal: stretto attach {job}", file=sys.stderr
    )

    def words(target: Target) -> list[str]:
        slots = ["--slots", str(target.slots)] if target.slots is not None else []
        return ["run", "--detach", "--store", store, "--job", job, "--host", target.host.rpartition("@")[2], *slots, *own]

    terminal = Terminal(plan, record)
    await terminal.watch([terminal.begin(target, words(target)) for target in targets])


async def _reachable(plan: SshLaunch) -> None:
    """Every host answers and has what is needed, before anything is started on any."""

    async def check(target: Target) -> str:
        code, output = await call(plan, target.host, ["version"], hear=lambda line: None)
        return explain(target.host, code, output, folder=plan.folder) if code else ""

    problems = [text for text in await asyncio.gather(*map(check, plan.targets)) if text]
    if problems:
        raise JobFailed("; ".join(problems))


def attach(
    job: Annotated[str, Argument(metavar="JOB", help="The job's name.", show_default=False)],
    *,
    runs: Runs = None,
    console: Annotated[str | None, Option(hidden=True)] = None,
    pid: Annotated[int, Option(hidden=True)] = 0,
    tail: Annotated[int, Option(hidden=True)] = 0,
) -> None:
    """Shows again the output of all hosts. `console`, `pid` and `tail` are for its own calls over ssh."""
    if console is not None:
        raise Exit(follow(Path(console), pid, show=to_stdout, tail=tail))
    record = runs_folder(runs) / f"{job}.hosts.json"
    if not record.is_file():
        jobs = sorted(path.name.removesuffix(".hosts.json") for path in runs_folder(runs).glob("*.hosts.json"))
        raise UsageError(
            f"no job {job!r} was started from here with --hosts ({record} is not there): "
            f"{'there is ' + ', '.join(jobs) if jobs else 'see `stretto ps --store URL`'}"
        )
    plan = SshLaunch.load(record)
    terminal = Terminal(plan, record)
    asyncio.run(terminal.watch([terminal.view(target, tail=TAIL_BYTES) for target in plan.targets if target.console]))


def run_detached(words: Sequence[str], *, job: str, runs: Path | None) -> None:
    """On the host itself: starts the agent, says where its output is, and shows it for as long as somebody listens."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    console = (runs_folder(runs) / ".console" / f"{job}-{int(time.time())}-{os.getpid()}.log").resolve()
    pid = start([sys.executable, "-m", "stretto.cli.main", "run", *words], console)
    print(f"{DETACHED} {pid} {console}", flush=True)
    raise Exit(follow(console, pid, show=to_stdout))


def tls_words(shared: StoreOptions | None) -> list[str]:
    """The options with which any verb reaches the same store."""
    named = {"--store-ca": shared.ca, "--store-cert": shared.certificate, "--store-key": shared.key} if shared is not None else {}
    return [word for name, path in named.items() if path is not None for word in (name, path)]


REPLACED = {
    "--hosts": 1,
    "--store": 1,
    "--job": 1,
    "--slots": 1,
    "--host": 1,
    "--detach": 0,
    "--quiet": 0,
    "-q": 0,
    "--json": 0,
    "--store-token": 1,
}
"""Options of `run` that every host gets its own values for, and the number of words after each."""


def own_words(options: Sequence[str]) -> list[str]:
    """The options as typed, without those that every host gets its own values for."""
    kept: list[str] = []
    skip = 0
    for word in options:
        name, given, _ = word.partition("=")
        if skip:
            skip -= 1
        elif name in REPLACED:
            skip = 0 if given else REPLACED[name]
        else:
            kept.append(word)
    return kept


class Terminal:
    """What one terminal shows of a job on several hosts. Ctrl-C: the job ends in order; twice: now; three times: only the view."""

    def __init__(self, plan: SshLaunch, record: Path) -> None:
        self._plan = plan
        self._record = record
        self._interrupts = 0
        self._tasks: list[asyncio.Task[int]] = []
        self._stops: set[asyncio.Task[None]] = set()

    async def watch(self, views: Sequence[Awaitable[int]]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        self._tasks = [asyncio.ensure_future(view) for view in views]
        done, pending = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in done if not task.cancelled() and task.exception() is not None]
        if failed:
            await self._stop(now=True, quiet=True)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            error = failed[0].exception()
            assert error is not None
            raise error
        if any(task.cancelled() for task in self._tasks):
            raise Exit(130)
        raise Exit(max(task.result() for task in self._tasks))

    async def begin(self, target: Target, words: Sequence[str]) -> int:
        """Starts the agent there and shows its output."""

        def on_line(line: str) -> None:
            detachment = detached(line)
            if detachment is not None and not target.console:
                target.console, target.pid = detachment
                self._plan.save(self._record)
            else:
                self._print(target, line)

        code, output = await call(self._plan, target.host, words, hear=on_line)
        if not target.console:
            raise JobFailed(explain(target.host, code, output, folder=self._plan.folder))
        return await self.view(target, tail=0) if code == LOST else code

    async def view(self, target: Target, *, tail: int) -> int:
        """Shows the output of an agent that runs already, and connects again where that is lost."""
        words = ["attach", self._plan.job, "--console", target.console, "--pid", str(target.pid), "--tail", str(tail)]
        for attempt in range(AGAIN):
            self._print(target, "(connecting again)" if attempt or not tail else "(attached)")
            code, output = await call(self._plan, target.host, words, hear=lambda line: self._print(target, line))
            if code != LOST:
                return code
            self._print(target, f"(the connection was lost, its agent goes on; {output.strip()[-200:] or 'ssh ended'})")
            await asyncio.sleep(2.0**attempt)
        self._print(target, f"(given up; the agent may well run: stretto attach {self._plan.job})")
        return LOST

    def _print(self, target: Target, line: str) -> None:
        print(f"{target.host}| {line}", flush=True)

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 2:
            print(f"not watching any more; the job may still run: stretto attach {self._plan.job}", file=sys.stderr)
            for task in self._tasks:
                task.cancel()
            return
        first = "stopping the job at the next step boundary; a second Ctrl-C stops it at once"
        print(first if self._interrupts == 1 else "stopping the job now", file=sys.stderr)
        task = asyncio.ensure_future(self._stop(now=self._interrupts > 1))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _stop(self, *, now: bool, quiet: bool = False) -> None:
        """Asked of the first host that can be reached: the others hear of it through the store."""
        words = ["stop", self._plan.job, "--store", self._plan.store, *self._plan.tls, *(["--now"] if now else [])]
        silent: Callable[[str], None] = lambda line: None  # noqa: E731
        for target in self._plan.targets:
            if target.console:
                code, output = await call(self._plan, target.host, words, hear=silent)
                if code == 0:
                    return
                if not quiet:
                    self._print(target, f"(could not be asked to stop the job: {output.strip()[-200:]})")
