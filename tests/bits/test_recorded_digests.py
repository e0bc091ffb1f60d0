"""Not a bit changes: the examples and the zoo end with the digests that were recorded.

A change that alters how samples are drawn, seeds are made, gradients are summed or states are digested fails here, also when
all workers and plain python still agree with each other. record_digests.py says how digests are recorded.
"""

from __future__ import annotations

import json

import pytest
import record_digests

RECORDED = json.loads(record_digests.RECORDED.read_text())


@pytest.fixture(scope="module", autouse=True)
def comparable() -> None:
    """Skips where plain PyTorch computes other bits than on the machine that recorded."""
    here = record_digests.canary()
    other = [name for name in RECORDED["canary"] if here.get(name) != RECORDED["canary"][name]]
    if other:
        pytest.skip(f"this machine computes other bits than the one that recorded, without stretto: {', '.join(other)}")


@pytest.mark.parametrize("name", record_digests.RUNS)
def test_plain_python_ends_with_the_recorded_digests(name: str) -> None:
    assert record_digests.plain_python(*record_digests.RUNS[name]) == RECORDED["runs"][name]


def test_two_workers_end_with_the_recorded_digests() -> None:
    assert record_digests.two_workers(*record_digests.RUNS["zoo"]) == RECORDED["runs"]["zoo"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in record_digests.RUNS if name != "zoo"])
def test_two_workers_end_with_the_recorded_digests_of_the_examples(name: str) -> None:
    assert record_digests.two_workers(*record_digests.RUNS[name]) == RECORDED["runs"][name]


def test_another_seed_ends_with_another_digest() -> None:
    """A control: a digest that is the same whatever is trained would prove nothing."""
    assert record_digests.plain_python(*record_digests.OTHER_SEED) != RECORDED["runs"]["digits"]
