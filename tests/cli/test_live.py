"""The command line with jobs that run."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launched, gone, launcher, script, stretto

from stretto.core.audit import audit
from stretto.core.journal import Digests

Launch = Callable[..., Launched]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """One job that several tests ask about, in the order of this file; the last one ends it."""
    folder = tmp_path_factory.mktemp("live")
    with launcher(folder) as launch:
        run = launch(script(epochs=100_000, pause_s=0.005, slices=4), "--workers", "1:8", "--digest-every", "4", name="live")
        run.until_step(3)
        yield run


def verb(run: Launched, *arguments: str) -> tuple[int, str, str]:
    done = stretto(*arguments, cwd=run.folder.path.parent.parent)
    return done.returncode, done.stdout, done.stderr


def test_ps_shows_a_running_job(running: Launched) -> None:
    code, out, _ = verb(running, "ps")
    assert code == 0
    name, state, *rest = out.splitlines()[1].split()
    assert (name, state, rest[:3]) == ("live", "running", ["1", "of", "1:8"])


def test_scale_waits_until_the_newcomers_train(running: Launched) -> None:
    code, out, err = verb(running, "scale", "live", "3", "--wait")
    assert code == 0, err
    assert out == "live: 3 workers\n"
    running.until(lambda: running.commits()[-1].workers == 3)
    assert verb(running, "scale", "live", "3")[1] == "live: already at 3 workers\n"
    assert running.events("scale")[-1].text == "already at 3 workers"


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("0", "0 workers would be out of this run's bounds, 1 to 8"),
        ("9", "9 workers would be out of this run's bounds, 1 to 8"),
        ("6", "slices=4 allows at most 4 workers, 6 were asked for: raise slices= in job.loader(...)"),
    ],
)
def test_scale_out_of_bounds_is_refused_and_changes_nothing(running: Launched, workers: str, message: str) -> None:
    code, _, err = verb(running, "scale", "live", workers)
    assert code == 2
    assert message in err
    assert running.ask("status")["wanted"] == 3


def test_a_second_run_of_the_name_is_refused_and_the_first_goes_on(running: Launched) -> None:
    step = running.commits()[-1].step
    code, _, err = verb(running, "run", "--name", "live", "live.py")
    assert code == 2
    assert "there is a run named 'live'" in err
    running.until_step(step + 3)


def test_logs_of_one_worker(running: Launched) -> None:
    name = sorted(running.pids())[-1]
    code, out, _ = verb(running, "logs", "live", "--worker", name)
    assert code == 0
    assert out == f"[{name}] hello from {name}\n"


def test_scaling_down_lets_workers_leave_in_order(running: Launched) -> None:
    pids = running.pids()
    assert verb(running, "scale", "live", "1", "--wait")[1] == "live: 1 worker\n"
    assert running.events("scale")[-1].text == "from 3 to 1 worker"
    running.until(lambda: sum(gone(pid) for pid in pids.values()) == 2)
    assert not running.events("died", "crashed")
    assert len(running.events("left")) == 2


def test_show_has_every_change_with_its_pause(running: Launched) -> None:
    told = json.loads(verb(running, "show", "live", "--json")[1])
    assert told["state"] == "running"
    assert {"start", "join", "leave"} <= {one["cause"] for one in told["switches"]}
    assert all(one["pause_ms"] >= 0 for one in told["switches"])


def test_stop_ends_it_at_a_boundary_and_the_books_are_right(running: Launched) -> None:
    code, out, err = verb(running, "stop", "live", "--wait")
    assert (code, out) == (0, "live: stopped\n"), err
    assert running.end() == 143
    assert running.result["digest"]
    assert running.result["steps"] == len(running.commits())
    found = audit(running.records())
    assert found.holds, found.findings
    assert found.digests > 0
    assert all(len(one.digests) >= 1 and one.equal for one in running.records() if isinstance(one, Digests))
    assert not running.folder.control.exists()
    assert "does not run any more: it is stopped" in verb(running, "scale", "live", "2")[2]


def test_ctrl_c_once_ends_the_job_in_order_and_reaches_no_worker(launch: Launch) -> None:
    run = launch(script(epochs=100_000, pause_s=0.01), "--workers", "2")
    run.until_step(2)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() == 130
    assert run.result["state"] == "stopped"
    assert run.result["digest"]
    assert "KeyboardInterrupt" not in run.output()
    assert "at most 30 s (--grace); a second Ctrl-C ends at once" in run.output()
    assert audit(run.records()).holds


def test_ctrl_c_twice_ends_it_now(launch: Launch) -> None:
    run = launch(
        script(
            """
        def trouble(step, place):
            if step == 3: time.sleep(1000)
    """,
            epochs=100_000,
        ),
        "--workers",
        "1",
        "--slice-timeout",
        "1000",
        "--grace",
        "1000",
    )
    run.until_step(2)
    pids = list(run.pids().values())
    os.killpg(run.process.pid, signal.SIGINT)
    run.until_event("stop")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() == 130
    assert all(gone(pid) for pid in pids)


def test_a_graceful_stop_is_bounded(launch: Launch) -> None:
    run = launch(
        script(
            """
        def trouble(step, place):
            if step == 3: time.sleep(1000)
    """,
            epochs=100_000,
        ),
        "--workers",
        "1",
        "--slice-timeout",
        "1000",
        "--grace",
        "1",
    )
    run.until_step(2)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end() == 143
    assert "have not stopped within 1 s (--grace)" in run.events("warning")[0].text


def test_a_script_that_never_joins_is_told_how_and_its_arguments_are_its_own(launch: Launch) -> None:
    run = launch("import sys\nprint(sys.argv[1:])\n", "--workers", "2", args=("--workers", "7", "--", "-x"))
    assert run.end() == 1
    assert "job.py ended without calling stretto.join(): a training script becomes a worker" in run.output()
    assert "['--workers', '7', '--', '-x']" in run.output()
    assert run.result["restarts"] == 0


def test_more_workers_than_slices_fail_with_the_fix(launch: Launch) -> None:
    run = launch(script(slices=2), "--workers", "3")
    assert run.end() == 1
    assert "slices=2 allows at most 2 workers, 3 were asked for: raise slices= in job.loader(...)" in run.result["error"]


def test_where_fewer_will_do_it_goes_on_with_as_many_as_there_are_slices(launch: Launch) -> None:
    run = launch(script(slices=2, epochs=10, pause_s=0.01), "--workers", "1:4", "--start", "3")
    assert run.end() == 0, run.output()
    assert "slices=2 allows at most 2 workers, 3 were asked for" in run.events("warning")[0].text
    assert max(one.workers for one in run.commits()) <= 2


def test_a_script_that_ends_early_on_one_worker_fails_the_job(launch: Launch) -> None:
    run = launch(
        script("""
        def trouble(step, place):
            if step == 3 and WORKER == "w1": sys.exit(0)
    """),
        "--workers",
        "2",
    )
    assert run.end() == 1
    assert "ended on worker w1" in run.result["error"]
    assert "every worker has to run the same steps" in run.result["error"]
    assert audit(run.records()).holds


def test_leaving_the_inner_loop_on_one_worker_fails_the_job_and_the_steps_before_are_on_record(launch: Launch) -> None:
    text = script().replace("step.log(loss=loss)", "step.log(loss=loss)\n            if step.index == 3 and WORKER == 'w1': break")
    run = launch(text, "--workers", "2")
    assert run.end() == 1
    assert "step 3 was left early: the loop over its slices must run to its end" in run.result["error"]
    line = 1 + text.splitlines().index("    for step in data:")
    assert f"job.py:{line}: ScriptError: step 3 was left early" in run.output()
    assert run.result["steps"] == 3
    assert audit(run.records()).holds


def test_states_that_differ_stop_the_job_at_the_first_comparison(launch: Launch) -> None:
    run = launch(
        script(
            """
        def trouble(step, place):
            if step == 4 and WORKER == "w1":
                with torch.no_grad(): model.bias.add_(1e-3)
    """,
            epochs=50,
        ),
        "--workers",
        "2",
        "--digest-every",
        "1",
    )
    assert run.end() == 1
    assert "states differ" in run.result["error"]
    assert not audit(run.records()).holds
    assert run.result["steps"] < 10


def test_a_full_disk_costs_the_record_and_not_the_training(launch: Launch) -> None:
    run = launch(script(epochs=30, pause_s=0.01), "--workers", "2")
    run.until_step(2)
    size = run.folder.journal.stat().st_size
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (size + 100, size + 100))
    assert run.end() == 1
    assert "the job has finished, but its record is not whole" in run.output()
    assert "lines could not be written" in run.output()
    assert run.result["state"] == "finished"
    assert run.result["steps"] == 120
    assert run.result["digest"] in run.output()
    code, out, _ = verb(run, "audit", "job")
    assert code == 1
    assert "WRONG: the result says 120 steps" in out


def test_json_is_one_document_a_line(launch: Launch) -> None:
    run = launch(script("import atexit; atexit.register(print, 'exit handlers run')", epochs=2), "--workers", "1", "--json")
    assert run.end() == 0, run.output()
    documents = [json.loads(line) for line in run.output().splitlines()]
    assert any(one.get("line") == "exit handlers run" for one in documents)
    kinds = {one["kind"] for one in documents}
    assert {"start", "loader", "roster", "switch", "commit", "epoch", "output", "end"} <= kinds
    assert documents[-1]["state"] == "finished"


def test_tensorboard_has_the_loss_the_workers_and_the_speed(launch: Launch, tmp_path: Path) -> None:
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = launch(script(epochs=2), "--tensorboard", "--workers", "1")
    assert run.end() == 0, run.output()
    board = loading.EventAccumulator(str(run.folder.path / "tensorboard"))
    board.Reload()
    assert {"train/loss", "stretto/workers", "stretto/steps_per_s"} <= set(board.Tags()["scalars"])
    told = [(one.step, round(one.value, 5)) for one in board.Scalars("train/loss")]
    assert told == [(one.step, round(one.metrics["loss"], 5)) for one in run.commits()]
