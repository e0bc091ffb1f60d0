"""What a script may say to job.loader: DataLoader's words work or are refused by name, and so are datasets."""

from __future__ import annotations

import collections
import inspect
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import stretto
from stretto.core.errors import ScriptError
from stretto.train.data.loader_arguments import KNOWN, fitting
from stretto.train.job import Job
from tests.train.lone_job import lone_job

X = torch.arange(64.0).reshape(64, 1)
DATA = TensorDataset(X)


@pytest.fixture
def job() -> Job:
    """A job under plain python, without being this process's one."""
    return lone_job(seed=3)


def refusal(job: Job, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ScriptError) as caught:
        job.loader(*args, **kwargs)
    return str(caught.value)


def samples(job: Job, dataset: Any, **kwargs: Any) -> list[Any]:
    return [slice_ for step in job.loader(dataset, 16, train=False, **kwargs) for slice_ in step]


def test_the_batch_size_may_come_by_place_and_all_of_data_loaders_attributes_are_there(job: Job) -> None:
    loader = job.loader(DATA, 16, num_workers=0)
    assert loader.dataset is DATA
    assert (loader.batch_size, loader.num_workers, loader.drop_last, len(loader)) == (16, 0, True, 4)
    assert loader.collate_fn is torch.utils.data.default_collate
    assert loader.reduction == "mean"
    assert "shuffle=True" in refusal(job, DATA, 16, True)
    assert job.loader(DATA, np.int64(16)).batch_size == 16
    with pytest.raises(AttributeError, match="leave set_epoch out"):
        loader.sampler.set_epoch(1)
    assert not hasattr(loader, "nonsense")


@pytest.mark.parametrize(
    ("said", "tail"),
    [({"drop_last": True}, "drop"), ({"drop_last": False}, "keep"), ({}, "drop"), ({"drop_last": True, "tail": "drop"}, "drop")],
)
def test_drop_last_is_the_tail(job: Job, said: dict[str, Any], tail: str) -> None:
    loader = job.loader(TensorDataset(X[:40]), 16, **said)
    assert loader.tail == tail
    assert len(loader) == (2 if tail == "drop" else 3)
    assert "give only one" in refusal(job, DATA, 16, drop_last=True, tail="keep")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"sampler": SubsetRandomSampler([1, 2])}, ["sampler=SubsetRandomSampler", "Subset(dataset, indices)"]),
        ({"sampler": SequentialSampler(X)}, ["shuffle=False"]),
        ({"sampler": WeightedRandomSampler([1.0], 1)}, ["inside the loss"]),
        ({"sampler": DistributedSampler(DATA, num_replicas=1, rank=0)}, ["leave it out", "set_epoch"]),
        ({"sampler": [3, 1, 2]}, ["sampler=list", "later version", "shuffle=", "Subset"]),
        ({"batch_sampler": BatchSampler(SequentialSampler(X), 4, False)}, ["batch_sampler=BatchSampler", "Subset"]),
        ({"generator": torch.Generator()}, ["generator=", "stretto.join(seed=…)"]),
        ({"in_order": False}, ["in_order=False", "leave it out"]),
        ({"pin_memory_device": "cuda"}, ["pin_memory_device='cuda'", "pin_memory=True"]),
        ({"persistent_workers": True}, ["persistent_workers=True", "num_workers=0"]),
        ({"prefetch_factor": 4}, ["prefetch_factor=4", "num_workers=0"]),
        ({"timeout": 5}, ["timeout=5", "num_workers=0"]),
        ({"multiprocessing_context": "spawn"}, ["multiprocessing_context='spawn'", "num_workers=0"]),
        ({"multiprocessing_context": "thread", "num_workers": 1}, ["'thread'", "fork"]),
        ({"prefetch_factor": 0, "num_workers": 1}, ["prefetch_factor=0", "at least 1"]),
        ({"timeout": -1, "num_workers": 1}, ["timeout=-1"]),
        ({"num_workers": -1}, ["num_workers=-1", "at least 0"]),
        ({"num_workers": 1.5}, ["num_workers=1.5", "whole number"]),
        ({"num_workers": None}, ["num_workers=None"]),
        ({"worker_init_fn": 3}, ["worker_init_fn=3", "function"]),
        ({"collate_fn": "stack"}, ["collate_fn='stack'", "function"]),
        ({"shuffle": "no"}, ["shuffle='no'", "True or False"]),
        ({"drop_last": "yes"}, ["drop_last='yes'"]),
        ({"train": "val"}, ["train='val'"]),
        ({"reduction": "none"}, ["reduction='none'", "'mean'", "'sum'"]),
        ({"num_worker": 2}, ["num_worker=", "did you mean num_workers=?"]),
        ({"workers": 2}, ["did you mean num_workers=?"]),
        ({"zzz": 2}, ["zzz=", "it knows batch_size"]),
    ],
)
def test_every_word_of_data_loader_works_or_is_refused_by_name(job: Job, said: dict[str, Any], words: list[str]) -> None:
    text = refusal(job, DATA, 16, **said)
    for word in words:
        assert word in text


def test_data_loaders_own_defaults_are_always_taken(job: Job) -> None:
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    defaults = {name: one.default for name, one in theirs.items() if name not in ("self", "dataset", "batch_size")}
    assert job.loader(DATA, 16, **defaults).tail == "keep"


def test_help_has_a_line_for_every_argument() -> None:
    text = inspect.getdoc(stretto.Job.loader) or ""
    taken = {
        name
        for name, one in inspect.signature(stretto.Job.loader).parameters.items()
        if one.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    } - {"self"}
    assert taken == set(KNOWN)
    assert [name for name in taken if f"\n{name}: " not in text] == []


@pytest.mark.parametrize(
    ("batch", "slices", "words"),
    [
        (20, None, "slices=8 equal parts: use slices=4, or batch_size=16 or 24"),
        (20, 8, "use slices=4, or batch_size=16 or 24"),
        (18, None, "use slices=6, or batch_size=16 or 24"),
        (13, None, "use batch_size=8 or 16"),
        (4, None, "use slices=4, or batch_size=8 or more"),
        (None, None, "collate_fn=lambda items: items[0]"),
        (0, None, "batch_size=0"),
        (16.0, None, "batch_size=16.0 is a float"),
        (16, 2.5, "slices=2.5"),
    ],
)
def test_a_batch_that_does_not_fit_gets_the_slices_and_the_batches_that_do(job: Job, batch: Any, slices: Any, words: str) -> None:
    assert words in refusal(job, DATA, batch, slices=slices)


def test_what_a_refusal_offers_is_taken(job: Job) -> None:
    assert job.loader(DATA, 20, slices=4).batch == 20
    for batch, slices in itertools.product(range(1, 100), range(1, 20)):
        assert batch % fitting(batch, slices) == 0
        assert fitting(batch, slices) <= slices


def test_another_number_of_slices_is_to_be_said_in_every_loader(job: Job) -> None:
    job.loader(DATA, 16, train=False)
    assert "use slices=4 in every job.loader(...), or batch_size=16 or 24" in refusal(job, DATA, 20)
    assert "write slices=4 in the earlier one" in refusal(job, DATA, 20, slices=4)


def test_items_that_are_batches_already_are_read_as_the_refusal_says(job: Job) -> None:
    loader = job.loader([torch.full((3,), k) for k in range(16)], 8, slices=8, train=False, collate_fn=lambda items: items[0])
    assert [slice_.tolist() for step in loader for slice_ in step] == [[k] * 3 for k in range(16)]


def test_a_sum_does_not_go_with_what_follows_the_noise_scale_of_a_mean(job: Job) -> None:
    assert job.loader(DATA, 16, reduction="sum").reduction == "sum"
    assert "reduction='sum' and batch_size=Adaptive" in refusal(job, DATA, stretto.Adaptive(start=16, at_most=32), reduction="sum")
    assert "reduction='sum' and batch_size=PerWorker" in refusal(job, DATA, stretto.PerWorker(16), reduction="sum")
    with pytest.raises(ScriptError, match=r"reduction='sum' and lr_rule=LinearScale"):
        job.share(lr_rule=stretto.LinearScale())


def test_a_sum_after_a_rule_is_refused_as_well(job: Job) -> None:
    job.share(lr_rule=stretto.LinearScale())
    assert "reduction='sum' and lr_rule=" in refusal(job, DATA, 16, reduction="sum")
    assert job.loader(DATA, 16).reduction == "mean"


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(range(64))


class Lengthless(Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> int:
        return index


class Table(Dataset):  # type: ignore[type-arg]
    """A split, with a shape as Hugging Face's have."""

    shape = (64, 1)


class DatasetDict(dict[str, Any]):
    """What Hugging Face's is."""


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (DatasetDict(train=Table(), test=Table()), ["a DatasetDict with the splits 'train', 'test'", "job.loader(data['train']"]),
        (collections.UserDict(validation=DATA), ["a UserDict", "data['validation']"]),
        ({"x": X, "y": X}, ["a dict of columns ('x', 'y')", "TensorDataset"]),
        ({}, ["a dict", "none"]),
        (Stream(), ["a Stream (an IterableDataset)", "__len__ and __getitem__"]),
        (type("IterableDataset", (Stream,), {})(), ["got an IterableDataset (it has no __len__), which"]),
        ((k for k in range(9)), ["a generator", "only once", "list(...)"]),
        (map(str, range(9)), ["a map", "only once"]),
        ({1, 2}, ["a set", "no __getitem__"]),
        (Lengthless(), ["a Lengthless", "no __len__"]),
        (torch.tensor(1.0), ["len()", "Tensor", "0-d"]),
        ("data/train", ["the string 'data/train'"]),
        (TensorDataset, ["the class TensorDataset", "TensorDataset(...)"]),
        (torch.utils.data.DataLoader(DATA), ["a DataLoader", "give it the dataset"]),
        ([], ["empty"]),
    ],
)
def test_what_cannot_be_read_by_number_is_refused_by_name(job: Job, dataset: Any, words: list[str]) -> None:
    text = refusal(job, dataset, 16)
    for word in words:
        assert word in text


def test_a_loader_is_no_dataset(job: Job) -> None:
    assert "a Loader" in refusal(job, job.loader(DATA, 16), 16)


@pytest.mark.parametrize(
    "dataset",
    [
        list(range(64)),
        np.arange(64),
        torch.arange(64),
        range(64),
        {k: k for k in range(64)},
        Subset(range(99), range(64)),  # type: ignore[arg-type]
        ConcatDataset([list(range(32)), list(range(32, 64))]),  # type: ignore[list-item]
    ],
    ids=lambda one: type(one).__name__,
)
def test_anything_with_a_length_and_numbers_is_a_dataset(job: Job, dataset: Any) -> None:
    assert torch.cat(samples(job, dataset)).tolist() == list(range(64))


class Growing(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.size = 64

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_that_has_grown_is_refused_at_the_next_sweep(job: Job) -> None:
    dataset = Growing()
    loader = job.loader(dataset, 16, train=False)
    for _ in range(2):
        assert sum(len(slice_) for step in loader for slice_ in step) == 64
    dataset.size = 80
    with pytest.raises(ScriptError, match=r"had 64 samples .* has 80 now.*new job\.loader"):
        iter(loader)
