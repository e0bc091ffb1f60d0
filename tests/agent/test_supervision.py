"""Workers that die, freeze, hang and crash, under a real `stretto run`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import GUARD_S, Launched, environment, gone, script

from stretto.core.audit import audit
from stretto.core.journal import RosterLine

Launch = Callable[..., Launched]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The digest of plain `python`, by the number of epochs."""
    folder = tmp_path_factory.mktemp("alone")
    digests: dict[int, str] = {}
    for epochs in (12,):
        path = folder / "alone.py"
        path.write_text(script(epochs=epochs))
        done = subprocess.run(
            [sys.executable, str(path)], env=environment(), text=True, capture_output=True, timeout=GUARD_S, check=True
        )
        digests[epochs] = done.stdout.split()[-1]
    return digests


def test_a_killed_worker_is_replaced_and_the_bits_are_those_of_plain_python(launch: Launch, alone: dict[int, str]) -> None:
    run = launch(script(epochs=12, pause_s=0.02), "--workers", "2")
    run.until_step(3)
    victim = run.pids()["w1"]
    os.kill(victim, signal.SIGKILL)
    assert run.until_event("died").worker == "w1"
    assert run.end() == 0, run.output()
    assert run.result["digest"] == alone[12]
    assert run.result["restarts"] == 1
    assert audit(run.records()).holds
    assert [one for one in run.events("ready") if one.worker == "w2"]
    assert "signal 9 (SIGKILL)" in run.events("died")[0].text


def test_a_frozen_worker_counts_as_dead_and_is_killed(launch: Launch, alone: dict[int, str]) -> None:
    run = launch(script(epochs=12, pause_s=0.02), "--workers", "2")
    run.until_step(3)
    victim = run.pids()["w0"]
    os.kill(victim, signal.SIGSTOP)
    event = run.until_event("frozen")
    assert event.worker == "w0"
    assert run.end() == 0, run.output()
    assert gone(victim)
    assert run.result["digest"] == alone[12]
    assert audit(run.records()).holds


def test_a_busy_worker_that_only_sleeps_between_steps_is_not_taken_for_dead(launch: Launch) -> None:
    run = launch(
        script("""
        def trouble(step, place):
            if step == 2 and place == 0: time.sleep(2.5)
    """),
        "--workers",
        "2",
    )
    assert run.end() == 0, run.output()
    assert not run.events("frozen", "hung", "silent", "died")


def test_a_slice_that_hangs_is_killed_and_computed_by_somebody_else(launch: Launch) -> None:
    run = launch(
        script("""
        def trouble(step, place):
            if step == 2 and WORKER == "w1": time.sleep(1000)
    """),
        "--workers",
        "2",
        "--slice-timeout",
        "1.5",
    )
    event = run.until_event("hung")
    assert event.worker == "w1"
    assert "of step 2" in event.text
    assert run.end() == 0, run.output()


def test_a_slice_that_kills_two_workers_is_poison_and_fails_the_job(launch: Launch) -> None:
    run = launch(
        script("""
        import ctypes
        def trouble(step, place):
            if step == 2 and step_slice() == 5: ctypes.string_at(0)
        def step_slice():
            return sys._getframe(2).f_locals["step"].slice
    """),
        "--workers",
        "3",
    )
    assert run.end() == 1
    assert "slice 5 of step 2" in run.result["error"]
    assert "poison" in run.result["error"]
    assert len(run.events("died")) == 2, "the third worker must not be killed too"
    assert audit(run.records()).holds, "what was committed before holds"


def test_the_same_exception_on_every_worker_fails_the_job_with_its_traceback(launch: Launch) -> None:
    run = launch(
        script("""
        def trouble(step, place):
            if step == 2: raise ValueError("the data has a hole")
    """),
        "--workers",
        "2",
    )
    assert run.end() == 1
    assert "ValueError: the data has a hole" in run.result["error"]
    assert "in the same way in workers" in run.result["error"]
    assert "Traceback" in run.result["traceback"]
    assert "Traceback" in run.output()
    assert run.result["restarts"] <= 1


def test_an_exception_on_one_worker_alone_costs_only_that_worker(launch: Launch) -> None:
    run = launch(
        script("""
        def trouble(step, place):
            if step == 2 and WORKER == "w1": raise ValueError("only here")
    """),
        "--workers",
        "2",
    )
    assert run.end() == 0, run.output()
    assert [one.worker for one in run.events("crashed")] == ["w1"]


def test_an_exception_at_the_start_fails_the_job_at_once(launch: Launch) -> None:
    run = launch("import stretto\njob = stretto.join()\nraise KeyError('nowhere')\n", "--workers", "2")
    assert run.end() == 1
    assert "KeyError: 'nowhere'" in run.result["error"]
    assert run.result["restarts"] == 0


def test_the_exit_code_of_the_script_is_the_jobs(launch: Launch) -> None:
    run = launch("import stretto, sys\njob = stretto.join()\nsys.exit(7)\n", "--workers", "1")
    assert run.end() == 7


def test_a_worker_that_always_dies_uses_up_the_budget_and_the_job_fails(launch: Launch) -> None:
    run = launch(
        script(
            """
        if WORKER != "w0": os._exit(9)
    """,
            pause_s=0.05,
            epochs=500,
        ),
        "--workers",
        "2",
        "--max-restarts",
        "1",
    )
    assert run.end() == 1
    assert "--max-restarts 1" in run.result["error"]
    assert "exit code 9" in run.result["error"]


def test_a_job_that_may_have_fewer_workers_goes_on_without_those_that_always_die(launch: Launch) -> None:
    run = launch(
        script(
            """
        if WORKER != "w0": os._exit(9)
    """,
            pause_s=0.01,
            epochs=12,
        ),
        "--workers",
        "1:2",
        "--start",
        "2",
        "--max-restarts",
        "0",
    )
    assert run.end() == 0, run.output()
    assert "is not replaced any more" in run.events("warning")[0].text


@pytest.mark.slow
def test_a_worker_with_another_fingerprint_is_refused_with_the_difference(launch: Launch) -> None:
    different = """
        if WORKER == "w1": torch.set_float32_matmul_precision("high")
    """
    run = launch(script(different, epochs=20, pause_s=0.02), "--workers", "1:2", "--start", "2", "--max-restarts", "0")
    refused = run.until_event("refused")
    assert refused.worker == "w1"
    assert "torch.get_float32_matmul_precision() is high on w1 and highest on w0" in refused.text
    assert "--allow-mixed" in refused.text
    assert run.end() == 0, run.output()


@pytest.mark.slow
def test_a_worker_with_another_model_is_refused_with_both_and_the_job_goes_on(launch: Launch) -> None:
    run = launch(
        script(
            """
        if WORKER == "w1": model.register_buffer("extra", torch.zeros(3))
    """,
            epochs=20,
            pause_s=0.02,
        ),
        "--workers",
        "1:2",
        "--max-restarts",
        "0",
    )
    run.until_step(1)
    run.ask("scale", workers=2)
    refused = run.until_event("refused")
    assert refused.worker == "w1"
    assert "job.share(model=…) is a Linear with 8 numbers in 3 tensors" in refused.text
    assert "on w1 and a Linear with 5 numbers in 2 tensors" in refused.text
    assert "the same script with the same arguments" in refused.text
    assert run.end() == 0, run.output()
    assert run.result["steps"] == 80
    assert audit(run.records()).holds


@pytest.mark.slow
def test_misplaced_workers_are_refused_and_the_job_goes_on_without_more_of_them(launch: Launch, alone: dict[int, str]) -> None:
    """Fewer than the job was started with: a refusal does not fail a job that can go on."""
    run = launch(
        script(
            """
        def trouble(step, place):
            if step > 5 and int(WORKER[1:]) > 1:
                from stretto.train.membership import Misplaced
                raise Misplaced(f"worker {WORKER} is in step {step} while the others evaluate")
    """,
            epochs=12,
            pause_s=0.05,
        ),
        "--workers",
        "2",
    )
    run.until_step(6)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    assert run.end() == 0, run.output()
    refused = run.events("refused")
    assert [one.worker for one in refused] == ["w2", "w3"]
    assert refused[0].text.startswith("worker w2 is in step")
    assert "while the others evaluate" in run.output()
    assert "2 workers were refused for this reason" in run.events("unreplaced")[0].text
    assert run.result["digest"] == alone[12]
    assert audit(run.records()).holds


def test_allow_mixed_admits_it_and_says_what_is_lost(launch: Launch) -> None:
    different = """
        if WORKER == "w1": torch.set_float32_matmul_precision("high")
    """
    run = launch(script(different), "--workers", "2", "--allow-mixed")
    assert run.end() == 0, run.output()
    assert not run.events("refused")
    assert "no longer the same bits" in run.events("warning")[0].text
    assert run.result["mixed"] is True


def test_killing_the_agent_takes_everything_with_it(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        script(
            """
        import subprocess
        stray = subprocess.Popen(["sleep", "1000"])
        loner = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open(f"strays-{WORKER}", "w").write(f"{stray.pid} {loner.pid}")
    """,
            pause_s=0.02,
            epochs=10_000,
        ),
        "--workers",
        "2",
    )
    run.until_step(2)
    pids = list(run.pids().values())
    strays = [int(pid) for path in tmp_path.glob("strays-*") for pid in path.read_text().split()]
    assert len(strays) == 4
    assert not any(gone(pid) for pid in pids + strays)
    zygote = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    deadline = time.monotonic() + GUARD_S
    left = [zygote, *pids, *strays]
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if not gone(pid)]
        time.sleep(0.05)
    assert not left
    assert "Traceback" not in run.output()


def test_a_dead_fork_server_fails_the_job_and_leaves_nobody(launch: Launch) -> None:
    run = launch(script(pause_s=0.02, epochs=10_000), "--workers", "2")
    run.until_step(2)
    pids = list(run.pids().values())
    zygote = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(zygote, signal.SIGKILL)
    assert run.end() == 1
    assert "fork server ended with signal 9" in run.result["error"]
    assert all(gone(pid) for pid in pids)


def test_a_first_roster_that_is_replaced_while_its_state_is_sent_costs_only_that_roster(launch: Launch, tmp_path: Path) -> None:
    """The worker that sends the state hears of the next roster before the transfer fails. It holds a state, so it enters rescues
    only, and nobody knew that: the job stood still for ever."""
    pace = tmp_path / "pace"
    pace.write_text("1")
    run = launch(
        script(epochs=1),
        *("--workers", "2"),
        env={"STRETTO_FAILPOINT": "receive:1:w1", "STRETTO_FAILPOINT_PACE": f"send:{pace}"},
    )
    run.until_event("died")
    run.until_step(1)
    pace.write_text("0")
    assert run.end() == 0, run.output()
    rosters = [line for line in run.records() if isinstance(line, RosterLine)]
    assert [(line.number, line.base, line.rescue) for line in rosters[:2]] == [(1, 0, False), (2, 0, False)], rosters
    assert audit(run.records()).holds
