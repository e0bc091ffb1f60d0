"""Process groups that are built while others work, and taken down while operations are pending. Real processes, real sockets."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest
import torch

from stretto.core.errors import Broken
from stretto.core.roster import Member, Roster
from stretto.core.slices import Span, cover, deal, split
from stretto.train.reduce.process_group import ProcessGroup, Rendezvous
from stretto.train.reduce.tree_allreduce import TreeAllreduce

torch.set_num_threads(1)


def leaf(k: int, length: int) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(k))


def tree(node: Span, length: int) -> torch.Tensor:
    if len(node) == 1:
        return leaf(node.low, length)
    left, right = split(node)
    return tree(left, length).add_(tree(right, length))


def member(rank: int, pipe: Connection, act: Callable[..., object], args: tuple[object, ...]) -> None:
    rendezvous = Rendezvous("127.0.0.1")
    pipe.send(rendezvous.address)
    roster = Roster.from_dict(pipe.recv())
    group = ProcessGroup(roster, f"w{rank}", rendezvous)
    pipe.send(act(group, *args))
    pipe.recv()
    os._exit(0)


class Members:
    """Processes that form one group and do one thing each."""

    def __init__(
        self, count: int, act: Callable[..., object], *args: object, slices: int = 8, shares: tuple[Span, ...] | None = None
    ) -> None:
        context = get_context("fork")
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=member, args=(rank, theirs, act, args), daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)
        shares = shares or deal(slices, count)
        members = tuple(Member(f"w{k}", "a", pipe.recv(), shares[k]) for k, pipe in enumerate(self.pipes))
        for pipe in self.pipes:
            pipe.send(Roster(1, members).to_dict())

    def answers(self) -> list[object]:
        found = []
        for pipe in self.pipes:
            assert pipe.poll(100), "a member hangs"
            found.append(pipe.recv())
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def total(group: ProcessGroup, slices: int, length: int) -> bytes:
    exchange = TreeAllreduce(group, slices)
    parts = {node: tree(node, length) for node in cover(slices, exchange.shares[group.rank])}
    out = exchange.sum(parts, finish=lambda segment: segment.mul_(0.125))
    return out.numpy().tobytes()


@pytest.mark.parametrize("length", [1, 63, 1000, 100_003])
@pytest.mark.parametrize(("slices", "workers"), [(8, 2), (8, 3), (8, 4), (8, 5), (6, 2), (7, 4), (16, 4)])
def test_every_roster_sums_to_the_same_bits(slices, workers, length):
    members = Members(workers, total, slices, length, slices=slices)
    expected = tree(Span(0, slices), length).mul_(0.125).numpy().tobytes()
    assert members.answers() == [expected] * workers
    members.end()


def test_a_pair_sums_long_vectors_to_the_same_bits():
    members = Members(2, total, 8, 2_500_001)
    expected = tree(Span(0, 8), 2_500_001).mul_(0.125).numpy().tobytes()
    assert members.answers() == [expected] * 2
    members.end()


def test_shares_that_are_not_aligned_sum_to_the_same_bits():
    members = Members(3, total, 8, 501, shares=(Span(0, 1), Span(1, 7), Span(7, 8)))
    expected = tree(Span(0, 8), 501).mul_(0.125).numpy().tobytes()
    assert members.answers() == [expected] * 3
    members.end()


def tell(group: ProcessGroup, size: int) -> list[int]:
    return [len(text) for text in TreeAllreduce(group, 8).all_gather(bytes(size * (group.rank + 1)))]


@pytest.mark.parametrize("size", [0, 10, 2040, 5000])
def test_messages_of_any_size_reach_everybody(size):
    members = Members(3, tell, size)
    assert members.answers() == [[size, 2 * size, 3 * size]] * 3
    members.end()


def wait_for_the_dead(group: ProcessGroup) -> str:
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.receive(torch.empty(8), 1)()
    except Broken:
        return "broken"
    return "received"


def test_a_killed_peer_is_noticed():
    members = Members(2, wait_for_the_dead)
    assert members.pipes[0].poll(60)
    assert members.pipes[0].recv() == "broken"
    members.end()


def abort_while_waiting(group: ProcessGroup) -> str:
    threading.Thread(target=lambda: (time.sleep(0.2), group.abort())).start()
    try:
        group.receive(torch.empty(8), 1 - group.rank)()
    except Broken:
        try:
            group.send(torch.empty(8), 1 - group.rank)
        except Broken:
            return "aborted"
    return "received"


def test_an_aborted_group_fails_what_is_pending_and_what_comes():
    members = Members(2, abort_while_waiting)
    assert members.answers() == ["aborted"] * 2
    members.end()


def test_a_group_that_nobody_wants_any_more_is_given_up():
    rendezvous = Rendezvous("127.0.0.1")
    shares = deal(8, 2)
    roster = Roster(1, (Member("w0", "a", rendezvous.address, shares[0]), Member("w1", "a", ("127.0.0.1", 1), shares[1])))
    asked = iter([True, True, False])
    with pytest.raises(Broken, match="given up"):
        ProcessGroup(roster, "w0", rendezvous, wanted=lambda: next(asked))
