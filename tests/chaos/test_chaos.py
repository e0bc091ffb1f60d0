"""Random schedules of joins, leaves, kills and freezes on real processes: the digest is always the reference's, the audit passes.

`STRETTO_CHAOS_RUNS` says how many (6 by default), `STRETTO_CHAOS_SEED` where to begin: a failure names its seed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import environment, stretto

from stretto.core.errors import UsageError

ZOO = Path(__file__).parent.parent / "bits" / "zoo.py"
TEXT = ZOO.read_text()
ARGS = ("--kinds", "cnn,mlp", "--samples", "96", "--batch", "16", "--epochs", "5", "--pause", "0.01")
RUNS = int(os.environ.get("STRETTO_CHAOS_RUNS", "6"))
FIRST = int(os.environ.get("STRETTO_CHAOS_SEED", "0"))
FAILPOINTS = ("build", "bucket", "header", "told", "receive", "received", "send", "sent", "committed")


@pytest.fixture(scope="session")
def reference() -> str:
    done = subprocess.run(
        [sys.executable, str(ZOO), *ARGS, "--pause", "0"], capture_output=True, text=True, timeout=250, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("digest: ")[1].strip()


def strike(run, choice: random.Random, struck: set[int], *, saved: bool) -> str:
    """One thing that happens to a running job; what it was. Where nothing is saved, the last holder of the state is spared: nobody
    is struck before the agent has seen what became of those in `struck`."""
    try:
        status = run.ask("status")
        pids = {one["worker"]: one["pid"] for one in status["workers"] if one["pid"]}
        known = status["settled"] and status["members"] >= 2 and struck.isdisjoint(pids.values())
        if not pids or not (saved or known):
            run.ask("scale", workers=choice.randint(2, 6))
            return "spared"
        kind = choice.choices(["scale", "kill", "freeze", "blink"], [5, 4, 1, 1])[0]
        if kind == "scale":
            wanted = choice.randint(1, 6)
            run.ask("scale", workers=wanted)
            return f"scale {wanted}"
        worker = choice.choice(sorted(pids))
        os.kill(pids[worker], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        if kind != "blink":
            struck.add(pids[worker])
        else:
            time.sleep(choice.uniform(0.01, 0.3))
            os.kill(pids[worker], signal.SIGCONT)
        return f"{kind} {worker}"
    except (ProcessLookupError, UsageError):
        return "too late"


def hit_one_slice_twice(run) -> bool:
    """Two kills of different workers in one slice of one step, by chance: that is what a poison slice looks like, and the job has
    stopped, as promised, naming that slice."""
    blamed = re.match(r"slice (\d+) of step (\d+) .*is poison", run.result["error"] or "")
    if blamed is None:
        return False
    place = f"in slice {blamed[1]} of step {blamed[2]}"
    return len({one.worker for one in run.events("died", "frozen", "hung") if one.text.endswith(place)}) >= 2


def _saving(saved: bool, where: Path) -> list[str]:
    return ["--checkpoint", str(where / "saves"), "--checkpoint-every", "4"] if saved else []


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_a_random_schedule_ends_with_the_reference_digest(launch, reference, tmp_path, seed):
    choice = random.Random(seed)
    env = {}
    saved = choice.random() < 0.6
    if saved and choice.random() < 0.7:
        env["STRETTO_FAILPOINT"] = f"{choice.choice(FAILPOINTS)}:{choice.randint(1, 6)}:w{choice.randint(0, 3)}"
    start = choice.randint(1, 4)
    limits = ("--workers", "1:6", "--start", str(start), "--max-restarts", "100")
    run = launch(TEXT, *limits, *_saving(saved, tmp_path), args=ARGS, env=env)
    struck: set[int] = set()
    story = [f"seed {seed}", f"start {start}", f"saved {saved}", str(env)]
    run.until_step(1)
    for _ in range(choice.randint(2, 5)):
        time.sleep(choice.uniform(0, 0.6))
        if run.process.poll() is not None:
            break
        story.append(strike(run, choice, struck, saved=saved))
    code = run.end()
    audit = stretto("audit", str(run.folder.path), cwd=run.folder.path.parent)
    assert audit.returncode == 0, (story, audit.stdout + audit.stderr)
    if code != 0 and hit_one_slice_twice(run):
        return
    assert code == 0, (story, run.output())
    if run.result["digest"] != reference:
        raise AssertionError((story, run.output()))
