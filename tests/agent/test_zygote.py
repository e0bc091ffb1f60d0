"""The fork server with real forks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from launching import GUARD_S, SOURCE, gone

from stretto.agent.workers.fork_client import Descriptors, ForkServer, describe_exit
from stretto.core.heartbeat import SIZE, HeartbeatReader

SCRIPT = """
import json, os, subprocess, sys, threading, time
import neighbour
mode = os.environ["MODE"]
if mode == "tell":
    print(json.dumps({
        "argv": sys.argv, "cwd": os.getcwd(), "group": os.getpgid(0) == os.getpid(), "stdin": sys.stdin.read(),
        "name": __name__, "file": __file__, "neighbour": neighbour.VALUE, "torch": "torch" in sys.modules, "path": sys.path[0],
        "threads": sys.modules["torch"].get_num_threads(), "alive": threading.active_count(),
        "worker": os.environ["STRETTO_WORKER"],
    }))
    print("to the other stream", file=sys.stderr)
    from stretto.core.heartbeat import Heartbeat
    Heartbeat(int(os.environ["STRETTO_BEAT"])).enter_slice(4, 0, 2)
if mode == "stray":
    one = subprocess.Popen(["sleep", "1000"])
    two = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(one.pid, two.pid, flush=True)
    os._exit(5)
if mode == "raise":
    raise LookupError("not here")
if mode == "memory":
    import resource, torch
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    turns = []
    for _ in range(12):
        before = faults()
        kept = [torch.ones(4 << 20) for _ in range(3)]
        del kept
        turns.append(faults() - before)
    print(json.dumps(turns))
if mode == "sleep":
    time.sleep(1000)
"""


class Bench:
    """An agent that has nothing but a fork server."""

    def __init__(self) -> None:
        self.deaths: dict[str, asyncio.Future[int]] = {}
        self.gone: list[int] = []
        self.forks = ForkServer(died=lambda worker, code: self.deaths[worker].set_result(code), gone=self.gone.append)

    async def life(self, worker: str, mode: str, *, kill: bool = False) -> dict[str, Any]:
        """One worker from its fork to its end: exit code, output, messages."""
        self.deaths[worker] = asyncio.get_running_loop().create_future()
        ours, theirs = socket.socketpair()
        beat = os.memfd_create("beat")
        os.ftruncate(beat, SIZE)
        reader = HeartbeatReader(beat)
        out, out_in = os.pipe()
        err, err_in = os.pipe()
        fds = Descriptors(theirs.detach(), beat, out_in, err_in)
        pid = await self.forks.fork(worker, fds, env={"MODE": mode, "STRETTO_WORKER": worker}, threads=1)
        if kill:
            self.forks.kill(pid)
        code = await asyncio.wait_for(self.deaths[worker], GUARD_S)
        texts = [await asyncio.to_thread(_drain, fd) for fd in (out, err)]
        with ours:
            ours.settimeout(GUARD_S)
            said = b"".join(iter(lambda: ours.recv(65536), b""))
        return {"pid": pid, "code": code, "out": texts[0], "err": texts[1], "said": said, "pulse": reader.read()}


def _drain(fd: int) -> str:
    with open(fd) as file:
        return file.read()


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Several workers of one fork server, which is started once: it imports torch."""
    folder = tmp_path_factory.mktemp("zygote")
    (folder / "program.py").write_text(SCRIPT)
    (folder / "neighbour.py").write_text("VALUE = 17\n")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "json.py").write_text("raise RuntimeError('the working folder shadows the library')\n")

    async def story() -> dict[str, Any]:
        bench = Bench()
        await bench.forks.start(
            str(folder / "program.py"), ["--a", "b c"], threads=1, env={"PYTHONPATH": str(SOURCE)}, cwd=str(folder / "elsewhere")
        )
        found: dict[str, Any] = {"folder": folder, "zygote": bench.forks.pid}
        work: dict[str, Coroutine[Any, Any, dict[str, Any]]] = {
            "tell": bench.life("w0", "tell"),
            "raise": bench.life("w1", "raise"),
            "stray": bench.life("w2", "stray"),
            "killed": bench.life("w3", "sleep", kill=True),
        }
        for name, life in work.items():
            found[name] = await life
        found["tasks"] = len(os.listdir(f"/proc/{bench.forks.pid}/task"))
        found["strays"] = [gone(int(pid)) for pid in found["stray"]["out"].split()]
        found["gone"] = list(bench.gone)
        await bench.forks.close()
        found["closed"] = gone(bench.forks.pid)
        return found

    return asyncio.run(story())


def test_a_worker_runs_the_script_as_python_itself_would(lives: dict[str, Any]) -> None:
    told = json.loads(lives["tell"]["out"])
    assert lives["tell"]["code"] == 0
    assert told["argv"] == [str(lives["folder"] / "program.py"), "--a", "b c"]
    assert told["name"] == "__main__"
    assert told["path"] == str(lives["folder"])
    assert told["neighbour"] == 17
    assert told["cwd"] == str(lives["folder"] / "elsewhere")
    assert told["stdin"] == ""
    assert lives["tell"]["err"] == "to the other stream\n"


def test_it_is_warm_single_threaded_and_in_a_group_of_its_own(lives: dict[str, Any]) -> None:
    told = json.loads(lives["tell"]["out"])
    assert told["torch"]
    assert (told["threads"], told["alive"]) == (1, 1)
    assert told["group"]
    assert told["worker"] == "w0"
    assert lives["tasks"] == 1, "the fork server must have one thread when it forks"


def test_the_beat_it_wrote_can_be_read_after_its_death(lives: dict[str, Any]) -> None:
    assert (lives["tell"]["pulse"].step, lives["tell"]["pulse"].slice) == (4, 2)


def test_an_exception_is_told_with_its_traceback(lives: dict[str, Any]) -> None:
    message = json.loads(lives["raise"]["said"])
    assert (message["kind"], message["type"]) == ("crash", "LookupError")
    assert "not here" in message["traceback"]
    assert lives["raise"]["code"] != 0


def test_what_a_dead_worker_had_started_is_killed_even_in_another_session(lives: dict[str, Any]) -> None:
    assert lives["stray"]["code"] == 5
    assert lives["strays"] == [True, True]


def test_deaths_by_signals_are_told_as_such(lives: dict[str, Any]) -> None:
    assert lives["killed"]["code"] == -signal.SIGKILL
    assert describe_exit(-9) == "signal 9 (SIGKILL)"
    assert describe_exit(3) == "exit code 3"


def test_it_ends_with_its_agent_and_not_before(lives: dict[str, Any]) -> None:
    assert lives["gone"] == []
    assert lives["closed"]


SETTINGS: dict[str, tuple[dict[str, str], bool]] = {
    "ours": ({}, True),
    "another variable": ({"MALLOC_ARENA_MAX": "2"}, True),
    "the user's own": ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False),
    "a tunable": ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}, False),
}


@pytest.mark.parametrize(("setting", "kept"), SETTINGS.values(), ids=SETTINGS)
def test_a_worker_keeps_freed_memory_unless_the_user_decided_otherwise(tmp_path: Path, setting: dict[str, str], kept: bool) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("")

    async def story() -> dict[str, Any]:
        bench = Bench()
        await bench.forks.start(
            str(tmp_path / "program.py"), [], threads=1, env={"PYTHONPATH": str(SOURCE), **setting}, cwd=str(tmp_path)
        )
        life = await bench.life("w0", "memory")
        await bench.forks.close()
        return life

    life = asyncio.run(story())
    assert life["code"] == 0, life["err"]
    pages = 3 * (16 << 20) // os.sysconf("SC_PAGESIZE")
    faults = json.loads(life["out"])[6:]
    if kept:
        assert max(faults) < pages // 10
    else:
        assert min(faults) > pages // 2, "as glibc does it: every turn asks the kernel for all of it again"


def test_a_fork_server_that_cannot_start_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    async def story() -> list[int]:
        bench = Bench()
        await bench.forks.start("x.py", [], threads=1, env={"PYTHONPATH": str(tmp_path)}, cwd=str(tmp_path))
        os.kill(bench.forks.pid, signal.SIGKILL)
        for _ in range(1000):
            if bench.gone:
                break
            await asyncio.sleep(0.01)
        await bench.forks.close()
        return bench.gone

    assert asyncio.run(story()) == [-signal.SIGKILL]
