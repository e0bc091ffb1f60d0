"""What a script changes in its dataset is the same on every worker, or the script is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from launching import GUARD_S, environment, gone, stretto
from torch.utils.data import ConcatDataset, Dataset, Subset

from stretto.train.data.dataset_changes import DatasetChanges, plain_attributes
from stretto.train.script_checks.source_analysis import changing


class Data(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.level = 0
        self.reads = 0
        self.transform: Any = abs
        self.weights = [1.0, 2.0]
        self.table = list(range(1000))

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index


def test_what_the_script_changes_is_told_and_what_reading_changes_is_not() -> None:
    data = Data()
    changes = DatasetChanges(data)
    assert changes.begin() == {}
    data[3]
    changes.end()
    assert changes.begin() == {}, "a counter of reads is the worker's own"
    data.level = 2
    data.weights[1] = 3.0
    data.transform = int
    data.new = {"f": divmod, "n": 1}  # type: ignore[attr-defined]
    assert changes.begin() == {
        "dataset.level": "2",
        "dataset.transform": "int",
        "dataset.weights": "[1.0, 3.0]",
        "dataset.new": "{'f': divmod, 'n': 1}",
    }
    data.level = 0
    assert "dataset.level" not in changes.begin()


def test_datasets_inside_datasets_are_seen() -> None:
    inner = Data()
    changes = DatasetChanges(ConcatDataset([Subset(inner, [1, 2]), Data()]))
    inner.level = 5
    assert changes.begin() == {"dataset.datasets[0].dataset.level": "5"}


def test_data_is_not_looked_at() -> None:
    assert "dataset.table" not in plain_attributes(Subset(Data(), range(10)))
    assert plain_attributes([1, 2]) == {}


SCRIPT = """
import sys, time, torch, stretto
class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.level, self.reads = 0, 0
        self.x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    def __len__(self):
        return 64
    def harder(self):
        self.level += 1
    def __getitem__(self, index):
        self.reads += 1
        return self.x[index] * (1 + self.level), self.x[index].sum()
job = stretto.join(seed=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
job.share(model=model, optimizer=optimizer)
dataset = Data()
data = job.loader(dataset, 16, num_workers=WORKERS)
for epoch in job.epochs(8):
    CHANGE
    for step in data:
        for x, y in step:
            torch.nn.functional.mse_loss(model(x).squeeze(1), y).backward()
            time.sleep(PAUSE if job.workers == 1 else 0)
        optimizer.step()
        optimizer.zero_grad()
print("digest", job.digest())
"""


@pytest.mark.parametrize(
    ("change", "processes"),
    [
        ("setattr(dataset, 'level', dataset.level + 1)", 0),
        pytest.param("dataset.level = epoch + 1", 1, marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_a_worker_whose_dataset_is_another_one_is_refused_and_one_whose_is_the_same_joins(
    launch: Any, tmp_path: Path, change: str, processes: int
) -> None:
    text = SCRIPT.replace("CHANGE", change)
    run = launch(text.replace("PAUSE", "0.1").replace("WORKERS", str(processes)), "--workers", "1:2", "--start", "1")
    run.until_step(5)
    run.ask("scale", workers=2)
    if "epoch" not in change:
        text = run.until_event("refused").text
        assert "what the script has changed in the dataset: dataset.level is" in text
        assert "Set it from the epoch" in text
        assert {one.workers for one in run.commits()} == {1}, "before a step was wrong"
        return
    assert run.end() == 0, run.output()
    assert {one.workers for one in run.commits()} == {1, 2}
    assert plain(text, tmp_path) in run.output()


def plain(text: str, folder: Path) -> str:
    """The digest under plain python."""
    path = folder / "plain.py"
    path.write_text(text.replace("PAUSE", "0").replace("WORKERS", "0"))
    done = subprocess.run(
        [sys.executable, str(path)], env=environment(), text=True, capture_output=True, timeout=GUARD_S, check=True
    )
    return done.stdout.split()[-1]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("dataset.level += 1", "`dataset.level` is 1 here and"),
        pytest.param("dataset.harder()", "`dataset.level` is 1 here and", marks=pytest.mark.long),
        pytest.param("dataset.level = epoch + 1", "", marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_a_dataset_that_is_another_one_after_a_resume_is_refused(launch: Any, tmp_path: Path, change: str, refusal: str) -> None:
    text = SCRIPT.replace("CHANGE", change)
    saving = ("--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "2")
    run = launch(text.replace("PAUSE", "0.02").replace("WORKERS", "0"), *saving)
    run.until_step(12)
    pids = [run.process.pid, *run.pids().values()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    run.process.wait()
    while not all(map(gone, pids)):
        time.sleep(0.02)
    done = stretto("resume", "--runs", str(run.folder.path.parent), "--quiet", "job", cwd=tmp_path)
    if refusal:
        assert done.returncode != 0
        assert refusal in done.stdout + done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        assert run.result["digest"] == plain(text, tmp_path)


def test_variables_that_change_a_dataset_are_found_in_the_source(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("""
for epoch in job.epochs(3):
    level += 1
    dataset.set_level(level)
    dataset.grown += 1
    dataset.epoch = epoch
    if epoch == 2:
        dataset.late = True
    for step in data:
        for x in step:
            total += x
""")
    assert dict(changing(str(path))) == {"dataset.grown": "dataset", "dataset.late": "dataset", "level": "dataset"}
