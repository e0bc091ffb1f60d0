"""Two agents at two addresses of this machine: what several hosts do, without a network of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from launching import SOURCE, stretto

from stretto.core.journal import RosterLine
from tests.hosts.cluster import Job, paced
from tests.hosts.loopback import Loopback, start
from tests.stores.store_servers import free_port

pytestmark = pytest.mark.timeout(300)
SECRET = {"STRETTO_STORE_TOKEN": "0123456789abcdef0123456789abcdef"}


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def job(text: str) -> Job:
        made.append(Loopback(tmp_path, f"tcp://127.0.0.1:{free_port()}").job(text))
        return made[-1]

    yield job
    for one in made:
        one.stop()


# ---- a worker that hands the state on to its neighbours


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.slow
def test_a_newcomer_that_dies_while_it_hands_the_state_on_costs_the_job_nothing(near: Callable[..., Job], dies: bool) -> None:
    one = near(paced(epochs=10))
    start(one, "h1", "--slots", "1", workers="3", env=SECRET)
    start(one, "h2", "--slots", "2", workers="3", env={**SECRET, **({"STRETTO_FAILPOINT": "hand-on:1:h2.w0"} if dies else {})})
    one.until_workers(3)
    assert [event.worker for event in one.events("died")] == (["h2.w0"] if dies else [])
    assert one.finish() == one.cluster.reference(one)


# ---- the chief, before anybody trains


def test_two_hosts_have_one_chief_at_the_top_and_a_barrier_holds_across_them(near: Callable[..., Job], tmp_path: Path) -> None:
    """The chief of the first host dies before the barrier; everybody waits for the one that replaces it."""
    seen = tmp_path / "seen"
    seen.mkdir()
    one = near(
        paced(
            f"""
        import signal
        from pathlib import Path
        seen = Path({str(seen)!r})
        if job.chief:
            (seen / f"chief-{{WORKER}}").touch()
            time.sleep(2)
            if not (seen / "died").exists() and WORKER != "alone":
                (seen / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            (seen / "whole").touch()
        job.barrier()
        assert (seen / "whole").exists()
        (seen / f"rank-{{WORKER}}").write_text(str(job.rank))
    """,
            epochs=5,
        )
    )
    start(one, "h1", "--slots", "1", workers="3", env=SECRET)
    start(one, "h2", "--slots", "2", workers="3", env=SECRET)
    one.until_workers(3)
    digest = one.finish()
    ranks = [int(path.read_text()) for path in seen.glob("rank-*")]
    assert len(list(seen.glob("chief-*"))) == 2, "the first, and the one in its place"
    assert sorted(ranks) == [0, 1, 2]
    assert digest == one.cluster.reference(one)


# ---- the host that holds the store is lost while it trains


@pytest.mark.slow
def test_without_the_store_a_host_that_needs_a_change_says_so_and_ends(near: Callable[..., Job]) -> None:
    one = near(paced(epochs=2000))
    first = start(one, "h1", "--slots", "1", workers="1:2", env=SECRET)
    second = start(one, "h2", "--slots", "1", "--grace", "3", workers="1:2", env=SECRET)
    one.until_workers(2)
    first.kill()
    assert second.end() == 1
    assert second.result["state"] == "failed"
    assert "the host that holds the store" in second.result["error"] and "--checkpoint" in second.result["error"]


# ---- speeds, over all hosts


@pytest.mark.long
def test_a_slow_worker_of_another_host_than_the_chiefs_gets_fewer_slices(near: Callable[..., Job]) -> None:
    slow = """
    def trouble(step, place):
        if not os.path.exists("fast"):
            time.sleep(0.06 if WORKER == "h2.w0" else 0.004)
    """
    one = near(paced(slow, epochs=80))
    start(one, "h1", "--slots", "2", workers="2:3", env=SECRET)
    one.until_workers(2)
    start(one, "h2", "--slots", "1", workers="2:3", env=SECRET)
    balanced = one.until(
        lambda: [line for line in one.records() if isinstance(line, RosterLine) and line.cause == "balance"], why="slices that move"
    )
    shares = {member.worker: member.slices[1] - member.slices[0] for member in balanced[0].members}
    assert shares["h2.w0"] < min(shares["h1.w0"], shares["h1.w1"])
    assert one.finish() == one.cluster.reference(one)


@pytest.mark.long
def test_a_job_that_sizes_itself_grows_over_its_hosts_and_no_further_than_they_have_room(near: Callable[..., Job]) -> None:
    one = near(paced(epochs=200))
    sizing = ("--slots", "1", "--autoscale", "+1 every 5 steps")
    start(one, "h1", *sizing, env=SECRET)
    one.until(lambda: any("all that can be had" in event.text for event in one.events("autoscale")), why="a full host")
    start(one, "h2", *sizing, env=SECRET)
    one.until_workers(2)
    assert any("1 to 2 workers" in event.text for event in one.events("autoscale"))
    assert one.finish() == one.cluster.reference(one)


# ---- a clock that jumps

JUMPING = """
import time
real, monotonic = time.time, time.monotonic
time.time = lambda: real() + (3600.0, -3600.0, 0.0, 1e6)[int(monotonic() * 4) % 4]
"""


@pytest.mark.slow
def test_clocks_that_jump_by_hours_cost_no_lease_and_no_step(near: Callable[..., Job], tmp_path: Path) -> None:
    folder = tmp_path / "jumping"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(JUMPING)
    jumping = {**SECRET, "PYTHONPATH": f"{folder}:{SOURCE}"}
    one = near(paced(epochs=120))
    start(one, "h1", "--slots", "1", env=jumping)
    start(one, "h2", "--slots", "1", env=jumping)
    one.until_workers(2)
    one.until_more(60)
    told = [record.t for record in one.agents[0].records()]
    assert any(later < earlier - 3000 for earlier, later in pairwise(told)), "the clock does not jump in this test"
    assert one.finish() == one.cluster.reference(one)
    assert not one.events("died", "broken", "lost", "restarted"), one.events("died", "broken", "lost", "restarted")
    assert all(0 < agent.result["seconds"] < 3000 for agent in one.agents)
    assert one.audit().returncode == 0, one.audit().stdout


# ---- what is for one machine


@pytest.mark.parametrize("where", [("--store", "etcd://127.0.0.1:1", "--job", "digits"), ("--hosts", "nonesuch1,nonesuch2")])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--replay", "earlier"), "--replay earlier repeats a run on one machine, to the same digest however many hosts it had"),
        (("--restart-mode", "torchrun"), "--restart-mode torchrun starts its workers on one machine"),
    ],
)
def test_replay_and_restart_mode_are_refused_at_once(
    tmp_path: Path, where: tuple[str, ...], option: tuple[str, str], said: str
) -> None:
    (tmp_path / "train.py").write_text(paced())
    done = stretto("run", *where, *option, "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and f"leave out {where[0]}" in done.stderr
    assert not (tmp_path / "runs").exists()
