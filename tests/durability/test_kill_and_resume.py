"""Whole jobs that are killed, drained and resumed: `stretto run` and `stretto resume` as their users call them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import GUARD_S, Launched, environment, gone, stretto
from saving_script import SCRIPT, STEPS, alone, arguments

from stretto.agent.control_server import alive
from stretto.core.audit import audit
from stretto.core.journal import Checkpoint, Resume
from stretto.core.manifest import folder_name
from stretto.train.checkpoint.catalog import CheckpointEntry, entries, verify
from stretto.train.checkpoint.storage import LocalStorage

Launch = Callable[..., Launched]
LIVES = int(os.environ.get("STRETTO_LIVES", "2"))
"""How many kills of a whole job; `make test-durability` makes it 100."""
PAUSED = arguments(pause_s=0.25)
"""Slow enough that a kill which is decided on a checkpoint comes before the end, on a busy machine too."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return alone(tmp_path_factory.mktemp("reference"), args=arguments(pause_s=0.0)).digest


@pytest.fixture
def resume(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """`resume(run, "--workers", "3")`: goes on with a run that was launched before."""
    started: list[subprocess.Popen[str]] = []

    def go(run: Launched, *options: str, env: dict[str, str] | None = None) -> Launched:
        folder = run.folder
        with open(folder.path.parent / f"{folder.name}.out", "a") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "stretto.cli.main", "resume", "--runs", str(folder.path.parent), *options, folder.name],
                cwd=tmp_path,
                env=environment(env),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        return Launched(process, folder)

    yield go
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def begin(
    launch: Launch,
    tmp_path: Path,
    *options: str,
    every: str = "3",
    args: tuple[str, ...] = PAUSED,
    name: str = "job",
    env: dict[str, str] | None = None,
) -> Launched:
    return launch(
        SCRIPT,
        "--checkpoint",
        str(tmp_path / f"saved-{name}"),
        "--checkpoint-every",
        every,
        *options,
        args=args,
        name=name,
        env=env,
    )


def vault(tmp_path: Path, name: str = "job") -> LocalStorage:
    return LocalStorage(tmp_path / f"saved-{name}")


def complete(tmp_path: Path, name: str = "job") -> list[CheckpointEntry]:
    return [entry for entry in entries(vault(tmp_path, name)) if entry.complete and not entry.final]


def kill_everything(run: Launched) -> None:
    """The agent and all workers, at once, with SIGKILL."""
    try:
        pids = list(run.pids().values())
    except Exception:
        pids = []
    for pid in (run.process.pid, *pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    run.process.wait()
    deadline = time.monotonic() + GUARD_S
    while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def test_after_a_kill_of_everything_another_number_of_workers_ends_with_the_same_digest(
    launch: Launch, resume: Callable[..., Launched], tmp_path: Path, reference: str
) -> None:
    run = begin(launch, tmp_path, "--workers", "2")
    run.until(lambda: complete(tmp_path))
    kill_everything(run)
    assert not run.folder.result.exists()
    assert not alive(run.folder)
    away = tmp_path / "saved-job"
    away.rename(tmp_path / "unmounted")
    refused = stretto("resume", "--runs", str(run.folder.path.parent), "job", cwd=tmp_path)
    assert refused.returncode == 2 and f"there is no checkpoint in {away}" in refused.stderr and "--step 0" in refused.stderr
    (tmp_path / "unmounted").rename(away)
    again = resume(run, "--workers", "3")
    assert again.end() == 0, again.output()
    assert f"life 2 goes on from {away}" in again.output()
    assert again.result["digest"] == reference
    assert again.result["steps"] == STEPS
    resumed = [one for one in again.records() if isinstance(one, Resume)]
    assert len(resumed) == 1 and resumed[0].life == 2 and resumed[0].step >= 2
    found = audit(again.records())
    assert found.holds, found.findings
    listed = stretto("checkpoints", "--runs", str(run.folder.path.parent), "job", cwd=tmp_path)
    assert "complete" in listed.stdout and "final" in listed.stdout and str(STEPS) in listed.stdout
    refused = stretto("resume", "--runs", str(run.folder.path.parent), "job", cwd=tmp_path)
    assert refused.returncode == 2 and "has finished" in refused.stderr


@pytest.mark.slow
def test_random_kills_of_the_whole_job_with_saves_under_way(
    launch: Launch, resume: Callable[..., Launched], tmp_path: Path, reference: str
) -> None:
    """LIVES kills, spread over runs of up to ten lives each. Every run ends with the reference digest and passes its audit."""
    chance = random.Random(int(os.environ.get("STRETTO_SEED", "1")))
    left, number = LIVES, 0
    while left > 0:
        number += 1
        name = f"job{number}"
        run = begin(
            launch, tmp_path, "--workers", f"{chance.randint(1, 3)}", name=name, every=chance.choice(["1", "2", "5", "0.3s"])
        )
        for _ in range(min(left, chance.randint(1, 10))):
            before = len(run.commits())
            more = chance.randint(0, 6)
            run.until(lambda run=run, enough=before + more: len(run.commits()) > enough or run.process.poll() is not None)
            time.sleep(chance.random() * 0.2)
            if run.folder.result.exists() or run.process.poll() is not None:
                break
            kill_everything(run)
            left -= 1
            if run.folder.result.exists():
                break
            run = resume(run, "--workers", f"{chance.randint(1, 4)}")
        assert run.end() == 0, run.output()
        assert run.result["digest"] == reference, f"{name}: another digest after {run.records()[-1]}"
        found = audit(run.records())
        assert found.holds, found.findings


def test_when_everybody_dies_the_job_goes_on_by_itself_from_its_checkpoint(launch: Launch, tmp_path: Path, reference: str) -> None:
    run = begin(launch, tmp_path, "--workers", "1")
    run.until(lambda: complete(tmp_path))
    os.kill(run.pids()["w0"], signal.SIGKILL)
    assert run.end() == 0, run.output()
    assert run.result["digest"] == reference
    assert [one for one in run.records() if isinstance(one, Resume) and one.step > 0], "it began anew"
    assert audit(run.records()).holds


@pytest.mark.long
def test_without_a_checkpoint_the_death_of_everybody_is_the_end(launch: Launch) -> None:
    run = launch(SCRIPT, "--workers", "1", args=PAUSED)
    run.until_step(2)
    os.kill(run.pids()["w0"], signal.SIGKILL)
    assert run.end() == 1
    assert "every worker that held the state is gone" in run.output()


@pytest.mark.parametrize("notice", ["SIGTERM", pytest.param("drain", marks=pytest.mark.long)])
@pytest.mark.slow
def test_a_notice_to_the_last_agent_takes_a_checkpoint_of_the_very_step(
    launch: Launch, resume: Callable[..., Launched], tmp_path: Path, reference: str, notice: str
) -> None:
    run = begin(launch, tmp_path, "--workers", "2", every="1h")
    run.until_step(4)
    if notice == "SIGTERM":
        run.process.send_signal(signal.SIGTERM)
    else:
        done = stretto("drain", "--runs", str(run.folder.path.parent), "job", "--agent", "a0", cwd=tmp_path)
        assert done.returncode == 0 and "with a checkpoint" in done.stdout, done.stderr
    assert run.end() == 143, run.output()
    assert f"`stretto resume {run.folder.path}` to go on" in run.output()
    last = run.commits()[-1].step
    assert [entry.step for entry in complete(tmp_path)] == [last + 1], "not every committed step is in the checkpoint"
    again = resume(run)
    assert again.end() == 0, again.output()
    assert again.result["digest"] == reference
    resumed = [one for one in again.records() if isinstance(one, Resume)]
    assert [one.step for one in resumed] == [last]
    assert audit(again.records()).holds


@pytest.mark.parametrize("victim", [pytest.param("w0", marks=pytest.mark.long), "w1"])
@pytest.mark.slow
def test_a_worker_that_dies_in_a_save_costs_that_save_only(launch: Launch, tmp_path: Path, reference: str, victim: str) -> None:
    run = begin(launch, tmp_path, "--workers", "2", every="4", env={"STRETTO_FAILPOINT": f"save-synced:1:{victim}"})
    assert run.end() == 0, run.output()
    assert [one for one in run.events("died") if one.worker == victim], "the failpoint was never passed"
    assert run.result["digest"] == reference
    saved = [one for one in run.records() if isinstance(one, Checkpoint)]
    assert saved, "nothing was saved afterwards"
    for entry in complete(tmp_path):
        assert entry.manifest is not None
        verify(vault(tmp_path), entry.manifest)
    assert not [entry for entry in entries(vault(tmp_path)) if entry.manifest is None], "leftovers"


@pytest.mark.long
def test_a_damaged_checkpoint_is_refused_by_path_and_the_one_before_it_offered(
    launch: Launch, resume: Callable[..., Launched], tmp_path: Path, reference: str
) -> None:
    run = begin(launch, tmp_path, "--workers", "1", every="2")
    run.until(lambda: len(complete(tmp_path)) >= 2)
    kill_everything(run)
    before, last = complete(tmp_path)[-2:]
    assert last.manifest is not None
    shard = Path(last.path) / last.manifest.shards[0].file
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)
    refused = resume(run)
    assert refused.end() == 1
    told = refused.output()
    assert str(shard) in told and f"--step {before.step}" in told
    assert "error: the checkpoint" in told, "a name of a class stands before the message"
    for cut in (False, True):
        os.truncate(shard, len(data) - cut)
        exported = stretto("export", "--runs", str(run.folder.path.parent), "job", str(tmp_path / "out"), cwd=tmp_path)
        assert exported.returncode == 2 and str(shard) in exported.stderr and f"--step {before.step}" in exported.stderr
    again = resume(run, "--step", str(before.step))
    assert again.end() == 0, again.output()
    assert again.result["digest"] == reference
    assert audit(again.records()).holds
    assert (tmp_path / "saved-job" / folder_name(before.step)).exists() or complete(tmp_path)


@pytest.mark.long
def test_other_bits_that_were_allowed_are_in_the_result(launch: Launch, resume: Callable[..., Launched], tmp_path: Path) -> None:
    run = begin(launch, tmp_path, "--workers", "1")
    run.until(lambda: complete(tmp_path))
    kill_everything(run)
    asked = json.loads(run.folder.request.read_text())
    run.folder.request.write_text(json.dumps({**asked, "args": arguments(pause_s=0.0, seed=1)}))
    refused = resume(run)
    assert refused.end() == 1
    assert "seed is 0 in the checkpoint and 1 here" in refused.output() and "--allow-mixed" in refused.output()
    again = resume(run, "--allow-mixed")
    assert again.end() == 0, again.output()
    assert again.result["mixed"] is True
    assert [one for one in again.events("mixed") if "seed is 0" in one.text]


@pytest.mark.long
def test_a_worker_that_dies_in_the_last_save_does_not_cost_it(
    launch: Launch, resume: Callable[..., Launched], tmp_path: Path, reference: str
) -> None:
    run = begin(launch, tmp_path, "--workers", "2", every="1h", env={"STRETTO_FAILPOINT": "save-synced:1:w1"})
    run.until_step(4)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143, run.output()
    assert [entry.step for entry in complete(tmp_path)] == [run.commits()[-1].step + 1], run.output()
    again = resume(run)
    assert again.end() == 0, again.output()
    assert again.result["digest"] == reference


def test_a_stop_right_after_a_save_does_not_write_its_shards_again(launch: Launch, tmp_path: Path) -> None:
    """A complete checkpoint is never touched: a worker that died while writing its part again would spoil the last one."""
    held_out = (
        "held_out = job.loader(TensorDataset(inputs, targets), batch_size=16, slices=SLICES, train=False)\n"
        "for epoch in job.epochs(3):\n"
    )
    swept = (
        "    scheduler.step()\n    for step in held_out:\n        for x, y in step:\n"
        "            step.log(loss=F.cross_entropy(model(x), y))\n        time.sleep(0.8)\n"
    )
    script = SCRIPT.replace("for epoch in job.epochs(3):\n", held_out).replace("    scheduler.step()\n", swept)
    run = launch(
        script,
        "--checkpoint",
        str(tmp_path / "saved-job"),
        "--checkpoint-every",
        "8",
        "--workers",
        "2",
        args=arguments(pause_s=0.0),
        name="job",
    )
    (entry,) = run.until(lambda: complete(tmp_path))
    before = {path.name: path.stat().st_mtime_ns for path in Path(entry.path).glob("shard-*")}
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143, run.output()
    assert [one.step for one in complete(tmp_path)] == [entry.step] == [8], "it did not end at the boundary of that save"
    assert len(before) == 2
    assert {path.name: path.stat().st_mtime_ns for path in Path(entry.path).glob("shard-*")} == before


def test_saves_go_on_while_workers_come_and_go(launch: Launch, tmp_path: Path, reference: str) -> None:
    run = begin(launch, tmp_path, "--workers", "1:3", "--start", "2", "--keep", "30", every="1", args=arguments(pause_s=0.3))
    run.until_step(2)
    run.ask("scale", workers=3)
    run.until_workers(3)
    run.ask("scale", workers=1)
    assert run.end() == 0, run.output()
    assert run.result["digest"] == reference
    found = complete(tmp_path)
    writers = {len(entry.manifest.shards) for entry in found if entry.manifest is not None}
    assert {2, 3, 1} <= writers, writers
    for entry in found:
        assert entry.manifest is not None
        verify(vault(tmp_path), entry.manifest)
