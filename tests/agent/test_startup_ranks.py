"""The chief, ranks and barriers before training: from the first line of the script on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import Launched, script

from stretto.core.audit import audit
from stretto.core.journal import Checkpoint
from stretto.membership.startup_ranks import Ranks, assign_rank, passed

Launch = Callable[..., Launched]


@given(st.lists(st.tuples(st.sampled_from(["start", "die", "begin"]), st.integers(0, 9)), max_size=40))
def test_one_living_worker_is_chief_and_ranks_are_distinct(moves: list[tuple[str, int]]) -> None:
    ranks, alive, began, chiefs = Ranks(), list[str](), False, list[str]()
    for number, (move, pick) in enumerate(moves):
        if move == "die" and alive:
            alive.remove(alive[pick % len(alive)])
        elif move == "begin" and alive:
            began = True
        elif move == "start":
            before, gone = ranks.chief in alive, set(ranks.holders) - set(alive)
            alive.append(f"w{number}")
            ranks = assign_rank(ranks, f"w{number}", agent="a0", life=1, began=began, gone=gone)
            assert (ranks.chief == f"w{number}") == (not before and not began)
            chiefs += [f"w{number}"] if ranks.chief == f"w{number}" else []
        held = [ranks.rank(worker) for worker in alive]
        assert len(set(held)) == len(held)
        assert all((ranks.rank(worker) == 0) == (worker == ranks.chief) for worker in alive)


def test_another_life_has_another_chief_and_its_barriers_begin_again() -> None:
    ranks = assign_rank(Ranks(), "w0", agent="a0", life=1, began=False, gone=set())
    ranks = passed(ranks, "w0", count=3)
    assert passed(ranks, "w1", count=9).passed == 3, "only the chief's barriers count"
    later = assign_rank(ranks, "w4", agent="a1", life=2, began=False, gone=set())
    assert (later.chief, later.passed, dict(later.holders)) == ("w4", 0, {"w4": (0, "a1")})
    assert Ranks.from_dict(later.to_dict()) == later
    assert assign_rank(later, "w4", agent="a1", life=2, began=False, gone=set()) == later, "asked again after a lost answer"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_code_under_if_chief_at_the_top_runs_in_one_process(launch: Launch, tmp_path: Path) -> None:
    """The chief is the last to be ready; a newcomer joins and a worker is killed; nobody erases the chief's file."""
    run = launch(
        script(
            """
        if WORKER == "w0": time.sleep(1.5)
        log = open("train.csv", "w", buffering=1) if job.chief else None
        if log is not None: print("opened by", WORKER, file=log)
        with open("ranks", "a") as file: print(WORKER, job.rank, job.workers, job.chief, job.resumed, file=file)
        job.barrier()
        def trouble(step, place):
            if job.chief and place == 0: print(step, file=log)
    """,
            epochs=15,
            pause_s=0.02,
        ),
        "--workers",
        "1:4",
        "--start",
        "3",
    )
    run.until_step(3)
    run.ask("scale", workers=4)
    run.until_workers(4)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    assert run.end() == 0, run.output()
    log = lines(tmp_path / "train.csv")
    assert log[0] == "opened by w0"
    assert {int(one) for one in log[1:]} == set(range(60)), "it was written from the first step to the last"
    told = {one.split()[0]: one.split()[1:] for one in lines(tmp_path / "ranks")}
    assert told["w0"] == ["0", "3", "True", "False"]
    assert sorted(told) == ["w0", "w1", "w2", "w3", "w4"]
    assert all(chief == "False" for name, (_, _, chief, _) in told.items() if name != "w0")
    assert sorted([told["w1"][0], told["w2"][0], told["w3"][0]]) == ["1", "2", "3"]
    assert audit(run.records()).holds


def test_everybody_waits_at_a_barrier_for_the_chief_that_replaces_a_dead_one(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        script("""
        import signal
        if job.chief:
            open("downloaded", "a").write("half ")
            if WORKER == "w0":
                time.sleep(1)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.5)
            open("downloaded", "a").write("whole")
        job.barrier()
        assert open("downloaded").read().endswith("whole")
        job.barrier()
        open("readers", "a").write(f"{WORKER}\\n")
        def trouble(step, place):
            if job.chief and step == 0 and place == 0: open("chief", "w").write(WORKER)
    """),
        "--workers",
        "3",
    )
    assert run.end() == 0, run.output()
    assert (tmp_path / "downloaded").read_text() == "half half whole"
    assert sorted(lines(tmp_path / "readers")) == ["w1", "w2", "w3"]
    assert (tmp_path / "chief").read_text() == "w3", "the chief of the top is the first roster's"


def test_where_a_dead_chief_is_not_replaced_another_worker_starts_again_as_chief(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        script("""
        import signal
        if WORKER == "w0": os.kill(os.getpid(), signal.SIGKILL)
        if job.chief: open("downloaded", "a").write(WORKER)
        job.barrier()
        assert os.path.exists("downloaded")
    """),
        "--workers",
        "1:2",
        "--start",
        "2",
        "--max-restarts",
        "0",
    )
    assert run.end() == 0, run.output()
    assert (tmp_path / "downloaded").read_text() == "w2"
    assert [one.worker for one in run.events("dismissed")] == ["w1"]
    assert audit(run.records()).holds


@pytest.mark.long
def test_a_resumed_job_has_one_chief_again_and_says_that_it_is_resumed(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        script(
            """
        if job.chief: open("lives", "a").write(f"{WORKER} {job.rank} {job.resumed}\\n")
    """,
            epochs=10,
            pause_s=0.02,
        ),
        "--workers",
        "2",
        "--checkpoint",
        str(tmp_path / "saved"),
        "--checkpoint-every",
        "2",
    )
    run.until(lambda: [one for one in run.records() if isinstance(one, Checkpoint)])
    for pid in run.pids().values():
        os.kill(pid, signal.SIGKILL)
    assert run.end() == 0, run.output()
    first, second = lines(tmp_path / "lives")
    assert first == "w0 0 False"
    assert second.split()[1:] == ["0", "True"]


def test_a_barrier_that_the_chief_never_comes_to_keeps_nobody_once_it_is_past(launch: Launch) -> None:
    run = launch(script("if not job.chief: job.barrier()", epochs=1), "--workers", "2")
    assert run.end() == 0, run.output()
    assert {one.workers for one in run.commits()} == {2}


def test_a_worker_that_becomes_chief_and_lacks_the_chiefs_file_is_told_why(launch: Launch) -> None:
    run = launch(
        script(
            """
        if job.chief: log = open("train.csv", "w")
        def trouble(step, place):
            if job.chief: print(step, file=log)
    """,
            epochs=50,
            pause_s=0.01,
        ),
        "--workers",
        "1:2",
        "--start",
        "2",
    )
    run.until_step(3)
    os.kill(run.pids()["w0"], signal.SIGKILL)
    assert run.end() == 1
    assert "NameError: name 'log' is not defined (this worker became chief when the one before it went" in run.result["error"]


def test_a_file_that_is_opened_where_it_is_used_survives_the_chief(launch: Launch, tmp_path: Path) -> None:
    """As the porting page writes it."""
    run = launch(
        script(
            """
        log = None
        def trouble(step, place):
            global log
            if job.chief and place == 0:
                log = log or open("train.csv", "a" if job.step or job.resumed else "w")
                print(step, file=log, flush=True)
    """,
            epochs=20,
            pause_s=0.01,
        ),
        "--workers",
        "2",
    )
    run.until_step(3)
    os.kill(run.pids()["w0"], signal.SIGKILL)
    assert run.end() == 0, run.output()
    assert {int(one) for one in lines(tmp_path / "train.csv")} == set(range(80))
