"""The beat is read while it is written, and after its writer is dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from stretto.core.heartbeat import SIZE, Activity, Heartbeat, HeartbeatReader


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("beat")
    os.ftruncate(fd, SIZE)
    yield fd
    os.close(fd)


def test_a_new_file_reads_as_a_worker_that_has_not_started(fd: int) -> None:
    pulse = HeartbeatReader(fd).read()
    assert pulse.beaten == 0.0
    assert pulse.activity is Activity.STARTING
    assert pulse.slices == 0


def test_the_place_and_the_time_of_the_last_beat_are_seen(fd: int) -> None:
    beat, reader = Heartbeat(fd), HeartbeatReader(fd)
    before = time.monotonic()
    beat.beat()
    beat.enter_slice(7, 1, 3)
    pulse = reader.read()
    assert (pulse.activity, pulse.step, pulse.pass_, pulse.slice) == (Activity.SLICE, 7, 1, 3)
    assert before <= pulse.beaten <= time.monotonic()
    assert before <= pulse.since <= time.monotonic()
    beat.leave_slice(Activity.EXCHANGE)
    assert reader.read().activity is Activity.EXCHANGE


def test_a_pass_says_whether_it_trains_and_on_which_loader(fd: int) -> None:
    beat, reader = Heartbeat(fd), HeartbeatReader(fd)
    assert reader.read().loader == -1
    beat.enter_pass(train=False, loader=2, step=5, pass_=0)
    beat.enter_slice(5, 0, 3)
    beat.leave_slice(Activity.EXCHANGE)
    pulse = reader.read()
    assert (pulse.train, pulse.loader, pulse.step, pulse.activity) == (False, 2, 5, Activity.EXCHANGE)
    beat.enter_pass(train=True, loader=0, step=9, pass_=1)
    pulse = reader.read()
    assert (pulse.train, pulse.loader, pulse.step, pulse.pass_, pulse.slices) == (True, 0, 9, 1, 1)


def test_the_median_of_the_slices_is_kept_by_the_writer(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    beat, reader = Heartbeat(fd), HeartbeatReader(fd)
    for took in (1.0, 1.0, 9.0):
        beat.enter_slice(0, 0, 0)
        now += took
        beat.leave_slice()
    pulse = reader.read()
    assert (pulse.typical_s, pulse.longest_s, pulse.slices) == (1.0, 9.0, 3)


def test_leaving_a_slice_twice_counts_it_once(fd: int) -> None:
    beat, reader = Heartbeat(fd), HeartbeatReader(fd)
    beat.enter_slice(0, 0, 0)
    beat.leave_slice()
    beat.leave_slice()
    assert reader.read().slices == 1


def test_the_slice_that_killed_a_worker_can_be_read_afterwards(fd: int) -> None:
    pid = os.fork()
    if pid == 0:
        Heartbeat(fd).enter_slice(41, 0, 5)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    pulse = HeartbeatReader(fd).read()
    assert (pulse.step, pulse.slice, pulse.activity) == (41, 5, Activity.SLICE)


def test_a_reader_never_sees_half_of_a_place(fd: int) -> None:
    pid = os.fork()
    if pid == 0:
        beat = Heartbeat(fd)
        number = 0
        while True:
            number += 1
            beat.enter_slice(number, number, number)
    try:
        reader = HeartbeatReader(fd)
        for _ in range(20_000):
            pulse = reader.read()
            assert pulse.step == pulse.pass_ == pulse.slice
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
