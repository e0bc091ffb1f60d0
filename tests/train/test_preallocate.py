"""Room for a state that is about to come: as much as is missing, no more, and given to the tensors that it fits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from stretto.core.slices import Span
from stretto.train.reduce.accumulation import sum_schedule
from stretto.train.reduce.gradients import Gradients
from stretto.train.sharing.preallocate import LARGE_BYTES, Handover, allocate, assign
from stretto.train.sharing.state_codec import spec

LARGE = LARGE_BYTES // 4 + 1


def allocated(specs: Sequence[list[Any]], *, existing: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """On a thread, as the worker does it: the thread that allocates lowers its own priority for good."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(allocate, specs, existing=existing).result()


def test_room_is_made_for_what_the_script_has_not_made() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    weight, first, second, small = torch.ones(LARGE), torch.ones(LARGE), torch.ones(2, LARGE), torch.ones(3)
    room = allocated([spec(one) for one in (weight, first, second, small)], existing=[weight])
    assert [spec(one) for one in room] == [spec(first), spec(second)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before, "only the thread that makes room is nice"


def test_room_goes_where_there_was_none_and_where_it_fits() -> None:
    held, room = torch.ones(LARGE), [torch.zeros(LARGE), torch.zeros(2, LARGE)]
    specs = [spec(held), spec(torch.ones(LARGE)), spec(torch.ones(LARGE)), spec(torch.ones(LARGE, dtype=torch.float64))]
    places = assign([held, None, None, None], specs, room)
    assert places[0] is held and places[1] is room[0] and places[2] is None and places[3] is None


def test_no_tensor_is_given_twice() -> None:
    room = [torch.zeros(LARGE), torch.zeros(LARGE)]
    places = assign([None] * 3, [spec(room[0])] * 3, room)
    given = [place.data_ptr() for place in places if place is not None]
    assert len(given) == 2 and len(set(given)) == 2


def test_a_handover_waits_for_the_training_thread() -> None:
    handover, got = Handover(), []
    asking = threading.Thread(target=lambda: got.append(handover.request(lambda: True)), daemon=True)
    asking.start()
    while not handover.requested:
        threading.Event().wait(0.001)
    handover.provide([1])
    asking.join(30)
    assert got == [[1]] and not handover.requested


def test_a_handover_that_nobody_wants_any_more_ends() -> None:
    assert Handover().request(lambda: False) is None


def test_the_first_pass_of_a_newcomer_adds_up_in_memory_that_was_allocated_ahead() -> None:
    parameters = [torch.nn.Parameter(torch.ones(LARGE)), torch.nn.Parameter(torch.ones(3))]
    gradients, schedule = Gradients(parameters), sum_schedule(8, Span(4, 8))
    with ThreadPoolExecutor(1) as pool:
        buffers = pool.submit(gradients.allocate, schedule).result()
    ahead = {tensor.data_ptr() for bucket in buffers for tensor in bucket}
    gradients.adopt(buffers)
    gradients.begin(schedule, lambda _: None)
    used = {tensor.data_ptr() for bucket in gradients.buckets for tensor in bucket.flat.buffers}
    assert used == ahead and len(used) == schedule.buffers * len(gradients.buckets)
    gradients.close()


def test_memory_for_another_set_of_parameters_is_not_used() -> None:
    """The job may reduce other parameters than the script that has just begun."""
    schedule = sum_schedule(8, Span(4, 8))
    buffers = Gradients([torch.nn.Parameter(torch.ones(LARGE))]).allocate(schedule)
    gradients = Gradients([torch.nn.Parameter(torch.ones(3))])
    gradients.adopt(buffers)
    gradients.begin(schedule, lambda _: None)
    assert all(tensor.numel() == bucket.flat.length for bucket in gradients.buckets for tensor in bucket.flat.buffers)
    gradients.close()
