"""`audit` holds for a good journal, and finds every way in which one can be bad."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.core.audit import audit, merge
from stretto.core.journal import Commit, Digests, End, EpochEnd, LoaderLine, Orders, Record, Resume
from stretto.core.sample_order import order_id

LOADER = LoaderLine(t=0, loader=0, samples=50, batch=16, slices=8, tail="drop")


def journal(*, epochs: int = 2, tail: str = "drop") -> list[Record]:
    """Two epochs of three (or four) steps."""
    records: list[Record] = [replace(LOADER, tail=tail)]
    step = 0
    for epoch in range(epochs):
        for first in range(0, 48 if tail == "drop" else 50, 16):
            count = min(16, 50 - first)
            records.append(
                Commit(t=step, step=step, epoch=epoch, loader=0, first=first, count=count, batch=16, roster=1, workers=1)
            )
            step += 1
        records.append(EpochEnd(t=step, epoch=epoch, loader=0))
    return [
        *records,
        Digests(t=step, step=step, digests={"w0": "aa", "w1": "aa"}, equal=True),
        End(t=step, state="finished", steps=step, digest="aa"),
    ]


@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_a_good_journal_holds(tail: str) -> None:
    found = audit(journal(tail=tail))
    assert found.findings == ()
    assert (found.epochs, found.steps, found.samples) == ((2, 6, 96) if tail == "drop" else (2, 8, 100))


def test_a_run_that_only_evaluated_holds_and_one_that_lost_its_steps_does_not() -> None:
    assert audit([replace(LOADER, train=False), End(t=1, state="finished", steps=0)]).holds
    assert not audit([LOADER, End(t=1, state="finished", steps=3)]).holds
    assert not audit([LOADER, End(t=1, state="failed", steps=0)]).holds


def without(step: int) -> list[Record]:
    return [one for one in journal() if not (isinstance(one, Commit) and one.step == step)]


def changed(which: int, **fields: int) -> list[Record]:
    return [replace(one, **fields) if isinstance(one, Commit) and one.step == which else one for one in journal()]


@pytest.mark.parametrize(
    ("records", "finding"),
    [
        (without(1), "step 2 follows step 0"),
        (without(1), "samples 16..31 are in no step"),
        (without(0), "samples 0..15 are in no step"),
        (without(5), "18 of 50 samples are in no committed step"),
        (without(5), "the run ended after 6 steps, the journal has 5"),
        (changed(1, first=8), "samples 8..15 are in step 1 and in an earlier one"),
        (changed(4, step=3), "step 3 was committed twice"),
        (changed(2, first=40), "is beyond its 50 samples"),
        ([one for one in journal() if not isinstance(one, LoaderLine)], "does not say how many samples"),
        ([LOADER], "no step was committed"),
        ([*journal(), Digests(t=9, step=6, digests={"w0": "aa", "w1": "bb"}, equal=False)], "differ after step 6: w0 aa, w1 bb"),
        ([*journal(), Digests(t=9, step=6, digests={"w0": "aa", "w1": "bb"}, equal=True)], "states differ after step 6"),
    ],
)
def test_a_bad_journal_is_found_out(records: list[Record], finding: str) -> None:
    found = audit(records)
    assert not found.holds
    assert any(finding in one for one in found.findings), found.findings


def ordered(seed: int = 0) -> list[Record]:
    """With the orders of samples that this seed gives; the loader's is 0."""
    return [
        replace(one, order=order_id(seed=seed, loader=0, epoch=one.epoch, samples=50, shuffle=True))
        if isinstance(one, Commit)
        else one
        for one in journal()
    ]


def test_a_journal_whose_orders_follow_from_the_loaders_seed_holds() -> None:
    assert audit(ordered()).holds
    mixed = [one if not isinstance(one, Commit) or one.step % 2 else replace(one, order="") for one in ordered()]
    assert audit(mixed).holds, "lines of an older version have none"


def test_orders_of_another_seed_do_not_hold() -> None:
    found = audit(ordered(seed=5)).findings
    assert any("step 0 of epoch 0: the order of its samples is" in one and "(seed 0)" in one for one in found)


def test_an_order_that_changes_within_an_epoch_does_not_hold() -> None:
    other = LoaderLine(t=0, loader=0, samples=50, batch=16, slices=8, tail="drop", seed=5)
    records = [*ordered()[:2], other, *ordered(seed=5)[2:]]
    assert any("step 1 has another order of samples than before" in one for one in audit(records).findings)


def test_workers_that_disagree_about_the_order_do_not_hold() -> None:
    records = [*ordered(), Orders(t=0, loader=0, epoch=1, orders={"w0": "aa", "w1": "bb"})]
    assert any("in different orders: w0 aa, w1 bb" in one for one in audit(records).findings)


def test_hosts_that_disagree_about_the_order_do_not_hold() -> None:
    assert not merge({"a": ordered(), "b": ordered()})[1]
    assert not merge({"a": ordered(), "b": journal()})[1], "an older agent tells of none"
    assert any("step 0 has other samples on a" in one for one in merge({"a": ordered(), "b": ordered(seed=5)})[1])


def test_orders_differ_in_whatever_decides_them() -> None:
    same = {"seed": 1, "loader": 0, "epoch": 2, "samples": 100, "shuffle": True}
    changes = {"seed": 2, "loader": 1, "epoch": 3, "samples": 99, "shuffle": False}
    others = [{**same, name: value} for name, value in changes.items()]
    ids = {order_id(**values) for values in (same, *others)}  # type: ignore[arg-type]
    assert len(ids) == 6 and all(len(one) == 16 for one in ids)


def test_a_kept_tail_has_to_be_there() -> None:
    records = [replace(one, tail="keep") if isinstance(one, LoaderLine) else one for one in journal()]
    assert any("the last 2 of 50 samples are in no committed step" in one for one in audit(records).findings)


def test_an_unfinished_epoch_may_end_anywhere_but_has_no_holes() -> None:
    records = [one for one in journal() if not isinstance(one, EpochEnd | End)]
    assert audit(records[:3]).holds
    assert not audit([records[0], records[1], records[3]]).holds


def test_a_resumed_run_is_judged_by_what_holds_in_the_end() -> None:
    records = journal()
    again = [replace(one, roster=7) for one in records if isinstance(one, Commit) and one.step > 1]
    lived = [*records[:5], Resume(t=9, step=1), *again[:1], records[4], *again[1:], *records[8:]]
    assert audit(lived).holds
    assert not audit([one for one in lived if not isinstance(one, Resume)]).holds


def test_an_evaluation_loader_is_not_expected_to_commit() -> None:
    records: list[Record] = [
        LoaderLine(t=0, loader=1, samples=10, batch=5, slices=8, train=False),
        *journal(),
        EpochEnd(t=9, epoch=0, loader=1),
    ]
    assert audit(records).holds
