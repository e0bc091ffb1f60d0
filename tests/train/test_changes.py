"""What a script changes in its dataset is the same on every worker, or the script is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from launching import GUARD_S, environment
from torch.utils.data import ConcatDataset, Dataset, Subset

from stretto.train.data.changes import Changes, plain_attributes


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
    changes = Changes(data)
    assert changes.begin() == {}
    data[3]
    changes.end()
    assert changes.begin() == {}, "a counter of reads is the worker's own"
    data.level = 2
    data.weights[1] = 3.0
    data.transform = int
    data.new = {"f": divmod, "n": 1}  # type: ignore[attr-defined]
    assert changes.begin() == {"dataset.level": "2", "dataset.transform": "int", "dataset.weights": "[1.0, 3.0]",
                               "dataset.new": "{'f': divmod, 'n': 1}"}
    data.level = 0
    assert "dataset.level" not in changes.begin()


def test_datasets_inside_datasets_are_seen() -> None:
    inner = Data()
    changes = Changes(ConcatDataset([Subset(inner, [1, 2]), Data()]))
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


@pytest.mark.parametrize(("change", "processes"), [("dataset.level += 1", 0), ("dataset.level = epoch + 1", 1)])
def test_a_worker_whose_dataset_is_another_one_is_refused_and_one_whose_is_the_same_joins(
    launch: Any, tmp_path: Any, change: str, processes: int
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
    (tmp_path / "plain.py").write_text(text.replace("PAUSE", "0").replace("WORKERS", "0"))
    plain = subprocess.run([sys.executable, str(tmp_path / "plain.py")], env=environment(), text=True, capture_output=True,
                           timeout=GUARD_S, check=True)
    assert plain.stdout.split()[-1] in run.output()
