"""Elastic systems behind one interface, so that the rescale benchmark does the same to each of them.

A system starts with two workers. `join` adds a third; `kill`, `freeze` and `leave` take the third away again. Each returns
when the change is done and some steps have followed, with what it cost the first two workers. (Two survivors, not one: torchft
waits longer when a majority is lost, to rule out a split brain.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process import BIN, PYTHON, children, finish, free_port, launch, wait_for
from benchmarks.step_log import StepMark, longest_gap_s, read_marks

LIMIT_S = 180.0
"""A change that takes longer than this is a failure of the benchmark."""
STEPS = 30
"""Steps that must follow a change before the window is closed."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a change of membership cost the remaining workers; the worst of them counts."""

    pause_s: float
    """How long the change itself took.

    stretto: the longest `switch_ms` in its journal. torchft: the longest wait for a quorum. torchrun: from the last step to the
    moment at which the next start has its process group and its checkpoint.
    """
    gap_s: float
    """The longest time between two steps, beyond the usual step: what a user sees."""


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
    def join(self) -> Cost: ...

    @abstractmethod
    def leave(self) -> Cost: ...

    @abstractmethod
    def kill(self) -> Cost: ...

    def freeze(self) -> Cost | None:
        """None if the system does not detect a frozen worker."""
        return None

    def survivors(self) -> list[list[StepMark]]:
        """The steps of the two workers that stay."""
        return [read_marks(self.folder / f"steps-{node}") for node in ("a", "b")]

    def recorded_pause_s(self, since: float) -> float:
        """How long the longest change since then took by itself."""
        return max(mark.pause_s for marks in self.survivors() for mark in marks if mark.at > since)

    def settled(self, moment: float, *, world: int) -> bool:
        return all(sum(mark.at > moment and mark.world == world for mark in marks) >= self.steps for marks in self.survivors())

    def settle(self, moment: float, *, world: int, what: str) -> None:
        wait_for(lambda: self.settled(moment, world=world), what=f"{self.name}: {what}", limit_s=LIMIT_S)

    def measure(self, since: float, *, world: int, what: str) -> Cost:
        """Waits until the change is done. Returns what it cost the survivors."""
        self.settle(since, world=world, what=what)
        now = time.monotonic()
        gap_s = max(longest_gap_s(marks, since=since, until=now) for marks in self.survivors())
        return Cost(pause_s=self.recorded_pause_s(since), gap_s=gap_s)


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
            command, log=self.folder / f"{node}.log", env={"BENCH_NODE": node, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        )

    def start(self) -> None:
        self._agent("a")
        self._agent("b")
        self.settle(0, world=2, what="the first steps")

    def join(self) -> Cost:
        since = time.monotonic()
        self._agent("c")
        return self.measure(since, world=3, what="a join")

    def leave(self) -> Cost:
        since = time.monotonic()
        self.processes["c"].terminate()
        return self.measure(since, world=2, what="a leave")

    def kill(self) -> Cost:
        """The worker dies and its agent lives: torchrun restarts all workers."""
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
            env={"BENCH_NODE": node, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}"},
        )

    def start(self) -> None:
        self._replica("a")
        self._replica("b")
        self.settle(0, world=2, what="the first steps")

    def join(self) -> Cost:
        since = time.monotonic()
        self._replica("c")
        return self.measure(since, world=3, what="a join")

    def leave(self) -> Cost:
        since = time.monotonic()
        self.processes["c"].terminate()
        return self.measure(since, world=2, what="a leave")

    def kill(self) -> Cost:
        since = time.monotonic()
        self.processes["c"].kill()
        return self.measure(since, world=2, what="a kill")

    def freeze(self) -> Cost | None:
        since = time.monotonic()
        self.processes["c"].send_signal(signal.SIGSTOP)
        cost = self.measure(since, world=2, what="a freeze")
        self.processes["c"].kill()
        return cost


class Stretto(Elastic):
    """One agent on this machine, for a job of two workers and a third; `base=1` for one and a second."""

    name = "stretto"

    def __init__(self, folder: Path, workload: str, *, base: int = 2, steps: int = STEPS) -> None:
        super().__init__(folder, workload, steps=steps)
        self.base = base
        self.first_pids: list[int] = []

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
        self.first_pids = self._pids()
        self.settle(0, world=self.base, what="the first steps")

    def _pids(self) -> list[int]:
        """All workers that ever started, the youngest last."""
        paths = sorted(self.folder.glob("steps-*"), key=lambda path: path.stat().st_ctime)
        return [int(path.name.split("-")[1]) for path in paths]

    def survivors(self) -> list[list[StepMark]]:
        return [read_marks(self.folder / f"steps-{pid}") for pid in self.first_pids]

    def newcomer_pid(self) -> int:
        """The running worker that is not one of the first."""
        running = [pid for pid in self._pids() if pid not in self.first_pids and Path(f"/proc/{pid}").exists()]
        return running[-1]

    def scale(self, workers: int) -> None:
        subprocess.run(
            [BIN / "stretto", "scale", "bench", str(workers), "--runs", self.folder / "runs"],
            check=True,
            capture_output=True,
            timeout=60,
        )

    def join(self) -> Cost:
        since = time.monotonic()
        self.scale(self.base + 1)
        return self.measure(since, world=self.base + 1, what="a join")

    def leave(self) -> Cost:
        since = time.monotonic()
        self.scale(self.base)
        return self.measure(since, world=self.base, what="a leave")

    def kill(self) -> Cost:
        """The agent starts another worker at once: the window ends when that one has joined, so its join counts too."""
        return self._hit(signal.SIGKILL)

    def freeze(self) -> Cost | None:
        return self._hit(signal.SIGSTOP)

    def _hit(self, number: signal.Signals) -> Cost:
        victim, since = self.newcomer_pid(), time.monotonic()
        os.kill(victim, number)
        wait_for(
            lambda: any(mark.at > since and mark.world == self.base for marks in self.survivors() for mark in marks),
            what=f"stretto: a roster without the worker that got {number.name}",
            limit_s=LIMIT_S,
        )
        return self.measure(since, world=self.base + 1, what=f"a new worker after {number.name}")

    def journal(self) -> list[dict[str, Any]]:
        """The lines of the job's journal so far."""
        lines = (self.folder / "runs" / "bench" / "journal.jsonl").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def recorded_pause_s(self, since: float) -> float:
        since_wall = time.time() - (time.monotonic() - since)
        switches_ms = [line["switch_ms"] for line in self.journal() if line["kind"] == "switch" and line["t"] > since_wall]
        return max(switches_ms) / 1e3
