"""`stretto run --hosts`: one terminal, real sshd on every host."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import GUARD_S, environment

from stretto.agent.records.run_folder import RunFolder, every
from stretto.core.journal import Commit
from tests.hosts.cluster import Cluster, paced, unavailable
from tests.hosts.sshd import Sshd

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]


class Terminal:
    """A user's terminal on h4."""

    def __init__(self, cluster: Cluster, sshd: Sshd, folder: Path) -> None:
        self.cluster, self.sshd, self.folder = cluster, sshd, folder
        self.processes: list[subprocess.Popen[str]] = []

    def type(self, *words: str, key: bool = True) -> subprocess.Popen[str]:
        place = self.cluster.network.hosts["h4"]
        with open(self.folder / f"terminal-{len(self.processes)}.out", "w") as out:
            process = subprocess.Popen(
                place.inside(sys.executable, "-m", "stretto.cli.main", *words),
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(self.sshd.environment(key=key)),
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def shown(self, number: int = -1) -> str:
        return (self.folder / f"terminal-{number % len(self.processes)}.out").read_text()

    def folders(self) -> list[RunFolder]:
        return list(every(self.folder / "runs"))

    def steps(self) -> int:
        found = {one.step for folder in self.folders() for one in folder.records() if isinstance(one, Commit)}
        return max(found, default=-1)

    def until(self, what: Callable[[], object], why: str) -> None:
        deadline = time.monotonic() + GUARD_S
        while not what():
            assert time.monotonic() < deadline, f"waited for {why}: {self.shown()}"
            time.sleep(0.1)

    def results(self) -> list[dict[str, object]]:
        return [result for folder in self.folders() if (result := folder.read(folder.result)) is not None]


@pytest.fixture
def terminal(hosts: Cluster, tmp_path: Path) -> Iterator[Terminal]:
    why = unavailable("sshd", "ssh")
    if why:
        pytest.skip(why)
    sshd = Sshd(hosts.hosts("h1", "h2", "h3"), hosts.folder / "sshd")
    sshd.start()
    made = Terminal(hosts, sshd, tmp_path)
    try:
        yield made
    finally:
        for process in made.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        sshd.stop()
        hosts.restore()


def test_one_command_starts_all_hosts_and_shows_what_they_say(hosts: Cluster, terminal: Terminal) -> None:
    (terminal.folder / "train.py").write_text(paced(epochs=20))
    process = terminal.type("run", "--hosts", "h1:1,h2:2", "--workers", "3", "--no-tensorboard", "--job", "digits", "train.py")
    assert process.wait(timeout=GUARD_S) == 0, terminal.shown()
    shown = terminal.shown()
    assert "h1| [h1.w0] hello from h1.w0" in shown
    assert "h2| [h2.w1] hello from h2.w1" in shown
    one = hosts.job(paced(epochs=20))
    assert {result["digest"] for result in terminal.results()} == {hosts.reference(one)}
    assert len(terminal.results()) == 2


def test_ctrl_c_stops_all_hosts(terminal: Terminal) -> None:
    (terminal.folder / "train.py").write_text(paced(epochs=2000))
    process = terminal.type("run", "--hosts", "h1:1,h2:1", "--workers", "1:2", "--no-tensorboard", "--job", "digits", "train.py")
    terminal.until(lambda: terminal.steps() > 5, "steps")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=GUARD_S) == 143, terminal.shown()
    assert [result["state"] for result in terminal.results()] == ["stopped", "stopped"]


def test_a_lost_connection_does_not_end_the_job_and_attach_shows_it_again(hosts: Cluster, terminal: Terminal) -> None:
    (terminal.folder / "train.py").write_text(paced(epochs=100))
    process = terminal.type("run", "--hosts", "h1:1,h2:1", "--workers", "1:2", "--no-tensorboard", "--job", "digits", "train.py")
    terminal.until(lambda: terminal.steps() > 5, "steps")
    process.kill()  # the terminal is gone
    process.wait()
    terminal.sshd.sever("h1")
    terminal.sshd.sever("h2")
    before = terminal.steps()
    terminal.until(lambda: terminal.steps() > before + 5, "steps without a terminal")
    again = terminal.type("attach", "digits")
    assert again.wait(timeout=GUARD_S) == 0, terminal.shown()
    assert "finished" in terminal.shown()
    one = hosts.job(paced(epochs=100))
    assert {result["digest"] for result in terminal.results()} == {hosts.reference(one)}


def test_a_host_that_asks_for_a_password_is_named_with_the_fix(terminal: Terminal) -> None:
    (terminal.folder / "train.py").write_text(paced(epochs=2000))
    process = terminal.type("run", "--hosts", "h1,h2", "train.py", key=False)
    assert process.wait(timeout=GUARD_S) == 1
    shown = terminal.shown()
    assert "host h1" in shown or "host h2" in shown
    assert "ssh-copy-id" in shown
    assert "Traceback" not in shown


def test_a_host_that_is_not_there_is_named_and_nothing_stays_behind_on_the_others(terminal: Terminal) -> None:
    (terminal.folder / "train.py").write_text(paced(epochs=2000))
    process = terminal.type("run", "--hosts", "h1:1,nonesuch", "--no-tensorboard", "train.py")
    assert process.wait(timeout=GUARD_S) == 1
    assert "host nonesuch cannot be reached by ssh" in terminal.shown()
    terminal.until(lambda: not [pid for pid in terminal.cluster.network.hosts["h1"].pids() if _ours(pid)], "an empty host")


def _ours(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"stretto" in file.read()
    return False
