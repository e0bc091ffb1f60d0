"""The control port: only who can read the run folder may ask, and nothing that is sent there hurts."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import environment

from stretto.agent.control_server import LINE_BYTES, ControlServer, alive, ask
from stretto.agent.records.run_folder import RunFolder, write_json
from stretto.core.errors import UsageError


def serve(folder: RunFolder, asking: Callable[[], Any]) -> Any:
    async def handle(request: dict[str, Any]) -> dict[str, Any]:
        if request["verb"] == "refuse":
            raise UsageError("9 workers are too many")
        return {"echo": request["verb"]}

    async def story() -> Any:
        control = ControlServer(folder, handle=handle)
        await control.start()
        try:
            return await asyncio.to_thread(asking)
        finally:
            await control.close()

    return asyncio.run(story())


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def raw(folder: RunFolder, data: bytes) -> bytes:
    control = json.loads(folder.control.read_text())
    with socket.create_connection(("127.0.0.1", control["port"]), timeout=30) as connection:
        connection.sendall(data)
        return connection.makefile("rb").readline()


def test_a_request_is_answered_and_a_refusal_is_an_error_with_its_text(folder: RunFolder) -> None:
    assert serve(folder, lambda: ask(folder, "status")) == {"echo": "status"}
    with pytest.raises(UsageError, match="9 workers are too many"):
        serve(folder, lambda: ask(folder, "refuse"))


def test_the_token_is_readable_for_the_owner_only_and_goes_with_the_agent(folder: RunFolder) -> None:
    mode = serve(folder, lambda: stat.S_IMODE(folder.control.stat().st_mode))
    assert mode == 0o600
    assert not folder.control.exists()


@pytest.mark.parametrize("data", [b'{"token": "wrong", "verb": "status"}\n', b'{"verb": "status"}\n', b"[]\n", b"\xff\n", b"\n"])
def test_without_the_token_nothing_is_done(folder: RunFolder, data: bytes) -> None:
    answer = json.loads(serve(folder, lambda: raw(folder, data)))
    assert answer["ok"] is False
    assert "echo" not in answer


def test_a_line_that_never_ends_is_cut_off_and_the_port_lives_on(folder: RunFolder) -> None:
    def asking() -> tuple[bytes, dict[str, Any]]:
        try:
            first = raw(folder, b"x" * (LINE_BYTES * 3) + b"\n")
        except ConnectionError:
            first = b""
        return first, ask(folder, "status")

    first, second = serve(folder, asking)
    assert first == b""
    assert second == {"echo": "status"}


def test_a_run_whose_agent_is_gone_says_so(folder: RunFolder) -> None:
    with pytest.raises(UsageError, match="its agent is gone and left no result"):
        ask(folder, "status")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        write_json(folder.control, {"pid": 1, "port": unused.getsockname()[1], "token": "t"})
        assert not alive(folder)
        with pytest.raises(UsageError, match="its agent is gone and left no result"):
            ask(folder, "status")
    write_json(folder.result, {"state": "finished"})
    with pytest.raises(UsageError, match="it is finished"):
        ask(folder, "scale", workers=2)


SILENT = """
import asyncio, socket, sys
from pathlib import Path
from stretto.agent.control_server import ControlServer
from stretto.agent.records.run_folder import RunFolder

async def main():
    folder = RunFolder(Path(sys.argv[1]))
    control = ControlServer(folder, handle=None)
    await control.start()
    client = socket.create_connection(("127.0.0.1", folder.read(folder.control)["port"]))
    await asyncio.sleep(0.2)
    await control.close()
    return client

asyncio.run(main())
"""


def test_a_client_that_has_said_nothing_when_the_agent_ends_shows_nobody_a_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SILENT, str(tmp_path)], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
