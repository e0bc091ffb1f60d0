"""Which samples a step has, and how they are read."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from stretto.train.data.loader_arguments import Prefetch
from stretto.train.data.permutation import Permutation
from stretto.train.data.prefetch import Prefetcher
from stretto.train.data.sample_reader import SliceRequest, Source, cut
from stretto.train.rng import mix


@given(st.integers(1, 3000), st.integers(0, 1 << 40), st.integers(0, 100))
def test_an_epoch_has_every_sample_once(n, seed, epoch):
    order = Permutation(n, seed=seed, epoch=epoch)(np.arange(n))
    assert sorted(order.tolist()) == list(range(n))


def test_epochs_and_seeds_have_their_own_orders():
    orders = {tuple(Permutation(100, seed=s, epoch=e)(np.arange(100)).tolist()) for s in range(3) for e in range(3)}
    assert len(orders) == 9


def test_an_order_looks_random():
    order = Permutation(10_000, seed=1, epoch=0)(np.arange(10_000))
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.03
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.03


def test_any_place_of_a_huge_epoch_is_found_without_memory():
    order = Permutation(10**15, seed=3, epoch=1)
    places = np.array([0, 10**14, 10**15 - 1])
    assert len(set(order(places).tolist())) == 3


@given(st.integers(0, 1000), st.integers(1, 500), st.integers(1, 64))
def test_slices_cut_a_step_into_nearly_equal_parts(first, count, n):
    parts = [cut(first, count, n, k) for k in range(n)]
    assert parts[0][0] == first
    assert parts[-1][1] == first + count
    sizes = [high - low for low, high in parts]
    assert max(sizes) - min(sizes) <= 1


class Noisy(Dataset):
    """Augments with every generator that people use."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        import random

        return torch.tensor([index, random.random(), float(np.random.rand()), float(torch.rand(()))], dtype=torch.float64)


def wanted(step: int, slice: int, epoch: int = 0) -> SliceRequest:
    low, high = cut(step * 16, 16, 4, slice)
    return SliceRequest(epoch, step * 16, slice, low, high)


def test_augmentation_belongs_to_the_sample_and_the_epoch():
    source = Source(Noisy(), seed=5, shuffle=True, collate=None)
    once = source[wanted(1, 2)]
    torch.rand(100)
    np.random.rand(7)
    assert torch.equal(once, source[wanted(1, 2)])
    assert not torch.equal(once[:, 1:], source[wanted(1, 2, epoch=1)][:, 1:])


def test_a_tensor_dataset_is_read_at_once_with_the_same_result():
    data = TensorDataset(torch.randn(64, 3), torch.arange(64))
    fast = Source(data, seed=1, shuffle=True, collate=None)
    slow = Source(data, seed=1, shuffle=True, collate=torch.utils.data.default_collate)
    assert fast.gathers
    assert not slow.gathers
    for a, b in zip(fast[wanted(2, 3)], slow[wanted(2, 3)], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("changes", [False, True])
def test_prefetching_gives_the_same_samples_and_survives_a_change_of_share(changes):
    source = Source(Noisy(), seed=5, shuffle=True, collate=None)
    ahead = Prefetcher(source, Prefetch(workers=2))

    def upcoming(low: int, high: int, step: int, slice: int):
        epoch = 0
        start = slice
        while True:
            for k in range(max(low, start), high):
                yield wanted(step, k, epoch)
            start, step = 0, step + 1
            if step == 4:
                epoch, step = epoch + 1, 0

    share = (0, 4)
    ahead.expect(upcoming(*share, 0, 0))
    for epoch in range(3):
        for step in range(4):
            if changes and (epoch, step) in ((0, 2), (1, 1), (2, 3)):
                share = {2: (2, 4), 1: (0, 1), 3: (1, 4)}[step]
                here = upcoming(*share, step, 0)
                if epoch:
                    here = (w for w in upcoming(*share, 0, 0) if (w.epoch, w.first) >= (epoch, step * 16))
                ahead.expect(here)
            for k in range(*share):
                assert torch.equal(ahead.get(wanted(step, k, epoch)), source[wanted(step, k, epoch)])
    ahead.close()


def test_mixing_changes_with_every_part():
    assert len({mix(a, b, c) for a in range(10) for b in range(10) for c in range(10)}) == 1000
