"""`with stretto.join(...)` and `job.close()`: one job after the other in a process, and what a launched worker makes of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  (every optimizer imports it at its first step: once here, not in every fork)
from launching import GUARD_S, Launched, environment
from test_plain_python import check, refused

JOBS = """
import gc, multiprocessing, os, sys, threading, time, torch, stretto
from torch.optim import optimizer as optimizers

def plain(seed=0, **more):
    with stretto.join(seed=seed) as job:
        train(job, **more)
        return job.digest()

def train(job, *, batch_size=16, rule=None, workers=0, epochs=1):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job.share(model=model, optimizer=optimizer, lr_rule=rule)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(256, 6, generator=g), torch.randint(0, 3, (256,), generator=g)
    data = job.loader(torch.utils.data.TensorDataset(x, y), batch_size=batch_size, num_workers=workers,
                      persistent_workers=workers > 0)
    val = job.loader(torch.utils.data.TensorDataset(x, y), batch_size=64, train=False)
    for epoch in job.epochs(epochs):
        for step in data:
            for a, b in step:
                loss = torch.nn.functional.cross_entropy(model(a), b)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        for step in val:
            for a, b in step:
                step.log(loss=torch.nn.functional.cross_entropy(model(a), b))
    return model, optimizer

def adaptive():
    return plain(seed=1, batch_size=stretto.Adaptive(start=16, at_most=16), rule=stretto.AdaScale())

def prefetching():
    return plain(seed=2, workers=2)
"""
KINDS = ("plain()", "adaptive()", "prefetching()")


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """The digest of each kind of job in a process of its own."""
    return {kind: check(f"print({kind})", head=JOBS).split()[-1] for kind in KINDS}


@pytest.mark.slow
def test_jobs_one_after_the_other_have_the_digests_of_processes_of_their_own(alone: dict[str, str]) -> None:
    assert len(set(alone.values())) == len(KINDS)
    order = [*KINDS, *KINDS[:2]]
    found = check("\n".join(f"print({kind})" for kind in order), head=JOBS).split()
    assert found == [alone[kind] for kind in order]


def test_closing_leaves_no_hook_thread_or_process_behind() -> None:
    check(
        """
        for make in (dict(), dict(rule=stretto.AdaScale(), epochs=2), dict(workers=2)):
            job = stretto.join(seed=0)
            model, optimizer = train(job, **make)
            assert optimizers._global_optimizer_post_hooks, "nothing is registered, so nothing is shown"
            if make.get("workers"):
                assert multiprocessing.active_children()
            job.close()
            assert not optimizers._global_optimizer_pre_hooks and not optimizers._global_optimizer_post_hooks
            assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
            assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
            assert [one.name for one in threading.enumerate() if one.name.startswith("stretto")] == []
            assert multiprocessing.active_children() == []
            model(torch.randn(4, 6)).sum().backward()  # an ordinary model again
            optimizer.step()
    """,
        head=JOBS,
    )


def test_an_exception_leaving_the_block_closes_the_job(alone: dict[str, str]) -> None:
    out = check(
        """
        try:
            with stretto.join(seed=5) as job:
                model = torch.nn.Linear(6, 3)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                job.share(model=model, optimizer=optimizer)
                data = job.loader(torch.utils.data.TensorDataset(torch.randn(64, 6)), batch_size=16)
                for step in data:
                    for (x,) in step:
                        model(x).sum().backward()
                        raise ValueError("in the middle of a step")
        except ValueError:
            assert job.closed
        print(plain())
    """,
        head=JOBS,
    )
    assert out.split()[-1] == alone["plain()"]


def test_the_digest_can_be_had_until_the_job_is_closed() -> None:
    check(
        """
        job = stretto.join(seed=0)
        train(job)
        assert job.digest() == job.digest()
        job.close()
        job.close()
        assert job.step == 16 and job.closed
    """,
        head=JOBS,
    )


def test_every_use_of_a_closed_job_is_refused() -> None:
    check(
        """
        job = stretto.join(seed=0)
        train(job)
        job.close()
        for use in (lambda: job.digest(), lambda: job.share(model=torch.nn.Linear(1, 1)), lambda: job.report(x=1.0),
                    lambda: next(job.epochs(9)), lambda: job.loader(range(64), batch_size=16),
                    lambda: iter(job._session.loaders[0]),
                    lambda: job.__enter__(), lambda: job.barrier()):
            try:
                use()
            except stretto.StrettoError as error:
                assert "this job is closed" in str(error) and "stretto.join(...)" in str(error)
            else:
                raise AssertionError("not refused")
    """,
        head=JOBS,
    )


def test_a_step_of_a_closed_job_is_refused() -> None:
    refused(
        """
        job = stretto.join(seed=0)
        model = torch.nn.Linear(6, 3)
        job.share(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for step in job.loader(torch.utils.data.TensorDataset(torch.randn(64, 6)), batch_size=16):
            job.close()
            for (x,) in step:
                pass
    """,
        "this job is closed",
        head=JOBS,
    )


def test_a_second_join_of_a_script_is_refused_and_the_text_names_both_ways() -> None:
    refused("stretto.join(seed=0)\nstretto.join(seed=1)", "second time", "job.close()", "with stretto.join(...) as job:", head=JOBS)


def test_a_cell_that_runs_twice_closes_the_first_job_and_says_so(alone: dict[str, str]) -> None:
    cell = "job = stretto.join(seed=0); model, optimizer = train(job); print('digest', job.digest())\n"
    typed = f"exec({JOBS!r})\n{cell}{cell}"
    done = subprocess.run(
        [sys.executable, "-i"], input=typed, env=environment(), text=True, capture_output=True, timeout=GUARD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines() if "digest" in line] == [alone["plain()"]] * 2, done.stderr
    assert done.stderr.count("stretto: closed the job that this session had joined before") == 1


LAUNCHED = (
    JOBS
    + """
with stretto.join(seed=0) as job:
    train(job)
time.sleep(AFTER)
print("after", os.environ.get("STRETTO_WORKER"))
LAST
"""
)


def launched(last: str = "", *, after_s: float = 0.0) -> str:
    return LAUNCHED.replace("LAST", last).replace("AFTER", str(after_s))


def test_a_launched_worker_finishes_at_close_and_its_script_goes_on(launch: Callable[..., Launched], alone: dict[str, str]) -> None:
    run = launch(launched(after_s=3.0), "--workers", "2", "--grace", "1")
    assert run.end() == 0, run.output()
    assert run.result["digest"] == alone["plain()"]
    assert sorted(one.worker or "" for one in run.events("finished")) == ["w0", "w1"], "once for each worker"
    assert "after w0" in run.output() and "after w1" in run.output(), "not killed --grace after close"


def test_a_launched_script_cannot_join_again(launch: Callable[..., Launched]) -> None:
    run = launch(launched("stretto.join(seed=1)"), "--workers", "1")
    assert run.end() != 0
    assert "called a second time in a launched script" in run.output()
    assert "failed after job.close()" in run.result["error"]


def test_a_launched_worker_that_fails_inside_the_block_has_not_finished(launch: Callable[..., Launched], tmp_path: Path) -> None:
    body = (
        JOBS
        + """
with stretto.join(seed=0) as job:
    train(job)
    raise ValueError("no result")
"""
    )
    run = launch(body, "--workers", "1")
    assert run.end() != 0
    assert not run.events("finished")
    assert "no result" in run.result["error"]


def test_a_script_that_runs_out_of_memory_inside_the_block_is_carried_over(launch: Callable[..., Launched]) -> None:
    train = JOBS.replace("                loss = torch", "                room(job, a)\n                loss = torch")
    body = (
        train
        + """
def room(job, a):
    if job.step == 3 and len(a) > 2: raise torch.OutOfMemoryError("too much at a time")

with stretto.join(seed=0) as job:
    train(job, batch_size=32)
"""
    )
    run = launch(body, "--workers", "2")
    assert run.end() == 0, run.output()
    assert run.events("memory"), run.output()
    assert len(run.events("finished")) == 2
    assert run.result["restarts"] == 0
