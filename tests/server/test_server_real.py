"""Real jobs on a real server: `stretto run`, torch, real kills, one digest."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from server_harness import Running, running, until

from stretto.clusters.base import STRETTO
from stretto.server.client import Client, ServerError
from stretto.server.jobs.command import NEVER_JOINED

pytestmark = [pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("train_small.py")
CHAOS_S = float(os.environ.get("STRETTO_SERVER_CHAOS_S", "60"))
GUARD_S = 600.0
"""Only against hanging for ever: the machine may be busy."""


def reference(epochs: int) -> str:
    """The digest of plain `python train_small.py`."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(epochs), "0"], capture_output=True, text=True, check=True, timeout=GUARD_S
    )
    return result.stdout.split("digest ")[1].split()[0]


def real(name: str, *, epochs: int, pause_s: float, most: int = 2, **spec: object) -> dict[str, object]:
    run = ["python", str(SCRIPT), str(epochs), str(pause_s)]
    return {"name": name, "run": run, "elastic": {"min": 1, "max": most}, "envs": {"OMP_NUM_THREADS": "1"}, **spec}


def wait_for_step(client: Client, made: str, step: int) -> None:
    until(lambda: client.job(made).progress.step >= step or client.job(made).state.ended, what=f"step {step}", timeout_s=GUARD_S)


@pytest.mark.long
def test_jobs_share_are_resized_paused_and_killed_and_end_with_the_reference_digest(tmp_path: Path) -> None:
    # The first one is still there when the second has come, however long that takes on a busy machine.
    epochs = {"first": 60, "second": 12}
    expected = {name: reference(count) for name, count in epochs.items()}
    with running(tmp_path / "home", slots=2, launcher=STRETTO) as server, server.client() as client:
        first = client.submit(real("first", epochs=epochs["first"], pause_s=0.03)).id
        wait_for_step(client, first, 4)
        client.scale(first, 1, pin=True)
        until(lambda: client.job(first).workers == 1, what="it has shrunk", timeout_s=GUARD_S)
        second = client.submit(real("second", epochs=epochs["second"], pause_s=0.02, most=1)).id
        wait_for_step(client, second, 4)
        server.kill()
        server.start()
        with server.client() as again:
            again.scale(first, 2)
            for one in (first, second):
                ended = again.wait(one, timeout_s=GUARD_S)
                assert (ended.state, ended.digest, ended.samples_lost, ended.restarts) == ("finished", expected[ended.name], 0, 0)
            assert [event.kind for event in again.events(first).items].count("resized") >= 1
            assert again.job(first).pause_ms > 0


@pytest.mark.slow
def test_a_paused_job_goes_on_from_its_checkpoint_to_the_reference_digest(tmp_path: Path) -> None:
    expected = reference(15)
    with running(tmp_path / "home", slots=2, launcher=STRETTO) as server, server.client() as client:
        made = client.submit(real("paused", epochs=15, pause_s=0.03)).id
        wait_for_step(client, made, 10)
        client.pause(made)
        until(lambda: client.job(made).state == "paused", what="it is paused", timeout_s=GUARD_S)
        said = [event.text for event in client.events(made).items if event.kind == "paused"]
        assert "from its last checkpoint" in said[0]
        stopped_at = client.job(made).progress.step
        client.resume(made)
        ended = client.wait(made, timeout_s=GUARD_S)
        assert (ended.state, ended.digest, ended.samples_lost) == ("finished", expected, 0)
        journal = [json.loads(line) for line in (server.home / "runs" / made / "journal.jsonl").read_text().splitlines()]
        resumed = [line for line in journal if line["kind"] == "resume"]
        assert resumed[0]["step"] > 0, "a control: not from the beginning"
        assert resumed[0]["step"] <= stopped_at + 1


def test_what_a_job_file_says_of_slices_and_batch_reaches_the_script(tmp_path: Path) -> None:
    elastic = {"min": 2, "max": 2, "slices": 4, "batch": "linear"}
    with running(tmp_path / "home", slots=2, launcher=STRETTO) as server, server.client() as client:
        made = client.submit({**real("asked", epochs=3, pause_s=0.0), "elastic": elastic}).id
        assert client.wait(made, timeout_s=GUARD_S).state == "finished"
        journal = [json.loads(line) for line in (server.home / "runs" / made / "journal.jsonl").read_text().splitlines()]
        assert {line["slices"] for line in journal if line["kind"] == "loader"} == {4}
        assert {line["batch"] for line in journal if line["kind"] == "commit" and line["workers"] == 2} == {32}, "16 a worker"
        refused = client.submit({**real("refused", epochs=3, pause_s=0.0), "elastic": {**elastic, "slices": 5, "max": 2}}).id
        ended = client.wait(refused, timeout_s=GUARD_S)
        assert ended.state == "failed"
        assert "slices=5" in (ended.error or ""), "16 samples cannot be cut into 5"


def test_a_run_line_is_elastic_or_refused_or_says_that_it_is_neither(tmp_path: Path) -> None:
    with running(tmp_path / "home", slots=2, launcher=STRETTO) as server, server.client() as client:
        text = client.submit({**real("text", epochs=3, pause_s=0.0), "run": f"python {SCRIPT} 3 0"}).id
        shell = client.submit({"name": "shell", "run": "echo hello", "elastic": {"min": 1, "max": 2}}).id
        for run, workdir, words in (
            (["python", "nowhere.py"], str(tmp_path), f"run: {tmp_path}/nowhere.py does not exist on the server's machine"),
            (["python", "train.py"], None, "run: train.py is a relative path, and the job has no workdir"),
            (["python", "."], str(tmp_path), "is a folder, not a script"),
            (["/opt/other/bin/python", str(SCRIPT)], None, "is not the server's Python"),
            (["python3.2", str(SCRIPT)], None, "python3.2 is not the server's Python 3."),
            (["python", "-m", "job"], None, "run: `python -m job`: stretto runs script files"),
            ("torchrun job.py", None, "run: `torchrun job.py`: stretto takes the place of torchrun"),
        ):
            with pytest.raises(ServerError) as refused:
                client.submit({"name": "refused", "run": run, "workdir": workdir})
            assert words in str(refused.value)
        ended = client.wait(text, timeout_s=GUARD_S)
        assert (ended.state, ended.progress.step, ended.note) == ("finished", 12, ""), "4 steps an epoch, as a stretto script"
        ended = client.wait(shell, timeout_s=GUARD_S)
        assert (ended.state, ended.note) == ("finished", NEVER_JOINED)
        assert client.explain(shell).sentence == f"'shell' has finished; {ended.note}."
        with pytest.raises(ServerError, match="is one plain process"):
            client.scale(shell, 2)
        assert [one.name for one in client.jobs(name="refused")] == [], "and none of them was queued"


@pytest.mark.long
def test_a_script_that_torchrun_starts_is_a_job_in_restart_mode(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "durability" / "scripts" / "ddp.py"
    run = ["stretto", "run", "--restart-mode", "torchrun", str(script), "--epochs", "1"]
    with running(tmp_path / "home", slots=2, launcher=STRETTO) as server, server.client() as client:
        made = client.submit({"name": "restarting", "workdir": str(tmp_path), "run": run, "elastic": {"min": 1, "max": 2}}).id
        assert client.wait(made, timeout_s=GUARD_S).state == "finished"


def victims(server: Running) -> list[tuple[str, int]]:
    """Processes that a bad day may take: agents and workers of all jobs."""
    found: list[tuple[str, int]] = []
    for path in server.home.glob("jobs/*/life-*/keeper.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not path.with_name("exit.json").exists():
                agent = json.loads(path.read_text())["child"]
                found.append(("agent", agent))
                for zygote in _children(agent):
                    found += [("worker", worker) for worker in _children(zygote)]
    return found


def left_over(jobs: list[str]) -> list[str]:
    """Processes of these jobs, wherever they have put themselves: all have the job in their environment."""
    marks = {f"STRETTO_JOB={one}".encode() for one in jobs}
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marks & set(path.read_bytes().split(b"\0")):
                found.append(path.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.mark.timeout(0)
@pytest.mark.slow
def test_kills_of_workers_agents_and_the_server_at_random_change_no_digest(tmp_path: Path) -> None:
    """STRETTO_SERVER_CHAOS_S seconds of it: 60 in CI, 600 by `make test-server-chaos`."""
    seed = int(os.environ.get("STRETTO_SEED", "1"))
    chance = random.Random(seed)
    epochs = 20
    expected = reference(epochs)
    kills: dict[str, int] = {"server": 0, "agent": 0, "worker": 0}
    with running(tmp_path / "home", slots=2, launcher=STRETTO, policy="goodput") as server:
        client = server.client()
        made = _resized(client, epochs)
        until_s = time.monotonic() + CHAOS_S
        while time.monotonic() < until_s:
            try:
                made = _feed(client, made, epochs)
                _inspect(client)
            except ServerError:
                pass
            time.sleep(chance.uniform(0.5, 3.0))
            kind = chance.choices(["worker", "agent", "server", "scale", "pause"], [4, 1, 1, 4, 1])[0]
            if kind == "server":
                server.kill()
                kills["server"] += 1
                time.sleep(chance.uniform(0.0, 2.0))
                server.start()
                client.close()
                client = server.client()
            elif kind in ("scale", "pause"):
                _disturb(client, chance, kind)
            else:
                who = [pid for what, pid in victims(server) if what == kind]
                if who:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice(who), signal.SIGKILL)
                        kills[kind] += 1
        for one in made:
            until(lambda one=one: _resume(client) or client.job(one).state.ended, what=f"{one} has ended", timeout_s=10 * GUARD_S)
            ended = client.job(one)
            assert (ended.state, ended.digest) == ("finished", expected), f"seed {seed}: {ended.error}"
            assert ended.samples_lost == 0
        resizes = sum(client.job(one).resizes for one in made)
        print(f"{len(made)} jobs, kills {kills}, {resizes} changes of size, seed {seed}")
        assert sum(kills.values()) > 3, "a control: there was chaos"
        assert resizes > 0, "a control: jobs were resized"
        client.close()
        until(lambda: not left_over(made), what="nothing is left over", timeout_s=GUARD_S)


def _resized(client: Client, epochs: int) -> list[str]:
    """The first job, after a change of its size that nothing has disturbed."""
    first = client.submit(real("chaos-0", epochs=epochs, pause_s=0.03, restarts=100), key="chaos-0").id
    wait_for_step(client, first, 2)
    client.scale(first, 3 - client.job(first).workers)
    until(lambda: client.job(first).resizes > 0, what="it has another size", timeout_s=GUARD_S)
    return [first]


def _feed(client: Client, made: list[str], epochs: int) -> list[str]:
    living = [one for one in made if not client.job(one).state.ended]
    if len(living) < 3:
        name = f"chaos-{len(made)}"
        made = [*made, client.submit(real(name, epochs=epochs, pause_s=0.03, restarts=100), key=name).id]
    return made


def _inspect(client: Client) -> None:
    found = list(client.jobs())
    assert sum(one.wanted for one in found) <= 2
    assert sum(one.workers for one in found) <= 2, "given slots are taken over only when they are free"
    assert all(one.wanted == 0 or one.min <= one.wanted <= one.max for one in found)


def _disturb(client: Client, chance: random.Random, kind: str) -> None:
    with contextlib.suppress(ServerError):
        _resume(client)
        living = [one.id for one in client.jobs() if one.state == "running"]
        if living and kind == "scale":
            client.scale(chance.choice(living), chance.choice([1, 2]))
        elif living:
            client.pause(chance.choice(living))


def _resume(client: Client) -> None:
    for one in client.jobs(state=["paused"]):
        client.resume(one.id)
