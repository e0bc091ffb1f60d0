"""Elastic systems behind one handle, so that the rescale benchmark does the same to each of them.

A system starts with two workers. `join` adds a third; `kill`, `freeze` and `leave` take the third away again. Each returns
when the change is done and some steps have followed; the pause is the longer one of the first two workers', from their trails.
(Two that survive one, because torchft waits longer, for fear of a split brain, where a majority is lost.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from benchmarks.process import BIN, PYTHON, children, finish, free_port, launch, wait_for
from benchmarks.trail import Mark, pause_s, read, step_s

LIMIT_S = 180.0
"""A change that takes longer than this is a failure of the benchmark."""
STEPS = 30
"""How many steps have to follow a change before the window is closed."""


class Elastic(ABC):
    """One job of an elastic system, in a folder of its own."""

    name = ""

    def __init__(self, folder: Path, workload: str, *, steps: int = STEPS) -> None:
        self.folder = folder
        self.workload = workload
        self.steps = steps
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Elastic:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        finish(list(self.processes.values()))

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def join(self) -> float: ...

    @abstractmethod
    def leave(self) -> float: ...

    @abstractmethod
    def kill(self) -> float: ...

    def freeze(self) -> float | None:
        """None where the system has nothing against a frozen worker."""
        return None

    def trails(self) -> list[list[Mark]]:
        """Of the two workers that stay."""
        return [read(self.folder / f"trail-{node}") for node in ("a", "b")]

    def settled(self, moment: float, *, world: int) -> bool:
        return all(sum(mark.at > moment and mark.world == world for mark in marks) >= self.steps for marks in self.trails())

    def settle(self, moment: float, *, world: int, what: str) -> None:
        wait_for(lambda: self.settled(moment, world=world), what=f"{self.name}: {what}", limit_s=LIMIT_S)

    def measure(self, since: float, *, world: int, what: str) -> float:
        """Waits for the change and gives the survivors' longest pause since then."""
        usual_s = max(step_s([mark for mark in marks if mark.at <= since][-self.steps :]) for marks in self.trails())
        self.settle(since, world=world, what=what)
        now = time.monotonic()
        return max(pause_s(marks, since=since, until=now, usual_s=usual_s) for marks in self.trails())


class Torchrun(Elastic):
    """Agents of one worker each. Everyone restarts on every change; the next start loads a checkpoint."""

    name = "torchrun"

    def __enter__(self) -> Torchrun:
        super().__enter__()
        self.port = free_port()
        return self

    def _agent(self, node: str) -> None:
        command = [
            BIN / "torchrun",
            "--nnodes=2:3",
            "--nproc-per-node=1",
            "--rdzv-backend=c10d",
            "--rdzv-id=bench",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            "--local-addr=127.0.0.1",
            "--max-restarts=20",
            "--rdzv-conf=last_call_timeout=1",
            "-m",
            "benchmarks.scripts.rescale_torchrun",
            self.folder,
            self.workload,
        ]
        # Without this variable scaling up hangs in torch 2.13: the first rank keeps a cached store.
        self.processes[node] = launch(
            command, log=self.folder / f"{node}.log", env={"TRAIL_NODE": node, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        )

    def start(self) -> None:
        self._agent("a")
        self._agent("b")
        self.settle(0, world=2, what="the first steps")

    def join(self) -> float:
        since = time.monotonic()
        self._agent("c")
        return self.measure(since, world=3, what="a join")

    def leave(self) -> float:
        since = time.monotonic()
        self.processes["c"].terminate()
        return self.measure(since, world=2, what="a leave")

    def kill(self) -> float:
        """The worker dies, its agent lives: torchrun restarts all of them."""
        worker = children(self.processes["c"].pid)
        since = time.monotonic()
        os.kill(worker[0], signal.SIGKILL)
        # Steps that were under way may still be finished: what counts is the new start.
        wait_for(lambda: children(self.processes["c"].pid) not in ([], worker), what="torchrun: a new worker")
        return self.measure(since, world=3, what="a restart after a kill")


class Torchft(Elastic):
    """A lighthouse and replica groups of one process each."""

    name = "torchft"

    def __enter__(self) -> Torchft:
        super().__enter__()
        self.port = free_port()
        command = [BIN / "torchft_lighthouse", "--min_replicas", "1", "--join_timeout_ms", "1000", "--bind", f"[::]:{self.port}"]
        self.processes["lighthouse"] = launch(command, log=self.folder / "lighthouse.log")
        return self

    def _replica(self, node: str) -> None:
        self.processes[node] = launch(
            [PYTHON, "-m", "benchmarks.scripts.rescale_torchft", self.folder, self.workload],
            log=self.folder / f"{node}.log",
            env={"TRAIL_NODE": node, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}"},
        )

    def start(self) -> None:
        self._replica("a")
        self._replica("b")
        self.settle(0, world=2, what="the first steps")

    def join(self) -> float:
        since = time.monotonic()
        self._replica("c")
        return self.measure(since, world=3, what="a join")

    def leave(self) -> float:
        since = time.monotonic()
        self.processes["c"].terminate()
        return self.measure(since, world=2, what="a leave")

    def kill(self) -> float:
        since = time.monotonic()
        self.processes["c"].kill()
        return self.measure(since, world=2, what="a kill")

    def freeze(self) -> float | None:
        since = time.monotonic()
        self.processes["c"].send_signal(signal.SIGSTOP)
        pause = self.measure(since, world=2, what="a freeze")
        self.processes["c"].kill()
        return pause


class Stretto(Elastic):
    """One agent on this machine, for a job of two workers and a third; `base=1` for one and a second."""

    name = "stretto"

    def __init__(self, folder: Path, workload: str, *, base: int = 2, steps: int = STEPS) -> None:
        super().__init__(folder, workload, steps=steps)
        self.base = base
        self.stayed: list[int] = []

    def start(self) -> None:
        self.processes["agent"] = launch(
            [
                BIN / "stretto",
                "run",
                "--quiet",
                "--workers",
                f"1:{self.base + 1}",
                "--start",
                str(self.base),
                "--runs",
                self.folder / "runs",
                "--name",
                "bench",
                "--max-restarts",
                "20",
                "benchmarks/scripts/rescale_stretto.py",
                self.folder,
                self.workload,
            ],
            log=self.folder / "agent.log",
        )
        wait_for(lambda: len(self._pids()) == self.base, what="stretto: its first workers", limit_s=LIMIT_S)
        self.stayed = self._pids()
        self.settle(0, world=self.base, what="the first steps")

    def _pids(self) -> list[int]:
        """All workers that there ever were, the youngest last."""
        paths = sorted(self.folder.glob("trail-*"), key=lambda path: path.stat().st_ctime)
        return [int(path.name.split("-")[1]) for path in paths]

    def trails(self) -> list[list[Mark]]:
        return [read(self.folder / f"trail-{pid}") for pid in self.stayed]

    def third(self) -> int:
        """The process of the worker that is not one of the first."""
        now = [pid for pid in self._pids() if pid not in self.stayed and Path(f"/proc/{pid}").exists()]
        return now[-1]

    def scale(self, workers: int) -> None:
        subprocess.run(
            [BIN / "stretto", "scale", "bench", str(workers), "--runs", self.folder / "runs"],
            check=True,
            capture_output=True,
            timeout=60,
        )

    def join(self) -> float:
        since = time.monotonic()
        self.scale(self.base + 1)
        return self.measure(since, world=self.base + 1, what="a join")

    def leave(self) -> float:
        since = time.monotonic()
        self.scale(self.base)
        return self.measure(since, world=self.base, what="a leave")

    def kill(self) -> float:
        """The agent starts another worker at once: the window ends when that one has joined, so its join counts too."""
        return self._hit(signal.SIGKILL)

    def freeze(self) -> float | None:
        return self._hit(signal.SIGSTOP)

    def _hit(self, number: signal.Signals) -> float:
        victim, since = self.third(), time.monotonic()
        os.kill(victim, number)
        wait_for(
            lambda: any(mark.at > since and mark.world == self.base for marks in self.trails() for mark in marks),
            what=f"stretto: a roster without the worker that got {number.name}",
            limit_s=LIMIT_S,
        )
        return self.measure(since, world=self.base + 1, what=f"a new worker after {number.name}")

    def last_switch_ms(self) -> float:
        """What the last change itself took, as the job recorded it: the hand-over of the state."""
        lines = (self.folder / "runs" / "bench" / "journal.jsonl").read_text().split("\n")[:-1]
        switches = [entry for entry in map(json.loads, lines) if entry["kind"] == "switch"]
        return float(switches[-1]["switch_ms"])
