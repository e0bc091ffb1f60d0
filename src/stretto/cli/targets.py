"""What a verb acts on: a local run, or a job of the server.

`--server` or STRETTO_SERVER names the server, `--runs` means local. Otherwise a local run of that name comes first,
then the server of the saved login, if it answers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stretto.agent.control_server import alive, ask
from stretto.agent.records.run_folder import RunFolder, find
from stretto.core.errors import UsageError

if TYPE_CHECKING:
    from stretto.server.client import Client

LOGIN_CHECK_S = 3.0

Document: TypeAlias = dict[str, Any]
"""A JSON document of a run: its request, its result, its agent's status."""


def runs_folder(runs: Path | None) -> Path:
    """The folder that holds local runs."""
    return runs or Path(os.environ.get("STRETTO_RUNS", "runs"))


def folder_of(run: str, runs: Path | None) -> RunFolder:
    """The folder of a local run, by its name, its path or its script's name."""
    return find(run, runs=runs_folder(runs))


def run_status(folder: RunFolder) -> Document:
    """A run's status: from its agent while that lives, then from its result; `lost` if there is neither."""
    result = folder.read(folder.result)
    if result is not None:
        return result
    if alive(folder):
        try:
            return ask(folder, "status", timeout_s=5.0)
        except UsageError as error:
            return {"name": folder.name, "state": _last_state(folder), "error": str(error)}
    return {"name": folder.name, "state": _last_state(folder)}


def _last_state(folder: RunFolder) -> str:
    result = folder.read(folder.result)
    return str(result["state"]) if result is not None else "lost"


def client(server: str | None) -> Client:
    """A client of the server; an error says how to reach one."""
    from stretto.server.client import Client

    return Client(server)


def server_named(server: str | None) -> bool:
    """Whether an option or the environment names a server."""
    return bool(server or os.environ.get("STRETTO_SERVER"))


def server_known(server: str | None) -> bool:
    """Whether a server is named or a login is saved."""
    if server_named(server):
        return True
    home = Path(os.environ.get("STRETTO_HOME") or "~/.stretto").expanduser()
    if not (home / "login.json").is_file():
        return False
    from stretto.server.settings import read_login

    return read_login(home / "login.json") is not None


def server_answers() -> bool:
    """Whether the server of the saved login answers: a login outlives its server."""
    from stretto.server.client import Client, ServerError

    try:
        with Client(timeout_s=LOGIN_CHECK_S) as login:
            login.overview()
        return True
    except ServerError:
        return False


def on_server(server: str | None, runs: Path | None, run: str | None) -> bool:
    """Whether the verb means a job of the server."""
    if server_named(server):
        return True
    if runs is not None or not server_known(server):
        return False
    if run is not None and any((path / "run.json").is_file() for path in (runs_folder(None) / run, Path(run))):
        return False
    if run is None and runs_folder(None).is_dir():
        return False
    if server_answers():
        return True
    print("the server of the saved login does not answer, so these are local runs: is `stretto serve` running?", file=sys.stderr)
    return False


def mention_server() -> None:
    """After a list of local runs: points to the server if it has jobs that have not ended."""
    if not (server_known(None) and server_answers()):
        return
    with client(None) as login:
        url, jobs = login.url, login.overview().jobs
    count = sum(number for state, number in jobs.items() if not state.ended)
    if count:
        those = "1 job that has" if count == 1 else f"{count} jobs that have"
        print(f"the server {url} has {those} not ended: stretto ps --server {url}", file=sys.stderr)
