"""`stretto logs`: prints the output of workers, each line with its worker's name."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from stretto.agent.control_server import alive
from stretto.agent.records.run_folder import RunFolder
from stretto.cli import server_commands
from stretto.cli.options import (
    Output,
    OutputFormat,
    Run,
    Runs,
    Server,
    Store,
    StoreCa,
    StoreCert,
    StoreKey,
    StoreToken,
    store_options,
)
from stretto.cli.targets import folder_of, on_server
from stretto.core.errors import UsageError

POLL_S = 0.2
CHUNK = 1 << 20


def command(
    run: Run,
    *,
    follow: Annotated[bool, Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
    worker: Annotated[str | None, Option(metavar="K", help="Only this worker: 3 or w3; `agent` for the agent's own.")] = None,
    runs: Runs = None,
    server: Server = None,
    output: Output = OutputFormat.TABLE,
    store: Store = None,
    store_token: StoreToken = None,
    store_ca: StoreCa = None,
    store_cert: StoreCert = None,
    store_key: StoreKey = None,
) -> None:
    """Prints the logs of a local run, of a job of the server, or of a job on several hosts."""
    if store is not None:
        from stretto.cli import store_commands

        shared = store_options(store, run, token=store_token, ca=store_ca, cert=store_cert, key=store_key)
        return asyncio.run(store_commands.logs(shared, run, follow=follow, worker=worker))
    if on_server(server, runs, run):
        return server_commands.logs(run, server, output, follow=follow, worker=worker)
    if output is not OutputFormat.TABLE:
        raise UsageError(f"-o {output}: a local run's logs are text; leave -o away")
    print_logs(folder_of(run, runs), follow=follow, worker=worker)


def print_logs(folder: RunFolder, *, follow: bool, worker: str | None) -> None:
    """Prints the logs of a local run; with `follow`, until the run ends."""
    tails: dict[Path, _Tail] = {}
    while True:
        ended = not follow or folder.read(folder.result) is not None or not alive(folder)
        paths = _paths(folder, worker)
        if not paths and worker is not None and ended:
            workers = ", ".join(f"w{path.stem.removeprefix('worker-')}" for path in _paths(folder, None))
            there = f"it has {workers}, and agent" if workers else "none of its workers has begun"
            raise UsageError(f"run {folder.name!r} has no log of worker {worker!r}: {there}")
        for path in paths:
            tails.setdefault(path, _Tail(path)).print_new(last=ended)
        if ended:
            return
        time.sleep(POLL_S)


@dataclass(slots=True)
class _Tail:
    path: Path
    place: int = 0
    rest: bytes = b""

    def print_new(self, *, last: bool) -> None:
        """Prints the complete lines; with `last`, the rest too."""
        stem = self.path.stem
        label = f"w{stem.removeprefix('worker-')}" if stem.startswith("worker-") else stem
        with open(self.path, "rb") as file:
            file.seek(self.place)
            while data := file.read(CHUNK):
                self.place += len(data)
                *lines, self.rest = (self.rest + data).split(b"\n")
                for line in lines:
                    sys.stdout.write(f"[{label}] {line.decode('utf-8', 'replace')}\n")
        if last and self.rest:
            sys.stdout.write(f"[{label}] {self.rest.decode('utf-8', 'replace')}\n")
            self.rest = b""
        sys.stdout.flush()


def _paths(folder: RunFolder, worker: str | None) -> list[Path]:
    if worker is not None:
        path = folder.logs / "agent.log" if worker == "agent" else folder.logs / f"worker-{worker.removeprefix('w')}.log"
        return [path] if path.is_file() else []
    paths = [path for path in folder.logs.glob("worker-*.log") if re.fullmatch(r"worker-\d+", path.stem)]
    return sorted(paths, key=lambda path: int(path.stem.removeprefix("worker-")))
