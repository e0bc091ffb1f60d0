"""Agents on other hosts over the system's ssh, with the user's own configuration.

An agent is detached on its host and its output followed over the connection, so that losing the connection loses nothing but
the view. The store's secret goes over standard input: a command line can be read by everybody on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stretto.agent.records.run_folder import write_json
from stretto.core.errors import UsageError

CONNECT_S = 10
ALIVE_S = 5
AGAIN = 5
"""Times that a lost connection is made again."""
DETACHED = "stretto-detached"
LINE_BYTES = 1 << 20
TARGET = re.compile(r"(?P<host>[^:\s]+)(?::(?P<slots>\d+))?")
LOST = 255
"""ssh's exit code when it is the connection that failed."""


@dataclass(slots=True)
class Target:
    """One host of `--hosts`."""

    host: str
    slots: int | None = None
    console: str = ""
    pid: int = 0
    """Where its agent's output is and who waits for it, once it has been started."""


@dataclass(slots=True)
class SshLaunch:
    """What `attach` and `stop` have to know later; kept beside the runs, readable by its owner only."""

    job: str
    store: str
    token: str
    folder: str
    python: str
    environment: dict[str, str]
    targets: list[Target] = field(default_factory=list[Target])
    tls: list[str] = field(default_factory=list[str])
    """Options of the store that verbs need too."""

    def save(self, path: Path) -> None:
        write_json(path, asdict(self), mode=0o600)

    @staticmethod
    def load(path: Path) -> SshLaunch:
        document: dict[str, Any] = json.loads(path.read_bytes())
        document["targets"] = [Target(**target) for target in document["targets"]]
        return SshLaunch(**document)


def parse_hosts(text: str) -> list[Target]:
    """`a,b,c:4`."""
    targets: list[Target] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = TARGET.fullmatch(word)
        if match is None or word.startswith("-"):
            raise UsageError(
                f"--hosts {text!r}: {word!r} is no host; write names that ssh knows, with a number of workers where "
                "it matters, as in --hosts a,b,c:4"
            )
        targets.append(Target(match["host"], int(match["slots"]) if match["slots"] else None))
    names = [target.host for target in targets]
    if not targets or len(set(names)) != len(names):
        raise UsageError(f"--hosts {text!r} must name at least one host, and each one once")
    return targets


async def address_of(host: str) -> str:
    """What the user's ssh configuration says that this name stands for."""
    process = await asyncio.create_subprocess_exec(ssh(), "-T", "-G", host, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    match = re.search(rb"^hostname (\S+)$", out, re.MULTILINE)
    return match[1].decode() if match else host


def ssh() -> str:
    path = shutil.which("ssh")
    if path is None:
        raise UsageError("--hosts starts agents with ssh, which is not installed here: apt-get install openssh-client")
    return path


def remote(launch: SshLaunch, words: Sequence[str]) -> str:
    """A command of ours as the remote shell gets it."""
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in launch.environment.items())
    lines = [
        "IFS= read -r STRETTO_STORE_TOKEN",
        "export STRETTO_STORE_TOKEN",
        *([f"export {exports}"] if exports else []),
        f"cd {shlex.quote(launch.folder)} || exit 96",
        f'P={shlex.quote(launch.python)}; [ -x "$P" ] || P=$(command -v python3) || exit 97',
        f'exec "$P" -m stretto.cli.main {shlex.join(words)}',
    ]
    return f"sh -c {shlex.quote('; '.join(lines))}"


async def call(launch: SshLaunch, host: str, words: Sequence[str], *, hear: Callable[[str], None]) -> tuple[int, str]:
    """Runs it there to its end; its exit code and what it said on standard error. Cancelling ends the connection alone."""
    process = await asyncio.create_subprocess_exec(
        ssh(),
        "-T",
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={CONNECT_S}",
        "-o",
        f"ServerAliveInterval={ALIVE_S}",
        "-o",
        "ServerAliveCountMax=3",
        host,
        remote(launch, words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
        start_new_session=True,
    )  # Ctrl-C is ours to handle
    assert process.stdin and process.stdout and process.stderr
    errors: list[str] = []
    try:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(launch.token.encode() + b"\n")
            await process.stdin.drain()
        await asyncio.gather(_lines(process.stdout, hear), _lines(process.stderr, errors.append))
        return await process.wait(), "\n".join(errors[-20:])
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _lines(stream: asyncio.StreamReader, hear: Callable[[str], None]) -> None:
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue  # longer than a line may be: its rest follows
        if not line:
            return
        hear(line.decode("utf-8", "replace").rstrip("\n"))


def explain(host: str, code: int, output: str, *, folder: str) -> str:
    """Why an agent could not be started there, and what helps."""
    shown = output.strip().splitlines()[-1] if output.strip() else f"exit code {code}"
    if code == LOST and "Permission denied" in output:
        return (
            f"host {host}: ssh would ask for a password or refuses the key ({shown}): agents are started without a terminal, "
            f"so set up a key, for instance with `ssh-copy-id {host}`, and try `ssh {host} true`"
        )
    if code == LOST and "verification failed" in output:
        return f"host {host}: ssh does not know its host key yet ({shown}): connect once by hand with `ssh {host} true`"
    if code == LOST:
        return f"host {host} cannot be reached by ssh ({shown}): try `ssh {host} true`"
    if code == 96:
        return f"host {host} has no folder {folder} ({shown}): the script must be at the same place on every host"
    if code == 97:
        return f"host {host} has no python3: install what this host has"
    if "No module named" in output:
        return f"host {host}: {shown}: install stretto there, for the Python that is used here ({sys.executable}) or for python3"
    return f"host {host}: {shown}"


def detached(line: str) -> tuple[str, int] | None:
    """The console and the pid that a host says its agent has."""
    words = line.split(" ", 2)
    return (words[2], int(words[1])) if len(words) == 3 and words[0] == DETACHED and words[1].isdigit() else None


def passed_on(names: Mapping[str, str]) -> dict[str, str]:
    return {name: names[name] for name in ("PYTHONPATH", "STRETTO_RUNS") if names.get(name)}
