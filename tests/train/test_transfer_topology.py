"""The state crosses the network once a host, whoever has it and however many want it, and arrives whole."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.roster import Member, Roster
from stretto.core.slices import deal
from stretto.train.reduce.process_group import ProcessGroup
from stretto.train.sharing import transfer
from stretto.train.sharing.transfer import TransferTopology
from tests.train.test_process_group import Members

PIECES = 12


@st.composite
def rosters(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    hosts = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9))
    newcomers = draw(st.sets(st.integers(0, len(hosts) - 1), max_size=len(hosts) - 1))
    return hosts, sorted(newcomers)


@given(rosters())
def test_every_newcomer_gets_every_piece_once_and_each_host_gets_it_once(roster: tuple[list[str], list[int]]) -> None:
    hosts, newcomers = roster
    routes = TransferTopology.between(hosts, newcomers=newcomers)
    for piece in range(PIECES):
        sent = [(rank, peer) for rank in range(len(hosts)) for peer in routes.targets(rank, piece)]
        assert sorted(peer for _, peer in sent) == newcomers
        assert all(routes.source(peer, piece) == rank for rank, peer in sent)
        crossed = Counter(hosts[peer] for rank, peer in sent if hosts[rank] != hosts[peer])
        had = {hosts[rank] for rank in routes.holders}
        assert crossed == dict.fromkeys({hosts[one] for one in newcomers} - had, 1)
        known = set(routes.holders)
        for _ in hosts:
            known |= {peer for rank, peer in sent if rank in known}
        assert known == set(range(len(hosts))), "somebody waits for who waits for it"


@given(rosters())
def test_every_newcomer_is_told_once_and_each_host_once(roster: tuple[list[str], list[int]]) -> None:
    hosts, newcomers = roster
    routes = TransferTopology.between(hosts, newcomers=newcomers)
    told = [(rank, peer) for rank in range(len(hosts)) for peer in routes.skeleton_targets(rank)]
    assert sorted(peer for _, peer in told) == newcomers
    assert all(routes.skeleton_source(peer) == rank for rank, peer in told)
    crossed = Counter(hosts[peer] for rank, peer in told if hosts[rank] != hosts[peer])
    assert crossed == dict.fromkeys({hosts[one] for one in newcomers} - {hosts[routes.holders[0]]}, 1)


def test_on_one_host_pieces_come_from_all_who_have_them_in_turn() -> None:
    routes = TransferTopology.between(["a"] * 5, newcomers=[3, 4])
    assert [routes.source(3, piece) for piece in range(4)] == [0, 1, 2, 0] == [routes.source(4, piece) for piece in range(4)]


def test_pieces_for_another_host_come_from_all_who_have_them_and_go_to_all_newcomers_there_in_turn() -> None:
    routes = TransferTopology.between(["a", "b", "c", "c"], newcomers=[2, 3])
    assert [[routes.targets(rank, piece) for rank in range(4)] for piece in range(2)] == [[[2], [], [3], []], [[], [3], [], [2]]]


def test_a_first_rosters_first_member_has_the_state() -> None:
    members = tuple(Member(f"w{k}", "a", ("h", k), share) for k, share in enumerate(deal(8, 3)))
    routes = TransferTopology.of(Roster(1, members, joined=("w0", "w1", "w2")))
    assert (routes.holders, routes.newcomers) == ((0,), (1, 2))


def handed_on(group: ProcessGroup, names: list[str], newcomers: list[int]) -> tuple[bool, dict[int, int]]:
    """Whether this member has the state in the end, and the bytes that it sent to each of the others."""
    routes = TransferTopology.between(names, newcomers=newcomers)
    tensors = [torch.arange(3_000_000), torch.arange(5), torch.zeros(0), torch.arange(2_000_000, dtype=torch.int32)]
    sent: Counter[int] = Counter()
    send = group.send

    def counted(tensor: torch.Tensor, to: int, tag: int = 0) -> object:
        sent[to] += tensor.numel() * tensor.element_size()
        return send(tensor, to, tag)

    group.send = counted  # type: ignore[method-assign, assignment]
    if group.rank in newcomers:
        skeleton, got = transfer.receive(group, routes=routes, buffers=lambda skeleton, specs: [None] * len(specs))
        whole = skeleton == {"step": 3} and all(torch.equal(one, two) for one, two in zip(tensors, got, strict=True))
    else:
        transfer.send(group, {"step": 3}, tensors, routes=routes)
        whole = True
    return whole, dict(sent)


STATE = 3_000_000 * 8 + 5 * 8 + 2_000_000 * 4
LITTLE = 10_000


@pytest.mark.parametrize("aware", [True, False])
def test_the_bytes_of_a_state_cross_once_for_three_newcomers_of_a_host(aware: bool) -> None:
    hosts, newcomers = ["a", "b", "c", "c", "c", "a"], [2, 3, 4, 5]
    members = Members(6, handed_on, hosts if aware else ["one"] * 6, newcomers)
    answers = members.answers()
    members.end()
    assert all(whole for whole, _ in answers), "bits are the same either way"  # type: ignore[misc]
    crossed = sum(
        count
        for rank, (_, sent) in enumerate(answers)
        for peer, count in sent.items()  # type: ignore[misc]
        if hosts[rank] != hosts[peer]
    )
    if aware:
        assert STATE <= crossed <= STATE + LITTLE
    else:
        assert crossed > 3 * STATE, "the control: members that know nothing of hosts"
