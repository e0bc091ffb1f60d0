"""Jobs on the hosts of a test network, started as users start them."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launching import GUARD_S, environment, script

from stretto.agent.records.run_folder import RunFolder
from stretto.core.journal import Commit, JournalEvent, Record, RosterLine, Switch
from tests.hosts.etcd import Etcd
from tests.hosts.namespace_support import missing
from tests.hosts.network import Host, Network

HOSTS = ("h1", "h2", "h3", "h4")
MEMBERS = ("e1", "e2", "e3")


def paced(trouble: str = "", *, epochs: int = 40, slices: int = 8) -> str:
    """The small training script, slow enough to do something to it meanwhile, until there is a file `fast`."""
    text = script(trouble, epochs=epochs, slices=slices)
    return text.replace("time.sleep(0.0)", 'time.sleep(0.0 if os.path.exists("fast") else 0.02)')


def unavailable(*tools: str) -> str:
    """Why the tests of this folder cannot run here, or nothing."""
    packages = {"etcd": "etcd-server", "etcdctl": "etcd-client", "curl": "curl", "ssh": "openssh-client", "sshd": "openssh-server"}
    for tool in ("etcd", "etcdctl", "curl", *tools):
        if shutil.which(tool) is None:
            package = packages.get(tool, tool)
            return f"{tool} is not installed: apt-get install {package}"
    return missing()


class Agent:
    """One `stretto run` on one host."""

    def __init__(self, host: Host, process: subprocess.Popen[str], folder: RunFolder, out: Path) -> None:
        self.host, self.process, self.folder, self.out = host, process, folder, out

    @property
    def output(self) -> str:
        return self.out.read_text()

    @property
    def result(self) -> dict[str, Any]:
        result = self.folder.read(self.folder.result)
        assert result is not None, self.output
        return result

    def records(self) -> list[Record]:
        return self.folder.records()

    def kill(self) -> None:
        """kill -9 of the agent alone; its workers end by themselves."""
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        """Ctrl-C on that host."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        return self.process.wait(timeout=GUARD_S)


class Job:
    """A job of one script on several hosts, and what its journals say together."""

    def __init__(self, cluster: Cluster, text: str, *, name: str = "", args: Sequence[str] = ()) -> None:
        self.cluster = cluster
        self.name = name or f"job-{uuid.uuid4().hex[:8]}"
        self.folder = cluster.folder / self.name
        self.folder.mkdir(exist_ok=True)
        self.script = self.folder / "train.py"
        self.script.write_text(text)
        self.args = list(args)
        self.agents: list[Agent] = []
        self.store = cluster.etcd.url

    def start(
        self, host: str, *options: str, script: Path | None = None, env: dict[str, str] | None = None, workers: str = "1:8"
    ) -> Agent:
        """The same command on every host, as documented."""
        place = self.cluster.network.hosts[host]
        runs = self.folder / "runs"
        runs.mkdir(exist_ok=True)
        out = self.folder / f"{host}-{len(self.agents)}.out"
        before = set(runs.iterdir())
        command = [
            sys.executable,
            "-m",
            "stretto.cli.main",
            "run",
            "--runs",
            str(runs),
            "--no-tensorboard",
            "--store",
            self.store,
            "--job",
            self.name,
            "--host",
            host,
            "--workers",
            workers,
            *options,
            str(script or self.script),
            *self.args,
        ]
        with open(out, "w") as file:
            process = subprocess.Popen(
                place.inside(*command),
                cwd=self.folder,
                env=environment(env),
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        agent = Agent(place, process, RunFolder(_new(runs, before, process)), out)
        self.agents.append(agent)
        return agent

    # ---- what happened

    def records(self) -> list[Record]:
        return sorted((one for agent in self.agents for one in agent.records()), key=lambda one: one.t)

    def commits(self) -> list[Commit]:
        """One for each step, in the order of steps."""
        found = {one.step: one for one in self.records() if isinstance(one, Commit)}
        return [found[step] for step in sorted(found)]

    def events(self, *what: str) -> list[JournalEvent]:
        return [one for one in self.records() if isinstance(one, JournalEvent) and one.what in what]

    def switches(self) -> list[Switch]:
        return [one for one in self.records() if isinstance(one, Switch)]

    @property
    def steps(self) -> int:
        return len(self.commits())

    def roster(self) -> RosterLine | None:
        found = [one for one in self.records() if isinstance(one, RosterLine)]
        return max(found, key=lambda one: one.number, default=None)

    def until(self, what: Callable[[], Any], *, why: str = "") -> Any:
        deadline = time.monotonic() + GUARD_S
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            if all(agent.process.poll() is not None for agent in self.agents):
                found = what()
                assert found, f"all agents ended before {why}:\n" + "\n".join(agent.output[-2000:] for agent in self.agents)
                return found
            time.sleep(0.05)
        raise AssertionError(f"waited {GUARD_S} s for {why}: {self.records()[-10:]}")

    def until_step(self, step: int) -> None:
        self.until(lambda: self.commits() and self.commits()[-1].step >= step, why=f"step {step}")

    def until_more(self, steps: int) -> None:
        self.until_step((self.commits()[-1].step if self.commits() else 0) + steps)

    def until_workers(self, count: int) -> None:
        """Steps are committed by so many."""
        self.until(lambda: self.commits() and self.commits()[-1].workers == count, why=f"{count} workers")

    # ---- the store

    def stored(self) -> dict[str, Any]:
        """What the store says of the job."""
        return self.cluster.etcd.stored(self.name)

    def leader(self) -> Agent:
        """The agent that leads."""
        name = self.until(lambda: self.stored().get("leader", {}).get("agent"), why="a leader")
        return next(agent for agent in self.agents if (agent.folder.read(agent.folder.request) or {}).get("agent") == name)

    def verb(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A verb of the command line on some host."""
        place = self.cluster.network.hosts[host]
        return subprocess.run(
            place.inside(sys.executable, "-m", "stretto.cli.main", *words),
            cwd=self.folder,
            env=environment(),
            text=True,
            capture_output=True,
            timeout=GUARD_S,
            check=False,
        )

    # ---- its end

    def finish(self, *, lost: Sequence[Agent] = ()) -> str:
        """Waits until all agents but the lost ones have finished, with the same digest; that digest."""
        (self.folder / "fast").touch()
        digests = set()
        for agent in self.agents:
            if agent not in lost:
                assert agent.end() == 0, agent.output[-4000:]
                assert agent.result["state"] == "finished", agent.result
                digests.add(agent.result["digest"])
        assert len(digests) == 1, digests
        return digests.pop()

    def audit(self) -> subprocess.CompletedProcess[str]:
        folders = [str(agent.folder.path) for agent in self.agents]
        return subprocess.run(
            [sys.executable, "-m", "stretto.cli.main", "audit", *folders],
            cwd=self.folder,
            env=environment(),
            text=True,
            capture_output=True,
            timeout=GUARD_S,
            check=False,
        )

    def stop(self) -> None:
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait()


class Cluster:
    """Four hosts and three etcd members on one switch."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.etcd = Etcd([network.hosts[name] for name in MEMBERS], folder)
        self._references: dict[str, str] = {}

    def job(self, text: str | None = None, **options: Any) -> Job:
        return Job(self, text if text is not None else paced(), **options)

    def reference(self, job: Job) -> str:
        """The digest of the script under plain python, on one machine."""
        text = job.script.read_text() + repr(job.args)
        if text not in self._references:
            (job.folder / "fast").touch()
            done = subprocess.run(
                [sys.executable, str(job.script), *job.args],
                env=environment(),
                text=True,
                cwd=job.folder,
                capture_output=True,
                check=True,
                timeout=4 * GUARD_S,
            )  # it is long
            found = re.search(r"digest (\w+)", done.stdout)
            assert found, done.stdout
            self._references[text] = found[1]
        return self._references[text]

    def hosts(self, *names: str) -> list[Host]:
        return [self.network.hosts[name] for name in names]

    def restore(self) -> None:
        """After a test: nothing runs but etcd, and all cables are in."""
        for name in HOSTS:
            self.network.hosts[name].kill()
        self.network.heal()
        self.etcd.start()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    network = Network()
    try:
        for name in (*HOSTS, *MEMBERS):
            network.add(name)
        made = Cluster(network, folder)
        made.etcd.start()
        yield made
    finally:
        network.close()


def _new(runs: Path, before: set[Path], process: subprocess.Popen[str]) -> Path:
    """The folder that the run has made, or one that will never be there if it was refused before."""
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        new = [path for path in set(runs.iterdir()) - before if path.is_dir()]
        if new:
            return new[0]
        if process.poll() is not None:
            return runs / "refused"
        time.sleep(0.02)
    raise AssertionError("the run has made no folder")
