"""Pauses in the journal against the workers' own clocks: each worker writes down when its script asks for a step and gets a slice.

One machine has one monotonic clock. The library reads it between two marks of the script, so the marks give bounds for every
pause that hold exactly, on a busy machine too.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import Launched

from stretto.core.journal import RosterLine, Switch

Launch = Callable[..., Launched]

TRAIN = """
import json, os, time
import torch
import stretto

marks = open(os.path.join(FOLDER, os.environ["STRETTO_WORKER"]), "a", buffering=1)
def mark(kind, step):
    marks.write(json.dumps([time.monotonic(), kind, step]) + chr(10))

job = stretto.join(seed=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.share(model=model, optimizer=optimizer)
data = job.loader(torch.utils.data.TensorDataset(torch.randn(128, 4)), batch_size=16)
for epoch in job.epochs(400):
    time.sleep(0.2)  # the script's own time between two epochs is no pause
    mark("ask", job.step)
    for step in data:
        for (x,) in step:
            mark("slice", step.index)
            model(x).square().mean().backward()
            time.sleep(0.004)
        optimizer.step()
        optimizer.zero_grad()
        mark("ask", step.index + 1)
    mark("left", job.step)
mark("ended", job.step)
"""


@dataclass(frozen=True, slots=True)
class Mark:
    t: float
    kind: str
    step: int


def read(path: Path) -> list[Mark]:
    lines = path.read_text().split("\n")[:-1]
    return [Mark(*json.loads(line)) for line in lines]


def bounds_ms(marks: list[Mark], step: int) -> tuple[float, float] | None:
    """The least and the most that the pause before the end of this step can have been, as this worker saw it; None if it was killed
    before that end."""
    if not [one for one in marks if one.step > step and one.kind == "slice"]:
        return None
    asked = next(k for k, one in enumerate(marks) if one.kind == "ask" and one.step == step)
    ended = next(k for k, one in enumerate(marks) if one.kind == "ask" and one.step == step + 1)
    left = [k for k in range(asked, ended) if marks[k].kind == "left"]
    least = marks[ended].t - marks[asked + 1].t - sum(marks[k + 2].t - marks[k - 1].t for k in left)
    most = marks[ended + 1].t - marks[asked].t - sum(marks[k + 1].t - marks[k].t for k in left)
    return least * 1e3, most * 1e3


def check(run: Launched, folder: Path) -> list[Switch]:
    """Every pause in the journal is what the workers that stayed have seen."""
    records = run.records()
    members = {one.number: [member.worker for member in one.members] for one in records if isinstance(one, RosterLine)}
    found = [one for one in records if isinstance(one, Switch) and one.cause != "start" and one.pause_ms is not None]
    for one in found:
        seen = [bounds_ms(read(folder / worker), one.step) for worker in members[one.number] if worker not in one.joined]
        least, most = max(low for low, _ in filter(None, seen)), max(high for _, high in filter(None, seen))
        assert least - 0.001 <= one.pause_ms <= most + 0.001, (one, seen)
        assert one.switch_ms <= one.pause_ms
    return found


def start(launch: Launch, folder: Path) -> Launched:
    folder.mkdir()
    return launch(TRAIN.replace("FOLDER", repr(str(folder))), "--workers", "1:4", "--start", "2", "--max-restarts", "50")


def steps(run: Launched, count: int) -> None:
    run.until_step(run.commits()[-1].step + count)


def test_a_survivor_that_came_later_does_not_count_from_a_death_before_its_time(launch: Launch, tmp_path: Path) -> None:
    run = start(launch, tmp_path / "marks")
    run.until_step(3)
    for victim in ("w1", "w0"):
        os.kill(run.pids()[victim], signal.SIGKILL)
        run.until(lambda victim=victim: [one for one in run.events("died") if one.worker == victim])
        run.until_workers(2)
        steps(run, 12)
    run.ask("stop")
    run.end()
    assert [one.cause for one in check(run, tmp_path / "marks")].count("rescue") == 2, run.output()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(int(os.environ.get("STRETTO_CHAOS_RUNS", "3"))))
def test_every_pause_of_a_random_schedule_is_what_the_workers_saw(launch: Launch, tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    run = start(launch, tmp_path / "marks")
    run.until_step(3)
    for _ in range(8):
        status = run.until_workers(run.ask("status")["wanted"])
        if status["members"] > 1 and choice.random() < 0.5:
            victim = choice.choice([one["worker"] for one in status["workers"] if one["pid"]])
            os.kill(run.pids()[victim], signal.SIGKILL)
            run.until(lambda victim=victim: [one for one in run.events("died") if one.worker == victim])
        else:
            run.ask("scale", workers=choice.randint(1, 4))
        steps(run, choice.randint(0, 6))
    run.until_workers(run.ask("status")["wanted"])
    steps(run, 3)
    run.ask("stop")
    run.end()
    assert len(check(run, tmp_path / "marks")) >= 3, run.output()
