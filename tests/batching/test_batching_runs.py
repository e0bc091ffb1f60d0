"""Batch plans, slow workers and sizing under a real `stretto run`."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from launching import GUARD_S, Launched, environment, stretto

from stretto.core.audit import audit
from stretto.core.journal import JournalReport, Plan, RosterLine, Switch
from stretto.server.decisions.snapshot import fitted

Launch = Callable[..., Launched]

TRAIN = """
import os, sys, time
import torch
import stretto

WORKER = os.environ.get("STRETTO_WORKER", "alone")
job = stretto.join(seed=3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.share(model=model, optimizer=optimizer, lr_rule=RULE)
generator = torch.Generator().manual_seed(7)
inputs = torch.randn(SAMPLES, 8, generator=generator)
targets = (inputs @ torch.randn(8, 3, generator=generator)).argmax(1)
data = job.loader(torch.utils.data.TensorDataset(inputs, targets), batch_size=POLICY, slices=8)
def trouble(step, x): pass
TROUBLE
for epoch in job.epochs(EPOCHS):
    for step in data:
        for x, y in step:
            trouble(job.step, x)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if job.step == NAN: loss = loss * float("nan")
            loss.backward()
            step.log(loss=loss)
            time.sleep(PAUSE)
        optimizer.step()
        optimizer.zero_grad()
    job.report(loss=step.metrics["loss"], accuracy=torch.tensor([0.5]))
print("digest", job.digest())
"""


def script(
    trouble: str = "",
    *,
    policy: str = "32",
    rule: str = "None",
    epochs: int = 4,
    samples: int = 512,
    pause_s: float = 0.0,
    nan: int = -1,
) -> str:
    text = TRAIN.replace("TROUBLE", textwrap.dedent(trouble)).replace("POLICY", policy).replace("RULE", rule)
    text = text.replace("EPOCHS", str(epochs)).replace("SAMPLES", str(samples)).replace("NAN", str(nan))
    return text.replace("PAUSE", str(pause_s))


def alone(tmp_path: Path, text: str) -> str:
    """The digest of plain `python`."""
    path = tmp_path / "alone.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(path)], env=environment(), text=True, capture_output=True, timeout=GUARD_S, check=True
    )
    return done.stdout.split()[-1]


def plans(run: Launched) -> list[Plan]:
    return [one for one in run.records() if isinstance(one, Plan)]


def balances(run: Launched) -> list[Switch]:
    return [one for one in run.records() if isinstance(one, Switch) and one.cause == "balance"]


@pytest.mark.slow
def test_a_run_whose_batch_followed_its_workers_is_replayed_to_its_digest_on_other_workers(launch: Launch, tmp_path: Path):
    text = script(policy="stretto.PerWorker(16, at_most=64)", rule="stretto.LinearScale()", epochs=6, pause_s=0.004)
    run = launch(text, "--workers", "1:3", "--start", "1", name="first")
    run.until_step(10)
    run.ask("scale", workers=3)
    run.until(lambda: len(plans(run)) >= 2)
    assert run.end() == 0, run.output()
    assert [one.batch for one in plans(run)][:1] == [16]
    assert {48, 32} & {one.batch for one in plans(run)}
    assert audit(run.records()).holds
    last = [one for one in run.records() if isinstance(one, JournalReport) and one.of == "job"][-1].metrics
    assert last["remaining"]["samples"] == 0, "what does not fill a batch is dropped, so nobody will train it"

    again = launch(text, "--workers", "2", "--replay", "first", name="again")
    assert again.end() == 0, again.output()
    assert again.result["digest"] == run.result["digest"]
    assert "the same digest as first" in again.output()
    assert [one.batch for one in again.commits()] == [one.batch for one in run.commits()]
    assert audit(again.records()).holds

    # The control: the same script on the same workers without the plan is another run.
    other = launch(text, "--workers", "2", name="other")
    assert other.end() == 0, other.output()
    assert other.result["digest"] != run.result["digest"]


@pytest.mark.slow
def test_a_death_changes_the_batch_and_every_sample_is_still_in_one_step(launch: Launch):
    text = script(policy="stretto.PerWorker(16)", rule="stretto.LinearScale()", epochs=4, pause_s=0.01)
    run = launch(text, "--workers", "1:2", "--start", "2", name="first")
    run.until(lambda: any(one.workers == 2 for one in run.commits()))
    run.until_step(10)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    assert run.end() == 0, run.output()
    assert {16, 32} <= {one.batch for one in run.commits()}
    assert audit(run.records()).holds
    again = launch(text, "--workers", "1", "--replay", "first", name="again")
    assert again.end() == 0, again.output()
    assert again.result["digest"] == run.result["digest"]


@pytest.mark.slow
def test_an_adaptive_run_is_replayed_to_its_digest_on_other_workers(launch: Launch):
    text = script(
        policy="stretto.Adaptive(start=16, at_most=256)", rule="stretto.AdaScale()", epochs=5, samples=2048, pause_s=0.002
    )
    run = launch(text, "--workers", "2", name="first")
    assert run.end() == 0, run.output()
    assert len({one.batch for one in plans(run)}) > 1, "nothing was adapted, so nothing is shown"
    assert all("goodput" in one.reason for one in plans(run)[1:])
    assert audit(run.records()).holds
    again = launch(text, "--workers", "3", "--replay", "first", name="again")
    assert again.end() == 0, again.output()
    assert again.result["digest"] == run.result["digest"]


@pytest.mark.slow
def test_a_replay_that_comes_out_otherwise_says_so(launch: Launch):
    run = launch(script(policy="stretto.PerWorker(16)"), "--workers", "2", name="first")
    assert run.end() == 0, run.output()
    again = launch(
        script(policy="stretto.PerWorker(16)", rule="stretto.LinearScale()"), "--workers", "2", "--replay", "first", name="again"
    )
    assert again.end() == 1
    assert "the digest is not that of first" in again.output()


def test_application_metrics_are_reported(launch: Launch):
    run = launch(
        script(policy="stretto.Adaptive(start=32, at_most=64)", rule="stretto.AdaScale()", epochs=12, pause_s=0.004),
        "--workers",
        "2",
    )
    assert run.end() == 0, run.output()
    own = [one for one in run.records() if isinstance(one, JournalReport) and one.of == "script"]
    assert len(own) == 12
    assert own[-1].metrics == {"loss": run.commits()[-1].metrics["loss"], "accuracy": 0.5}
    reports = [one for one in run.records() if isinstance(one, JournalReport) and one.of == "job"]
    last = reports[-1].metrics
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    jsonschema.validate(dict(last), json.loads(page.partition("```json")[2].partition("```")[0]))
    assert last["noise"]["measured"] > 10
    assert last["noise"]["scale"] > 0
    assert last["range"] == {"initial": 32, "most": 64, "fixed": None, "per_worker": None}
    assert last["remaining"]["samples"] == 0
    assert fitted(last) is not None, "the server's policies cannot read the model"
    explained = stretto("explain", str(run.folder.path), cwd=run.folder.path)
    assert explained.returncode == 0, explained.stderr
    assert "32: start" in explained.stdout
    assert "noise scale" in explained.stdout


SLOW = """
def trouble(step, x):
    time.sleep(0.06 if WORKER == "w1" else 0.015)
"""


def test_a_slow_worker_gets_fewer_slices_and_the_bits_do_not_change(launch: Launch, tmp_path: Path):
    expected = alone(tmp_path, script(epochs=4))
    run = launch(script(SLOW, epochs=4), "--workers", "2", name="slow")
    assert run.end() == 0, run.output()
    assert run.result["digest"] == expected
    assert balances(run), run.output()
    rosters = [one for one in run.records() if isinstance(one, RosterLine) and one.cause == "balance"]
    shares = {member.worker: member.slices[1] - member.slices[0] for member in rosters[0].members}
    assert shares["w0"] > shares["w1"]
    assert "w1" in run.events("straggler")[0].text


@pytest.mark.slow
def test_a_slow_worker_is_left_alone_if_that_is_asked_for(launch: Launch):
    run = launch(script(SLOW, epochs=2), "--workers", "2", "--stragglers", "ignore")
    assert run.end() == 0, run.output()
    assert not balances(run)
    assert not run.events("straggler")


@pytest.mark.slow
def test_a_very_slow_worker_is_replaced_when_its_successor_is_ready(launch: Launch, tmp_path: Path):
    very = """
    def trouble(step, x):
        time.sleep(0.12 if WORKER == "w2" else 0.004)
    """
    expected = alone(tmp_path, script(epochs=12))
    run = launch(script(very, epochs=12), "--workers", "3", "--stragglers", "replace")
    assert run.end() == 0, run.output()
    assert run.result["digest"] == expected
    gone = [one for one in run.records() if isinstance(one, Switch) and "w2" in one.left]
    assert gone, run.output()
    assert gone[0].joined, "it left before its successor was there"
    assert all(one.workers >= 3 for one in run.commits() if one.step > 0)


def test_a_job_that_scales_well_grows_by_itself_and_says_why(launch: Launch):
    run = launch(script(epochs=16, pause_s=0.03), "--workers", "1:4", "--autoscale", "efficiency=0.5")
    run.until(lambda: [one for one in run.commits() if one.workers >= 2])
    run.ask("stop")
    run.end()
    told = [one.text for one in run.events("autoscale")]
    assert "1 to 2 workers: trying 2 workers" in told


@pytest.mark.slow
def test_a_job_that_scales_badly_goes_back_by_itself(launch: Launch):
    serial = """
    lock = open(os.path.join(os.environ["STRETTO_RUN"], "lock"), "w")
    import fcntl
    def trouble(step, x):
        fcntl.flock(lock, fcntl.LOCK_EX)
        time.sleep(0.02)
        fcntl.flock(lock, fcntl.LOCK_UN)
    """
    run = launch(script(serial, epochs=16), "--workers", "1:2", "--autoscale", "efficiency=0.5")
    run.until(lambda: [one for one in run.events("autoscale") if "back to 1 worker: efficiency of 1 to 2" in one.text])
    run.ask("stop")
    run.end()


def test_a_step_with_a_nan_is_skipped_and_counted(launch: Launch, tmp_path: Path):
    text = script(rule="stretto.AdaScale()", epochs=2, nan=5)
    expected = alone(tmp_path, text)
    run = launch(text, "--workers", "2")
    assert run.end() == 0, run.output()
    assert run.result["digest"] == expected
    assert "step 5 was not applied" in run.events("skipped")[0].text
    losses = [commit.metrics["loss"] for commit in run.commits()]
    assert [step for step, loss in enumerate(losses) if not math.isfinite(loss)] == [5], "one step of NaN reached the others"
    assert max(losses[-5:]) < min(losses[:5]), "nothing is learnt any more"
    last = [one for one in run.records() if isinstance(one, JournalReport) and one.of == "job"][-1].metrics
    assert (last["skipped"], last["progress"]) == (1, len(run.commits()) - 1)
    # The control: without a rule nothing guards the optimizer, and everything after step 5 is NaN.
    plain = launch(script(epochs=2, nan=5), "--workers", "2", name="plain")
    assert plain.end() == 0, plain.output()
    assert str(plain.commits()[-1].metrics["loss"]) == "nan"


@pytest.mark.slow
def test_a_shared_grad_scaler_does_not_show_in_the_noise_scale(tmp_path: Path):
    plain = script(rule="stretto.AdaScale(reference=16)", epochs=2) + "print(job._session.batches.noise.pair())\n"
    scaled = plain.replace("job.share(", 'scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)\njob.share(scaler=scaler, ')
    scaled = scaled.replace("loss.backward()", "scaler.scale(loss).backward()")
    scaled = scaled.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    found = []
    for text in (plain, scaled):
        (tmp_path / "train.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=environment(),
            text=True,
            capture_output=True,
            timeout=GUARD_S,
            check=True,
        )
        found.append(json.loads(done.stdout.splitlines()[-1].replace("(", "[").replace(")", "]")))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--autoscale", "fast"), "--autoscale 'fast' is not understood"),
        (("--autoscale", "utility"), "needs --price and --worth"),
        (("--stragglers", "shoot"), "not one of rebalance, replace, ignore"),
        (("--price", "3"), "go with --autoscale utility"),
        (("--replay", "nothing"), "there is no run 'nothing'"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused_before_anything_starts(launch: Launch, flags: tuple[str, ...], words: str):
    run = launch(script(), "--workers", "1:4", *flags)
    assert run.end() == 2
    assert words in run.output()
    assert "Traceback" not in run.output()
    assert not run.folder.path.exists()


def test_a_policy_that_cannot_work_fails_the_job_without_a_traceback(launch: Launch):
    run = launch(script(policy="stretto.Adaptive(start=64, at_most=32)"), "--workers", "2")
    assert run.end() == 1
    assert "at_most=32 is below start=64: raise at_most= or lower start=" in run.output()
    assert "Traceback" not in run.output()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "optimizer=optimizer, lr_rule=None",
            "lr_rule=stretto.AdaScale()",
            "lr_rule=AdaScale(reference=None) follows the gradients of an optimizer and none is shared",
        ),
        ("lr_rule=None)", "lr_rule=stretto.AdaScale()); job.share(lr_rule=stretto.LinearScale())", "a job has one rule"),
        ("lr_rule=None", "lr_rule=stretto.AdaScale", "write stretto.AdaScale() with brackets"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_by_the_job(tmp_path: Path, old: str, new: str, words: str):
    text = script()
    assert old in text
    path = tmp_path / "train.py"
    path.write_text(text.replace(old, new))
    done = subprocess.run([sys.executable, str(path)], env=environment(), text=True, capture_output=True, timeout=GUARD_S)
    assert done.returncode == 1
    assert words in done.stderr


TIGHT = """
import resource
def limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (6 << 30), hard))
def trouble(step, x):
    if step == 3: limit()
    if step >= 3: torch.empty(len(x) << 30, dtype=torch.uint8)
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_step_that_does_not_fit_into_memory_is_computed_again_in_parts(launch: Launch, workers: str):
    run = launch(script(TIGHT, policy="64", epochs=2), "--workers", workers, name="tight")
    assert run.end() == 0, run.output()
    assert run.result["restarts"] == 0
    assert "out of memory in step 3 with 8 samples at a time" in run.events("memory")[0].text
    assert [one.parts for one in run.commits()] == [1] * 3 + [2] * 13
    assert audit(run.records()).holds
    again = launch(script(policy="64", epochs=2), "--workers", "3", "--replay", "tight", name="again")
    assert again.end() == 0, again.output()
    assert again.result["digest"] == run.result["digest"]


@pytest.mark.slow
def test_a_run_that_was_out_of_memory_is_replayed_to_its_digest(launch: Launch):
    text = script(TIGHT, policy="stretto.Adaptive(start=64, at_most=64)", rule="stretto.AdaScale()", epochs=1)
    run = launch(text, "--workers", "1", name="first")
    assert run.end() == 0, run.output()
    assert run.events("memory")
    again = launch(text, "--workers", "2", "--replay", "first", name="again")
    assert again.end() == 0, again.output()
    assert not again.events("memory"), "the plan has the parts, so there is nothing to run out of"


def test_a_sample_that_does_not_fit_by_itself_fails_the_job(launch: Launch):
    run = launch(
        script(
            """
        def trouble(step, x):
            if step == 3: raise torch.OutOfMemoryError("no room for a single sample")
    """,
            policy="16",
        ),
        "--workers",
        "1",
        "--max-restarts",
        "1",
    )
    assert run.end() == 1
    assert "no room for a single sample" in run.output()
