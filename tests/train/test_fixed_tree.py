"""The fixed tree: the order of every sum depends on the number of slices alone."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.slices import Span, cover, deal, split, weigh
from stretto.train.reduce.accumulation import CHUNK, Flat, sum_schedule
from stretto.train.reduce.tree_allreduce import aligned, segments

slices = st.integers(1, 40)


def reference(node: Span) -> str:
    """The tree's sum of a span, written out."""
    if len(node) == 1:
        return str(node.low)
    left, right = split(node)
    return f"({reference(left)}+{reference(right)})"


@st.composite
def shares(draw):
    n = draw(slices)
    low = draw(st.integers(0, n - 1))
    return n, Span(low, draw(st.integers(low + 1, n)))


@given(shares())
def test_a_program_adds_up_exactly_the_complete_subtrees_of_its_share(case):
    n, share = case
    done = sum_schedule(n, share)
    buffers: dict[int, str] = {}
    for move in done.ops:
        buffers[move.buffer] = str(move.slice) if move.first else f"({buffers[move.buffer]}+{move.slice})"
        for into, source in move.merges:
            buffers[into] = f"({buffers[into]}+{buffers[source]})"
    assert [move.slice for move in done.ops] == list(share)
    assert {node: buffers[buffer] for node, buffer in done.results.items()} == {node: reference(node) for node in cover(n, share)}


@given(slices)
def test_one_worker_needs_few_buffers(n):
    assert sum_schedule(n, Span(0, n)).buffers <= max(1, (n - 1).bit_length()) + 1


@given(shares())
def test_a_cover_has_every_leaf_of_the_share_once(case):
    n, share = case
    assert [leaf for node in cover(n, share) for leaf in node] == list(share)


@given(slices, st.data())
def test_shares_follow_each_other_and_have_every_slice(n, data):
    speeds = data.draw(st.lists(st.floats(0.05, 10), min_size=1, max_size=n))
    dealt = weigh(n, speeds)
    assert [leaf for share in dealt for leaf in share] == list(range(n))
    assert all(len(share) for share in dealt)


def test_a_worker_three_times_slower_gets_a_third():
    assert [len(share) for share in weigh(8, [1, 1, 1, 1 / 3])] == [3, 2, 2, 1]


@pytest.mark.parametrize(
    ("n", "workers", "expected"),
    [(8, 2, True), (8, 4, True), (8, 8, True), (8, 3, False), (6, 2, False), (16, 4, True)],
)
def test_powers_of_two_are_aligned_with_the_tree(n, workers, expected):
    assert aligned(n, deal(n, workers)) is expected


@given(st.integers(0, 5000), st.integers(1, 9))
def test_segments_cover_a_vector_without_gap(length, parts):
    cuts = segments(length, parts)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == length
    assert all(a[1] == b[0] for a, b in pairwise(cuts))


def test_adding_in_another_order_changes_the_bits():
    """The control: were the order of no consequence, none of this would be needed."""
    values = [torch.randn(10_000, generator=torch.Generator().manual_seed(k)) for k in range(8)]
    flat = Flat([values[0].shape], dtype=torch.float32, device=torch.device("cpu"))
    done = sum_schedule(8, Span(0, 8))
    flat.need(done.buffers)
    for move in done.ops:
        flat.add(move, 0, values[move.slice])
    (buffer,) = done.results.values()
    tree = flat.views[buffer][0]
    pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    assert torch.equal(tree, (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]))
    assert not torch.equal(tree, sum(values[1:], values[0]))


@settings(max_examples=40, deadline=None)
@given(shares(), st.integers(1, 3), st.data())
def test_keeping_the_first_of_two_changes_no_bit(case, sweeps, data):
    """Two slices added up at once, in pieces that stay in the cache, against a copy and an addition of the whole."""
    n, share = case
    length = (sweeps - 1) * CHUNK + data.draw(st.integers(1, 100))
    absent = data.draw(st.sets(st.sampled_from(list(share)), max_size=2))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    values = {k: torch.randn(length, generator=torch.Generator().manual_seed(k)).to(dtype) for k in share if k not in absent}
    done = sum_schedule(n, share)
    sums = []
    for keep in (True, False):
        flat = Flat([torch.Size([length])], dtype=torch.float32, device=torch.device("cpu"))
        flat.need(done.buffers)
        for move in done.ops:
            last = len(done.results) == 1 and move is done.ops[-1]
            flat.add(move, 0, values.get(move.slice), keep=keep, scale=0.3 if last and keep else None)
        if len(done.results) == 1 and not keep:
            flat.views[next(iter(done.results.values()))][0].mul_(0.3)
        sums.append({node: flat.views[buffer][0] for node, buffer in done.results.items()})
    kept, copied = sums
    assert all(torch.equal(kept[node], copied[node]) for node in copied)
