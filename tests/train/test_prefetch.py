"""Processes that read ahead see the dataset as those of a DataLoader do, and leave nothing behind."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from stretto.core.errors import ScriptError
from stretto.train.data.loader import Loader
from stretto.train.data.loader_arguments import Prefetch
from stretto.train.data.prefetch import Prefetcher
from stretto.train.data.sample_reader import SliceRequest, Source
from stretto.train.job import Job
from tests.train.lone_job import lone_job


class Staged(Dataset):  # type: ignore[type-arg]
    """Samples that follow what the script sets; knows which process reads."""

    def __init__(self, size: int = 32) -> None:
        self.size = size
        self.stage = 0
        self.transform: Any = None
        self.opened = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        value = self.transform(index) if self.transform else index
        return torch.tensor([value, self.stage, self.opened, os.getpid()])


@pytest.fixture
def job() -> Iterator[Job]:
    with lone_job(seed=3) as job:
        yield job


def sweep(loader: Loader) -> torch.Tensor:
    return torch.cat([slice_ for step in loader for slice_ in step])


def test_processes_see_what_the_script_changes_between_sweeps_as_those_of_a_data_loader_do(job: Job) -> None:
    dataset = Staged()
    theirs = DataLoader(dataset, batch_size=16, num_workers=2)
    ours = job.loader(dataset, 16, train=False, num_workers=2)
    for stage in range(3):
        dataset.stage = stage
        if stage == 2:
            dataset.transform = functools.partial(int.__mul__, 2)
        assert torch.equal(torch.cat(list(theirs))[:, :3], sweep(ours)[:, :3])


def test_each_sweep_has_processes_of_its_own_unless_they_are_to_stay(job: Job) -> None:
    anew = job.loader(Staged(), 16, train=False, num_workers=1)
    stay = job.loader(Staged(), 16, train=False, num_workers=1, persistent_workers=True)
    first, second = (set(sweep(anew)[:, 3].tolist()) for _ in range(2))
    assert first
    assert not first & second
    assert os.getpid() not in first
    first, second = (set(sweep(stay)[:, 3].tolist()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_change_that_processes_which_stay_cannot_see_is_refused(job: Job, wrapped: bool) -> None:
    dataset = Staged()
    loader = job.loader(Subset(dataset, range(32)) if wrapped else dataset, 16, train=False, num_workers=1, persistent_workers=True)
    dataset.stage = 1  # before the first sweep: they begin with it
    assert sweep(loader)[:, 1].tolist() == [1] * 32
    dataset.stage = 2
    name = "dataset.dataset.stage" if wrapped else "dataset.stage"
    with pytest.raises(ScriptError, match=rf"{name} was 1 .* is 2 now.*Leave persistent_workers=True out"):
        sweep(loader)


def test_a_change_in_the_middle_of_a_sweep_is_refused(job: Job) -> None:
    dataset = Staged()
    steps = iter(job.loader(dataset, 16, train=False, num_workers=1))
    list(next(steps))
    dataset.transform = abs
    step = next(steps)
    with pytest.raises(ScriptError, match=r"dataset.transform was None .* is abs now.*between two sweeps"):
        list(step)


def test_nothing_is_read_beyond_the_end_of_a_sweep(job: Job, tmp_path: Any) -> None:
    def read(index: int) -> int:
        with open(tmp_path / "read", "a", encoding="ascii") as file:
            file.write(f"{index} ")
        return index

    dataset = Staged()
    dataset.transform = read
    loader = job.loader(dataset, 16, train=False, num_workers=2, prefetch_factor=4)
    sweep(loader)
    once = (tmp_path / "read").read_text().split()
    assert {once.count(str(k)) for k in range(32)} <= {1, 2}, "a slice's first sample is read twice by each process, once"
    (tmp_path / "read").write_text("")
    for _ in range(2):
        sweep(loader)
    assert sorted((tmp_path / "read").read_text().split(), key=int) == [str(k) for k in range(32) for _ in range(2)]


def _open(number: int, *, by: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.opened = by + number  # type: ignore[attr-defined]


def test_worker_init_fn_finds_its_dataset_and_its_number(job: Job) -> None:
    loader = job.loader(Staged(), 16, train=False, num_workers=1, worker_init_fn=functools.partial(_open, by=7))
    assert sweep(loader)[:, 2].tolist() == [7] * 32


def test_processes_may_be_spawned(job: Job) -> None:
    loader = job.loader(Staged(), 16, train=False, num_workers=1, multiprocessing_context="spawn", timeout=300)
    assert sweep(loader)[:, 0].tolist() == list(range(32))


def _stuck(index: int) -> int:
    if get_worker_info() is not None and not index:
        time.sleep(1)
    return index


def test_a_slice_that_does_not_come_in_time_is_an_error(job: Job) -> None:
    dataset = Staged()
    dataset.transform = _stuck
    step = next(steps := iter(job.loader(dataset, 16, train=False, num_workers=1, timeout=0.2)))
    with pytest.raises(RuntimeError, match="timed out"):
        list(step)
    del steps


def test_sweeps_that_end_or_are_left_leave_no_process_and_no_file_behind(job: Job) -> None:
    loader = job.loader(Staged(), 16, train=False, num_workers=2)

    def left() -> tuple[int, int]:
        gc.collect()
        return len(multiprocessing.active_children()), len(os.listdir("/proc/self/fd"))

    sweep(loader)
    before = left()
    assert before[0] == 0
    for k in range(20):
        for step in loader:
            for _ in step:
                pass
            if k % 2:
                break
    after = left()
    assert after[0] == 0
    assert after[1] < before[1] + 10, "a file for every other sweep is a leak; a slice that is still held is not"


def test_slices_are_had_again_after_all_of_a_sweep_were_fetched() -> None:
    """The roster breaks in a sweep's last step: this worker needs slices again, and others that it never had."""
    source = Source(Staged(), seed=1, shuffle=True, collate=None)
    sweep_of = [SliceRequest(0, 0, k, 4 * k, 4 * k + 4) for k in range(8)]
    ahead = Prefetcher(source, Prefetch(workers=2))
    ahead.begin()
    for low, high in ((0, 4), (2, 4), (2, 8), (7, 8)):
        ahead.expect(iter(sweep_of[low:high]))
        for wanted in sweep_of[low:high]:
            assert torch.equal(ahead.get(wanted)[:, :3], source[wanted][:, :3])
    ahead.end()
    assert multiprocessing.active_children() == []
