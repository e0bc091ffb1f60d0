"""The shared state as JSON and flat tensors: nothing is lost, nothing can hide code in it, and every bit counts."""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stretto.core.errors import Refused, ScriptError
from stretto.train.sharing.shared_objects import SharedObjects
from stretto.train.sharing.state_codec import as_bytes, digest, empty, flatten, load, spec, unflatten
from stretto.train.sharing.transfer import PIECE_BYTES, SMALL_BYTES, pieces

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_through_json(value):
    skeleton, tensors = flatten(value)
    assert unflatten(json.loads(json.dumps(skeleton)), tensors) == value


def test_tensors_arrays_and_nested_maps_come_back():
    value = OrderedDict(a=torch.arange(3), b=[np.float32(1.5), np.arange(4)], c={1: (torch.zeros(0), {"x"})})
    back = unflatten(*flatten(value))
    assert torch.equal(back["a"], torch.arange(3))
    assert back["b"][0] == np.float32(1.5)
    assert back["b"][1].tolist() == [0, 1, 2, 3]
    assert back["c"][1][1] == {"x"}


def test_what_is_neither_tensor_nor_plain_is_refused_by_its_path():
    with pytest.raises(ScriptError, match=r"state\.optimizer\.hook is a function"):
        flatten({"optimizer": {"hook": lambda: None}})


def test_a_state_that_names_something_else_than_a_dtype_is_refused():
    with pytest.raises(Refused, match="nn"):
        empty(["nn", [3]])


@given(st.data())
def test_any_change_changes_the_digest(data):
    tensors = [torch.arange(5, dtype=torch.float32), torch.tensor([1, 2])]
    before = digest({"a": 1}, tensors)
    k = data.draw(st.integers(0, 1))
    place = data.draw(st.integers(0, len(tensors[k]) - 1))
    changed = [t.clone() for t in tensors]
    changed[k][place] += 1
    assert digest({"a": 1}, changed) != before
    assert digest({"a": 2}, tensors) != before
    assert digest({"a": 1}, tensors) == before


def test_negative_zero_and_another_shape_count():
    assert digest(None, [torch.tensor([0.0])]) != digest(None, [torch.tensor([-0.0])])
    assert digest(None, [torch.zeros(2, 3)]) != digest(None, [torch.zeros(3, 2)])


def test_an_optimizer_keeps_the_dtype_of_its_own_state():
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    old, new = torch.optim.SGD([parameter], lr=0.1, momentum=0.9), torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    old.state[parameter]["momentum_buffer"] = torch.full((3,), 1.2345678, dtype=torch.float32)
    load(new, unflatten(*flatten(old.state_dict())))
    kept = new.state[parameter]["momentum_buffer"]
    assert kept.dtype == torch.float32
    assert torch.equal(kept, old.state[parameter]["momentum_buffer"])


def trained() -> tuple[SharedObjects, nn.Module]:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    schedule.step()
    shared = SharedObjects()
    shared.add({"model": model, "optimizer": optimizer, "schedule": schedule})
    return shared, model


def test_a_newcomer_with_the_state_has_the_digest_and_its_modules_are_filled_in_place():
    torch.manual_seed(0)
    old, _ = trained()
    torch.manual_seed(1)
    new, model = trained()
    place = {"step": 3}
    assert new.digest(place) != old.digest(place)
    skeleton, tensors = old.flatten(place)
    room = new.in_place(skeleton, [spec(t) for t in tensors])
    assert sum(one is not None for one in room) == len(model.state_dict())
    received = []
    for tensor, given_room in zip(tensors, room, strict=True):
        received.append(tensor.clone() if given_room is None else given_room.copy_(tensor))
    assert new.load(skeleton, received) == place
    assert new.digest(place) == old.digest(place)


@given(st.lists(st.integers(0, 3 * PIECE_BYTES) | st.integers(0, 2 * SMALL_BYTES), max_size=40))
def test_pieces_have_every_byte_once(sizes):
    seen = {k: [] for k in range(len(sizes))}
    for piece in pieces(sizes):
        assert sum(high - low for _, low, high in piece) <= PIECE_BYTES + SMALL_BYTES
        for index, low, high in piece:
            seen[index].append((low, high))
    for index, size in enumerate(sizes):
        flat = sorted(seen[index])
        assert [low for low, _ in flat[:1]] == ([0] if size else [])
        assert all(a[1] == b[0] for a, b in pairwise(flat))
        assert (flat[-1][1] if flat else 0) == size


def test_two_models_of_other_shapes_do_not_look_alike():
    one, other = SharedObjects(), SharedObjects()
    one.add({"model": nn.Linear(3, 4)})
    other.add({"model": nn.Linear(4, 3)})
    assert one.shape([]) != other.shape([])
    assert one.shape([]) == one.shape([])
    assert one.shape([]) != one.shape([[True, 8, 8, "drop", 64]])


def test_one_element_with_a_stride_of_its_own_has_bytes():
    column = torch.arange(12.0).view(3, 4)[:1, 2]
    assert as_bytes(column).numpy().tobytes() == torch.tensor([2.0]).numpy().tobytes()
    as_bytes(column).zero_()
    assert column.item() == 0.0
