"""Jobs that behave badly and machines that fail, for real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from server_harness import SIMULATED, Running, job, processes, running, until

from stretto.clusters import attempt
from stretto.server.client import Client, ServerError

LONG = {"steps": 100_000, "step_s": 0.1}


def keeper(server: Running, made: str, number: int = 1) -> dict[str, int]:
    return json.loads((server.home / "jobs" / made / f"life-{number}" / "keeper.json").read_text())


def state(client: Client, made: str) -> str:
    return str(client.job(made).state)


def fail_writes(client: Client) -> None:
    """Waits until the server has given up writing twice more: the first time it may have been at something older."""

    def failed() -> int:
        return sum(alarm.count for alarm in client.overview().alarms if alarm.name == "database")

    before = failed()
    until(lambda: failed() >= before + 2, what="the server cannot write, and says so", timeout_s=120)


def test_a_killed_server_finds_its_jobs_again_and_starts_nothing_twice(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=4) as server:
        with server.client() as client:
            made = [client.submit(job(f"job-{place}", **LONG)).id for place in range(3)]
            short = client.submit(job("short", steps=40)).id
            until(lambda: all(state(client, one) == "running" for one in [*made, short]), what="all run")
        before = [keeper(server, one) for one in made]
        server.kill()
        until(lambda: (server.home / "jobs" / short / "life-1" / "exit.json").exists(), what="a job ends while nobody looks")
        server.start()
        with server.client() as client:
            assert client.wait(short, timeout_s=120).state == "finished"
            until(lambda: all(state(client, one) == "running" for one in made), what="all are there again")
            steps = [client.job(one).progress.step for one in made]
            until(
                lambda: all(client.job(one).progress.step > step for one, step in zip(made, steps, strict=True)), what="they train"
            )
            assert [keeper(server, one) for one in made] == before, "the same processes"
            for one in made:
                events = [event.kind for event in client.events(one).items]
                assert events.count("started") == 1
                assert "adopted" in events
                assert not (server.home / "jobs" / one / "life-2").exists()
                series = client.metrics(one)
                assert series.step == sorted(set(series.step)), "no step twice"
            curve = client.metrics(short)
            assert (curve.step[0], curve.step[-1]) == (0, 39)


@pytest.mark.slow
def test_a_server_killed_again_and_again_loses_and_doubles_no_event(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2) as server:
        with server.client() as client:
            made = client.submit(job("kept", most=2, steps=300, step_s=0.05)).id
        for workers in (1, 2, 1):
            with server.client() as client:
                until(lambda: state(client, made) in ("running", "finished"), what="it runs")
                if state(client, made) == "running":
                    client.scale(made, workers, pin=True)
            server.kill()
            server.start()
        with server.client() as client:
            assert client.wait(made, timeout_s=240).state == "finished"
            kinds = [event.kind for event in client.events(made).items]
            assert kinds.count("ready") == 1
            assert kinds.count("finished") == 1
            journal = (server.home / "runs" / made / "journal.jsonl").read_text().splitlines()
            switches = sum(1 for line in journal if json.loads(line)["kind"] == "switch")
            assert kinds.count("resized") == switches - 1, "each change of the journal is one event"


def test_a_lost_keeper_is_a_restart_within_the_budget_and_then_a_failure(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("lost", restarts=1, **LONG)).id
        for number in (1, 2):
            begun = server.home / "jobs" / made / f"life-{number}" / "keeper.json"
            until(begun.exists, what="it is started")
            until(lambda: state(client, made) == "running", what="it runs")
            found = keeper(server, made, number)
            os.kill(found["pid"], signal.SIGKILL)
            agent = Path(f"/proc/{found['child']}")
            until(lambda agent=agent: not agent.exists(), what="its agent goes with it")
        ended = client.wait(made, timeout_s=120)
        assert ended.state == "failed"
        assert "restarts=1" in str(ended.error)
        assert [event.kind for event in client.events(made).items].count("restarting") == 1


def test_a_script_that_fails_at_once_is_classified(server: Running, tmp_path: Path) -> None:
    with server.client() as client:
        made = client.submit(job("fails", more=("--fail-at", "0")))
        ended = client.wait(made.id, timeout_s=120)
        assert (ended.state, ended.error) == ("failed", "ValueError: as it was told to")
        with pytest.raises(ServerError, match="run: /no/such/program does not exist on the server's machine"):
            client.submit({"name": "nothing", "run": ["/no/such/program"]})
        (tmp_path / "program").write_text("#!/no/such/interpreter\n")
        (tmp_path / "program").chmod(0o755)
        nothing = client.submit({"name": "nothing", "run": [str(tmp_path / "program")]})
        ended = client.wait(nothing.id, timeout_s=120)
        assert ended.state == "failed"
        assert str(tmp_path / "program") in str(ended.error)
        with pytest.raises(ServerError, match="workdir: /no/such/folder does not exist on the server's machine"):
            client.submit({**job("nowhere"), "workdir": "/no/such/folder"})
        (tmp_path / "work").mkdir()
        client.cordon("node0")
        nowhere = client.submit({**job("nowhere"), "workdir": str(tmp_path / "work")})
        (tmp_path / "work").rmdir()
        client.cordon("node0", cordoned=False)
        assert "is not a folder here" in str(client.wait(nowhere.id, timeout_s=120).error)


@pytest.mark.slow
def test_a_job_that_never_becomes_ready_is_ended(server: Running) -> None:
    with server.client() as client:
        made = client.submit(job("hangs", more=("--hang",), ready_timeout_s=2)).id
        ended = client.wait(made, timeout_s=120)
        assert ended.state == "failed"
        assert "ready_timeout_s=2" in str(ended.error)
        until(lambda: (server.home / "jobs" / made / "life-1" / "exit.json").exists(), what="its processes are gone", timeout_s=120)


def test_children_that_a_job_leaves_behind_are_ended(server: Running, tmp_path: Path) -> None:
    marker = f"sleep 98{os.getpid()}"
    text = f"setsid {marker} & (trap '' TERM; {marker}; {marker}) & echo started"
    with server.client() as client:
        made = client.submit({"name": "forks", "run": text})
        assert client.wait(made.id, timeout_s=120).state == "finished"
        left = subprocess.run(["pgrep", "-f", f"^{marker}"], capture_output=True, text=True, check=False).stdout
        assert left == ""


def test_a_log_is_bounded_and_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "life"
    folder.mkdir()
    program = "import sys\nfor n in range(200000): print('line', n)\nprint('the very last line')"
    command = [sys.executable, "-I", "-S", attempt.SHIM, str(folder), "100000", "5", "--", sys.executable, "-c", program]
    subprocess.run(command, check=True, timeout=120)
    log = (folder / "console.log").read_bytes()
    assert len(log) < 200_000
    assert b"the log is full at 100000 bytes" in log
    assert log.rstrip().endswith(b"the very last line")
    assert json.loads((folder / "exit.json").read_text())["code"] == 0


def test_a_second_keeper_of_one_life_starts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "life"
    folder.mkdir()
    command = [
        sys.executable,
        "-I",
        "-S",
        attempt.SHIM,
        str(folder),
        "1000",
        "5",
        "--",
        "sh",
        "-c",
        f"echo x >> {tmp_path}/ran; sleep 5",
    ]
    first = subprocess.Popen(command)
    until(lambda: (tmp_path / "ran").exists(), what="the first runs")
    assert subprocess.run(command, check=False, timeout=60).returncode == 75
    first.terminate()
    first.wait(60)
    assert subprocess.run(command, check=False, timeout=60).returncode == 75, "not after its end either"
    assert (tmp_path / "ran").read_text() == "x\n"


@pytest.mark.slow
def test_a_locked_database_delays_and_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2) as server, server.client() as client:
        first = client.submit(job("first", steps=40)).id
        until(lambda: state(client, first) == "running", what="it runs")
        holder = sqlite3.connect(server.home / "server.db", isolation_level=None, timeout=60)
        holder.execute("begin immediate")
        until(lambda: (server.home / "jobs" / first / "life-1" / "exit.json").exists(), what="the job ends under the lock")
        fail_writes(client)
        assert state(client, first) == "running", "reads go on, and what could not be written is not said"
        holder.execute("rollback")
        holder.close()
        assert client.wait(first, timeout_s=120).state == "finished"
        assert client.wait(client.submit(job("second")).id, timeout_s=120).state == "finished"
        kinds = [event.kind for event in client.events(first).items]
        assert len(kinds) == len(set(kinds)), "nothing twice"


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.slow
def test_a_full_disk_stops_nothing_for_good(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(small)], check=False, capture_output=True).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        with running(tmp_path / "home", slots=2, database=f"sqlite:///{small / 'server.db'}") as server, server.client() as client:
            made = client.submit(job("goes-on", steps=100, step_s=0.05)).id
            until(lambda: state(client, made) == "running", what="it runs")
            with contextlib.suppress(OSError), (small / "filler").open("wb") as filler:
                while True:
                    filler.write(b"x" * 65536)
                    filler.flush()
            until(
                lambda: (server.home / "jobs" / made / "life-1" / "exit.json").exists(),
                what="the job ends by itself",
                timeout_s=120,
            )
            fail_writes(client)
            (small / "filler").unlink()
            ended = client.wait(made, timeout_s=120)
            assert ended.state == "finished"
            assert ended.restarts == 0
            assert client.wait(client.submit(job("later")).id, timeout_s=120).state == "finished"
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


@pytest.mark.slow
def test_a_clock_that_jumps_loses_no_job_holds_none_and_starts_none_twice(tmp_path: Path) -> None:
    clock, day = tmp_path / "clock", 86400
    clock.write_text("0")
    told = {"environment": {"STRETTO_TEST_CLOCK": str(clock)}}
    with running(tmp_path / "home", slots=2, policy="goodput", cooldown_s=5.0, **told) as server, server.client() as client:
        first = client.submit(job("first", steps=100_000, step_s=0.1, most=2)).id
        until(lambda: client.job(first).workers == 2, what="alone, it has everything", timeout_s=120)
        others = []
        for offset in (-day, day, 0):
            others.append(client.submit(job(f"other-{len(others)}", steps=100_000, step_s=0.1, most=2)).id)
            until(lambda: (client.job(first).workers, client.job(others[-1]).workers) == (1, 1), what="they share", timeout_s=120)
            clock.write_text(str(offset))
            client.cancel(others[-1])
            until(lambda: client.job(first).workers == 2, what=f"it has grown again, the clock is {offset} s off", timeout_s=120)
        assert client.wait(client.submit(job("last")).id, timeout_s=120).state == "finished"
        for one in (first, *others):
            kinds = [event.kind for event in client.events(one).items]
            assert kinds.count("started") == 1
            assert "restarting" not in kinds


POLICIES = """
import time
from stretto.scheduling import policies
from stretto.scheduling.types import Allocation

def raises(jobs, nodes, now, time_s):
    raise RuntimeError("a policy with a mistake")

def sleeps(jobs, nodes, now, time_s):
    time.sleep(60)

def greedy(jobs, nodes, now, time_s):
    return Allocation({job.name: (("node0", 99),) for job in jobs}, {})

def dies(jobs, nodes, now, time_s):
    import os
    os._exit(3)
"""


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("raises", "a policy with a mistake"),
        ("sleeps", "has not answered within 1 s"),
        ("greedy", "its limits are"),
        ("dies", "has ended its process"),
    ],
)
def test_a_policy_that_fails_keeps_the_old_allocation_and_raises_an_alarm(tmp_path: Path, policy: str, words: str) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / f"{policy}.py").write_text(textwrap.dedent(POLICIES))
    hook = f"import stretto.scheduling.policies as p; p.__path__.append({str(folder)!r})"
    (folder / "sitecustomize.py").write_text(hook)
    with (
        running(
            tmp_path / "home",
            slots=2,
            policy_timeout_s=1.0,
            environment={"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"},
        ) as server,
        server.client() as client,
    ):
        made = client.submit(job("steady", **LONG)).id
        until(lambda: state(client, made) == "running", what="it runs under fifo")
        client.use_policy(policy)
        until(lambda: any(words in alarm.text for alarm in client.overview().alarms), what="the alarm")
        assert client.job(made).wanted == 1
        assert client.decisions().items[0].kept
        assert words in client.explain(made).sentence
        waiting = client.submit(job("waits", **LONG)).id
        until(lambda: client.decisions().items[0].trigger.startswith("waits arrived"), what="the policy has failed on the new job")
        assert state(client, waiting) == "queued"
        client.use_policy("fifo")
        until(lambda: state(client, waiting) == "running", what="the next policy decides")
        until(lambda: not client.overview().alarms, what="the alarm is over")


def test_a_clean_stop_leaves_jobs_running_and_a_cancelled_one_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2) as server:
        with server.client() as client:
            made = client.submit(job("stays", **LONG)).id
            until(lambda: state(client, made) == "running", what="it runs")
        server.stop()
        assert any(SIMULATED[-1] in line for line in processes(server.home)), "it goes on"
        server.start()
        with server.client() as client:
            until(lambda: state(client, made) == "running", what="it is found")
            client.cancel(made)
            assert client.wait(made, timeout_s=120).state == "cancelled"
            until(lambda: not any("life-" in line for line in processes(server.home)), what="nothing is left")


def test_a_server_keeps_the_same_state_in_postgresql(tmp_path: Path, postgres: str) -> None:
    with running(tmp_path / "home", slots=2, database=postgres) as server:
        with server.client() as client:
            made = client.submit(job("long", **LONG)).id
            until(lambda: state(client, made) == "running", what="it runs")
        server.kill()
        server.start()
        with server.client() as client:
            until(lambda: state(client, made) == "running", what="it is found again")
            kinds = [event.kind for event in client.events(made).items]
            assert kinds.count("started") == 1
            client.cancel(made)
            client.wait(made, timeout_s=120)


def test_five_jobs_on_two_slots_never_run_on_more(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2) as server, server.client() as client:
        made = [client.submit(job(f"job-{place}", steps=15, most=2)).id for place in range(5)]
        most = 0
        while True:
            found = [one for one in client.jobs() if one.id in made]
            most = max(most, sum(one.wanted for one in found))
            assert sum(one.workers for one in found) <= 2
            assert all(one.wanted == 0 or one.min <= one.wanted <= one.max for one in found)
            if all(one.state.ended for one in found):
                break
            time.sleep(0.1)
        assert most <= 2
        assert all(one.state == "finished" for one in found)


def test_a_life_that_nobody_wants_any_more_is_stopped_by_the_next_server(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2) as server:
        with server.client() as client:
            made = client.submit(job("stray", **LONG)).id
            until(lambda: state(client, made) == "running", what="it runs")
        server.kill()
        assert any("life-" in line for line in processes(server.home)), "it goes on without its server"
        with sqlite3.connect(server.home / "server.db") as database:
            database.execute("delete from jobs")
        server.start()
        until(lambda: not any("life-" in line for line in processes(server.home)), what="it is gone", timeout_s=120)
