"""Losing a host, joins across hosts, and what crosses the network: hosts are network namespaces, etcd has three members.

A pause is the longest time without a finished step on a worker that stays, beyond what a step takes anyway. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.process import BIN, PYTHON, Process, finish, launch, wait_for
from benchmarks.report import Row, at_most, inform, publish
from benchmarks.step_log import StepMark, longest_gap_s, read_marks
from stretto.agent.records.run_folder import RunFolder, every
from stretto.core.journal import RosterLine, Switch
from tests.hosts.etcd import Etcd
from tests.hosts.namespace_support import missing
from tests.hosts.network import Host, Network

LEASE_S = 2.0
NODES = ("h1", "h2", "h3")
VECTOR_BYTES = 8 << 20


class Bench:
    """The network, the store, and what runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network()
        for name in (*NODES, "e1", "e2", "e3"):
            self.network.add(name)
        self.etcd = Etcd([self.network.hosts[name] for name in ("e1", "e2", "e3")], folder)
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Bench:
        self.etcd.start()
        return self

    def __exit__(self, *_: object) -> None:
        finish(list(self.processes.values()))
        self.network.close()

    def host(self, name: str) -> Host:
        return self.network.hosts[name]

    def run(self, host: str, *command: str | Path, env: dict[str, str] | None = None, name: str = "") -> Process:
        words = self.host(host).inside(*map(str, command))
        process = launch(words, log=self.folder / f"{name or host}.log", env=env)
        self.processes[name or host] = process
        return process

    def clear(self) -> None:
        finish(list(self.processes.values()))
        self.processes.clear()
        for name in NODES:
            self.host(name).kill()

    def marks(self, folder: Path, *, besides: set[str] = frozenset()) -> list[list[StepMark]]:
        return [read_marks(path) for path in sorted(folder.glob("steps-*")) if path.name not in besides]

    # ---- stretto

    def agent(self, host: str, folder: Path, job: str, *options: str) -> None:
        self.run(
            host,
            BIN / "stretto",
            "run",
            "--quiet",
            "--no-tensorboard",
            "--runs",
            folder / "runs",
            "--store",
            self.etcd.url,
            "--job",
            job,
            "--host",
            host,
            "--slots",
            "1",
            "--workers",
            "1:3",
            "--lease",
            str(LEASE_S),
            *options,
            "benchmarks/scripts/rescale_stretto.py",
            folder,
            "small",
        )

    def lose_leader(self, number: int) -> float:
        """The pause of the others when the leader's host is lost with everything on it."""
        folder, job = self.folder / f"lose-{number}", f"lose-{number}"
        for host in NODES:
            self.agent(host, folder, job)
        wait_for(lambda: self._settled(folder, 3), what="three workers")
        leader = self.etcd.stored(job)["leader"]["agent"]
        mine = _step_logs(self.host(leader))
        since = time.monotonic()
        self.host(leader).kill()
        wait_for(lambda: self._goes_on(folder, mine, since), what="steps of the others")
        gap_s = max(
            longest_gap_s(marks, since=since - 0.5, until=time.monotonic())
            for marks in self.marks(folder, besides=mine)
            if marks and marks[-1].at > since
        )
        self.clear()
        return gap_s

    def _settled(self, folder: Path, world: int) -> bool:
        ready = [marks for marks in self.marks(folder) if len(marks) > 60 and all(mark.world == world for mark in marks[-50:])]
        return len(ready) >= world

    def _goes_on(self, folder: Path, besides: set[str], since: float) -> bool:
        living = [marks for marks in self.marks(folder, besides=besides) if marks and marks[-1].at > since - 30]
        return len(living) >= 2 and all(sum(mark.world == 2 and mark.at > since for mark in marks) > 20 for marks in living)

    def changes(self, folder: Path, *, across: bool, rounds: int) -> dict[str, list[float]]:
        """Recorded pauses of joins and leaves of a third worker: on another host, or beside the others."""
        job = f"changes-{across}".lower()
        if across:
            for host in NODES:
                self.agent(host, folder, job, "--start", "2")
        else:
            self.agent("h1", folder, job, "--start", "2", "--slots", "3")
        wait_for(lambda: self._settled(folder, 2), what="two workers")
        for workers in [3, 2] * rounds:
            before = self._last_number(folder)
            self.host("h1").run(str(BIN / "stretto"), "scale", job, str(workers), "--store", self.etcd.url, "--wait")
            wait_for(lambda before=before: self._last_number(folder) > before, what="a switch")
            time.sleep(1.0)
        self.clear()
        return self._pauses(folder)

    def _last_number(self, folder: Path) -> int:
        return max(
            (record.number for run in every(folder / "runs") for record in run.records() if isinstance(record, Switch)), default=0
        )

    def _pauses(self, folder: Path) -> dict[str, list[float]]:
        """The longest time that any host has recorded for a switch itself."""
        longest: dict[tuple[str, int], float] = {}
        for run in every(folder / "runs"):
            joined = {
                record.number: {member.worker for member in record.members}
                for record in run.records()
                if isinstance(record, RosterLine)
            }
            for record in run.records():
                if isinstance(record, Switch) and record.cause in ("join", "leave") and not _only_newcomers(run, record, joined):
                    key = (record.cause, record.number)
                    longest[key] = max(longest.get(key, 0.0), record.switch_ms)
        return {cause: [pause for (kind, _), pause in longest.items() if kind == cause] for cause in ("join", "leave")}

    # ---- torchrun

    def torchrun(self, folder: Path) -> None:
        for number, host in enumerate(NODES):
            self.run(
                host,
                BIN / "torchrun",
                "--nnodes=1:3",
                "--nproc-per-node=1",
                "--rdzv-backend=c10d",
                "--rdzv-id=bench",
                f"--rdzv-endpoint={self.host('h1').address}:29500",
                f"--local-addr={self.host(host).address}",
                "--max-restarts=20",
                f"--rdzv-conf=last_call_timeout=1,is_host={int(host == 'h1')}",
                "-m",
                "benchmarks.scripts.rescale_torchrun",
                folder,
                "small",
                name=f"torchrun-{host}",
                env={"BENCH_NODE": host, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "eth0"},
            )
            if number == 0:
                time.sleep(3.0)
        wait_for(lambda: self._settled(folder, 3), what="torchrun's three workers")

    def torchrun_loses(self, host: str, number: int, *, limit_s: float) -> float | None:
        """The pause of the others when this host is lost; None if no step was made within the limit."""
        folder = self.folder / f"torchrun-{host}-{number}"
        self.torchrun(folder)
        since = time.monotonic()
        self.host(host).kill()
        try:
            wait_for(lambda: self._goes_on(folder, {f"steps-{host}"}, since), what="steps of the others", limit_s=limit_s)
        except TimeoutError:
            return None
        finally:
            marks = self.marks(folder, besides={f"steps-{host}"})
            self.clear()
        return max(longest_gap_s(host_marks, since=since - 0.5, until=time.monotonic()) for host_marks in marks)

    # ---- placement

    def crossing(self, order: list[str], *, turns: int, number: int) -> tuple[float, float]:
        """Bytes between two hosts in an exchange, over the vector's size, and its time."""
        document = json.dumps({"hosts": [self.host(name).address for name in order], "port": 29600 + number})
        before = self._sent()
        words = (PYTHON, "-m", "benchmarks.scripts.placement")
        processes = [
            self.run(name, *words, str(rank), str(turns), str(VECTOR_BYTES), document, name=f"place-{number}-{rank}")
            for rank, name in enumerate(order)
        ]
        wait_for(lambda: all(process.poll() is not None for process in processes), what="exchanges")
        sent = self._sent() - before
        seconds = float((self.folder / f"place-{number}-0.log").read_text().split()[-1])
        self.clear()
        return sent / turns / VECTOR_BYTES, seconds

    def _sent(self) -> int:
        """Bytes sent by h1 and h2."""
        total = 0
        for name in ("h1", "h2"):
            links = json.loads(self.host(name).run("ip", "-s", "-j", "link", "show", "eth0"))
            total += int(links[0]["stats64"]["tx"]["bytes"])
        return total


def _only_newcomers(run: RunFolder, switch: Switch, rosters: dict[int, set[str]]) -> bool:
    """Whether a host has only newcomers in this switch: it would report the time that it waited itself."""
    request = run.read(run.request) or {}
    here = {worker for worker in rosters.get(switch.number, ()) if worker.startswith(f"{request.get('agent')}.w")}
    return here <= set(switch.joined)


def _step_logs(host: Host) -> set[str]:
    return {f"steps-{pid}" for pid in host.pids()}


def lost_hosts(bench: Bench, *, rounds: int) -> list[Row]:
    ours = [bench.lose_leader(number) for number in range(rounds)]
    print(f"stretto without its leader's host: {ours}", file=sys.stderr, flush=True)
    theirs = bench.torchrun_loses("h3", 0, limit_s=150)
    print(f"torchrun without an agent: {theirs}", file=sys.stderr, flush=True)
    ended = bench.torchrun_loses("h1", 0, limit_s=75)
    print(f"torchrun without its store: {ended}", file=sys.stderr, flush=True)
    middle = statistics.median(ours)
    peers = {
        "longest s": max(ours),
        "torchrun, agent lost, s": theirs,
        "torchrun, host of its store lost": "ends its job" if ended is None else f"{ended:.1f} s",
    }
    rows = [at_most("leader's host lost: pause, s", middle, LEASE_S + 1.0, bar="≤ lease + 1 s", peers=peers)]
    if theirs is not None:
        rows.append(at_most("leader's host lost: stretto / torchrun losing an agent", middle / theirs, 0.2, bar="≤ 1/5"))
    rows.append(Row("torchrun losing the host of its store goes on after, s", ended, "its job ends", ended is None))
    return rows


def joins(bench: Bench, *, rounds: int) -> list[Row]:
    here = bench.changes(bench.folder / "one", across=False, rounds=rounds)
    there = bench.changes(bench.folder / "several", across=True, rounds=rounds)
    rows: list[Row] = []
    for cause in ("join", "leave"):
        one, several = statistics.median(here[cause]), statistics.median(there[cause])
        rows.append(
            at_most(
                f"{cause}: pause across hosts / on one host", several / one, 2.0, peers={"one host ms": one, "across ms": several}
            )
        )
    return rows


def placement(bench: Bench, *, turns: int, shuffles: int) -> list[Row]:
    near = ["h1"] * 4 + ["h2"] * 4
    crossed, near_s = bench.crossing(near, turns=turns, number=0)
    chance = random.Random(1)
    random_orders = []
    for number in range(1, shuffles + 1):
        order = chance.sample(near, len(near))
        random_orders.append(bench.crossing(order, turns=turns, number=number))
    apart = statistics.mean(sent for sent, _ in random_orders)
    return [
        at_most(
            "bytes across hosts in an exchange: by the tree / random order",
            crossed / apart,
            0.6,
            peers={"by the tree, × the gradient": crossed, "random, × the gradient": apart},
        ),
        inform("an exchange's time: by the tree / random order", near_s / statistics.mean(time_s for _, time_s in random_orders)),
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", nargs="+", choices=["lost", "joins", "placement"], default=["lost", "joins", "placement"])
    args = options.parse_args()
    why = missing() or ("" if shutil.which("etcd") else "etcd is not installed: apt-get install etcd-server")
    if why:
        sys.exit(f"hosts: not measured: {why}")
    folder = Path(tempfile.mkdtemp(prefix="stretto-hosts-"))
    parts = {
        "lost": lambda bench: lost_hosts(bench, rounds=args.rounds),
        "joins": lambda bench: joins(bench, rounds=2 * args.rounds),
        "placement": lambda bench: placement(bench, turns=20, shuffles=args.rounds),
    }
    with Bench(folder) as bench:
        rows = list(itertools.chain.from_iterable(parts[name](bench) for name in args.only))
    shutil.rmtree(folder)
    publish(
        "hosts",
        rows,
        notes=[
            "hosts are network namespaces of one machine, joined by a bridge; etcd has three members, each in its own namespace",
            f"lost: three hosts with a worker each, kill -9 of everything on the leader's host; the lease is {LEASE_S:g} s",
            "torchrun: the same workload with DDP and a checkpoint every 50 steps; its store is on h1; last_call_timeout=1, "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            f"placement: 2 hosts with 4 workers each, an exchange of {VECTOR_BYTES >> 20} MB; bytes that left both hosts",
        ],
    )


if __name__ == "__main__":
    main()
