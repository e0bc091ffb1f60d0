"""Sums, counts and lists of slices: exact, in order, and the same whoever computes which slices."""

import json
import random
from types import SimpleNamespace

import pytest
import torch
from test_plain_python import check, refused

import stretto.train.job  # noqa: F401  (the scripts' processes are forked from this one and need not load it again)
from stretto.core.errors import ScriptError
from stretto.core.slices import Span, deal
from stretto.train.data.step import Step
from stretto.train.reduce.reducer import Header
from stretto.train.reduce.sums import CARRIED_BYTES, Partial, SliceSums, joined, pack, small, total, unpack

UNITS = 11


def values(seed: int) -> list[dict[str, object]]:
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "count": draw.randrange(10**30),
            "loss": draw.uniform(-1, 1),
            "matrix": torch.randint(-(2**62), 2**62, (3, 3), generator=generator) // UNITS,
            "weights": torch.randn(5, generator=generator, dtype=torch.float64),
        }
        for _ in range(UNITS)
    ]


def spread(workers: int, seed: int = 0) -> dict[tuple[str, ...], object]:
    """The values of all slices, summed and gathered by so many workers."""
    blobs = []
    for share in deal(UNITS, workers):
        tally = SliceSums()
        for unit in share:
            for name, value in values(seed)[unit].items():
                tally.sum(name, unit, value)
            tally.gather("unit", unit, torch.full((2, 3), unit), samples=2)
            tally.gather("name", unit, [f"s{unit}", None], samples=2)
        blobs.append(tally.pack(units=UNITS, share=share))
    return total(blobs, units=UNITS)


@pytest.mark.parametrize("workers", range(1, UNITS + 1))
def test_any_number_of_workers_gives_the_same_bits(workers: int) -> None:
    alone, many = spread(1), spread(workers)
    assert pack(alone) == pack(many)
    rows = values(0)
    assert many["sum", "count"] == sum(row["count"] for row in rows)  # type: ignore[misc]
    assert torch.equal(many["sum", "matrix"], sum(row["matrix"] for row in rows))  # type: ignore[arg-type]
    gathered = joined("unit", many["gather", "unit"])  # type: ignore[arg-type]
    assert gathered.tolist() == [[unit] * 3 for unit in range(UNITS) for _ in range(2)]  # type: ignore[union-attr]
    assert joined("name", many["gather", "name"]) == [x for unit in range(UNITS) for x in (f"s{unit}", None)]  # type: ignore[arg-type]


def test_summing_worker_by_worker_would_change_the_bits() -> None:
    """The control: floats do depend on the order, so the tree is needed."""

    def by_worker(seed: int, workers: int) -> float:
        losses = [float(row["loss"]) for row in values(seed)]  # type: ignore[arg-type]
        return sum(sum(losses[unit] for unit in share) for share in deal(UNITS, workers))

    assert any(by_worker(seed, 1) != by_worker(seed, 3) for seed in range(20))
    assert all(pack(spread(1, seed)) == pack(spread(3, seed)) for seed in range(20))


def test_slices_without_a_value_and_workers_without_any_take_part() -> None:
    first, second = SliceSums(), SliceSums()
    first.sum("n", 0, 4)
    second.sum("n", 3, True)
    assert total([first.pack(units=4, share=Span(0, 2)), b"", second.pack(units=4, share=Span(3, 4))], units=4) == {("sum", "n"): 5}


def test_the_blob_travels_behind_the_headers_json() -> None:
    header = Header(offer=3, rows={"0": {"loss": 1.5}}, blob=b"\0{}\xff")
    assert Header.decode(header.encode()) == header
    assert Header.decode(Header().encode()).blob == b""
    assert json.loads(Header().encode()[4:])


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(4, 2).to(torch.bfloat16),
        torch.zeros(0, 5),
        torch.tensor(3),
        torch.randn(3, 4).t(),
        [torch.ones(2), "a", {"b": (1, 2.5)}],
    ],
)
def test_tensors_of_any_kind_come_back_as_they_were(value: object) -> None:
    back = unpack(pack(value))
    if isinstance(value, torch.Tensor):
        assert back.dtype == value.dtype and torch.equal(back, value)
    else:
        assert str(back) == str(value)


def test_gathered_values_are_carried_only_while_they_are_small() -> None:
    few = {"logits": torch.zeros(CARRIED_BYTES // 4)}
    many = {"logits": torch.zeros(CARRIED_BYTES // 4 + 1), "labels": [1]}
    assert small(few)["gathered"] and not small(few)["left_out"]
    held = small(many)
    assert not held["gathered"]
    with pytest.raises(ScriptError, match="before this worker joined"):
        Partial(held["gathered"], left_out=held["left_out"])["logits"]
    with pytest.raises(KeyError):
        Partial(held["gathered"], left_out=held["left_out"])["typo"]
    assert small(Partial({}, left_out=["logits"]))["left_out"] == ["logits"]


def test_a_slice_with_fewer_samples_than_parts_has_them_in_the_parts_that_are_computed() -> None:
    """Weights of logged values and lengths of gathered ones follow the parts that passes compute."""
    step = Step(SimpleNamespace(slices=2), index=0, epoch=0, first=0, count=4, parts=3)  # type: ignore[arg-type]
    assert step.units() == [1, 1, 0, 1, 1, 0]
    step = Step(SimpleNamespace(slices=2), index=0, epoch=0, first=0, count=9, parts=2)  # type: ignore[arg-type]
    assert step.units() == [2, 2, 2, 3]


LOOP = """
model = nn.Linear(6, 3)
job.share(model=model)
data = job.loader(TensorDataset(x[:43], y[:43]), batch_size=16, train=False)
"""


def test_counts_are_integers_and_lists_are_in_order():
    check(
        LOOP
        + """
for step in data:
    labels = []
    for a, b in step:
        step.sum(total=len(b), odd=(b % 2 == 1).sum(), any=(b == 0).any(), big=10 ** 30, share=0.1)
        step.sum(total=len(b), matrix=torch.bincount(b, minlength=3))
        step.gather(labels=b, inputs=a, pairs=[(int(k), "x") for k in b], arrays=b.numpy())
    assert step.sums["total"] == 2 * step.count and type(step.sums["total"]) is int
    assert type(step.sums["odd"]) is type(step.sums["any"]) is int and type(step.sums["share"]) is float
    low, high = step.first, step.first + step.count
    assert torch.equal(step.gathered["labels"], y[low:high]) and torch.equal(step.gathered["inputs"], x[low:high])
    assert torch.equal(step.sums["matrix"], torch.bincount(y[low:high], minlength=3))
assert data.sums["total"] == 86 and data.sums["odd"] == int((y[:43] % 2 == 1).sum())
assert data.sums["big"] == 10 ** 30 * (8 + 8 + 8), data.sums
assert torch.equal(data.sums["matrix"], torch.bincount(y[:43], minlength=3))
assert torch.equal(data.gathered["labels"], y[:43]) and torch.equal(data.gathered["inputs"], x[:43])
assert data.gathered["pairs"] == [(int(k), "x") for k in y[:43]] and torch.equal(data.gathered["arrays"], y[:43])
for step in data:
    for a, b in step:
        pass
assert data.sums == {} and data.gathered == {}
"""
    )


def test_a_training_step_has_sums_and_lists_too_and_the_first_pass_names_them():
    check("""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.share(model=model, optimizer=optimizer)
    data = job.loader(TensorDataset(x, y), batch_size=16)
    for step in data:
        for kind in ("first", "second"):
            for a, b in step:
                F.cross_entropy(model(a), b).backward()
                step.sum(n=len(b) if kind == "first" else 0, **{kind: 1})
                step.gather(**{kind: b})
        optimizer.step()
        optimizer.zero_grad()
        assert step.sums == {"n": 16, "first": 8, "second": 8}, step.sums
        assert torch.equal(step.gathered["first"], step.gathered["second"]) and len(step.gathered["first"]) == 16
    """)


def test_a_pass_that_is_taken_apart_again_counts_once():
    """A buffer that starts to move makes the first pass run twice."""
    check("""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros(()))
        def forward(self, a):
            self.seen += 1.0
            return self.layer(a)
    model = Net()
    job.share(model=model)
    runs = 0
    for step in job.loader(TensorDataset(x, y), batch_size=64):
        for a, b in step:
            F.cross_entropy(model(a), b).backward()
            step.sum(n=len(b))
            step.gather(labels=b)
            runs += len(b)
        model.zero_grad()
        assert step.sums["n"] == len(step.gathered["labels"]) == 64 and runs == 128, runs
    """)


def test_a_short_tail_in_more_parts_than_samples_has_every_sample_once():
    """Parts come from running out of memory; here they are set by hand."""
    check("""
    model = nn.Linear(6, 3)
    job.share(model=model)
    data = job.loader(TensorDataset(x[:43], torch.arange(43)), batch_size=32, tail="keep", shuffle=False)
    for epoch in job.epochs(1):
        job._session.batches._room[data.number] = 1  # as after running out of memory
        for step in data:
            for a, b in step:
                model(a).sum().backward()
                step.sum(n=len(b))
                step.gather(index=b)
                step.log(index=b.float().mean())
            model.zero_grad()
            low, high = step.first, step.first + step.count
            assert step.parts == 4 and step.sums["n"] == step.count, step.sums
            assert step.gathered["index"].tolist() == list(range(low, high)), step.gathered
            assert abs(step.metrics["index"] - (low + high - 1) / 2) < 1e-5, step.metrics
    """)


def test_what_newcomers_get_has_what_the_last_evaluation_found():
    check(
        LOOP
        + """
for step in data:
    for a, b in step:
        step.log(accuracy=0.5)
        step.sum(n=len(b), matrix=torch.bincount(b, minlength=3))
        step.gather(labels=b)
other = job.loader(TensorDataset(x[:43], y[:43]), batch_size=16, train=False)
from stretto.train.reduce.sums import pack, unpack
other.restore(unpack(pack(data.to_dict())))
assert other.metrics == {"accuracy": 0.5} and other.sums["n"] == 43
assert torch.equal(other.sums["matrix"], data.sums["matrix"]) and torch.equal(other.gathered["labels"], y[:43])
other.restore({"epoch": 3, "step": 0, "consumed": 0, "batch": 16})  # as version 0.1 wrote it
assert other.epoch == 3
assert "metrics" not in data.position.to_dict()
"""
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.zeros(1, 3), r"step.gather\(x=…\) got 1 entries, the slice has 8 samples"),
        (torch.zeros(()), "without dimensions.*8 samples.*step.log"),
        (1.5, "got a float.*8 samples"),
        ([object()] * 8, "list of object.*plain values"),
    ],
)
def test_what_cannot_be_gathered_is_refused_with_the_fix(values: object, words: str) -> None:
    with pytest.raises(ScriptError, match=words):
        SliceSums().gather("x", 0, values, samples=8)


def test_a_name_is_gathered_once_a_slice_and_alike_in_all() -> None:
    tally = SliceSums()
    tally.gather("x", 0, torch.zeros(8, 2), samples=8)
    with pytest.raises(ScriptError, match="twice in one slice"):
        tally.gather("x", 0, torch.zeros(8, 2), samples=8)
    with pytest.raises(ScriptError, match=r"float32 of shape \(2,\) a sample in one slice and float32 of shape \(6,\).*pad"):
        joined("x", [torch.zeros(8, 2), torch.zeros(8, 6)])
    with pytest.raises(ScriptError, match=r"int64 .* in one slice and a list in another"):
        joined("x", [torch.zeros(8, dtype=torch.int64), [1]])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["many"], r"step.sum\(n=…\) got a str"),
        ([torch.zeros(2, dtype=torch.complex64)], "complex tensor"),
        ([torch.zeros(2), torch.zeros(3)], r"shape \(2,\) in one slice and a tensor of shape \(3,\).*step.gather"),
        ([torch.zeros(2), 1], "a number in another"),
    ],
)
def test_what_cannot_be_summed_is_refused_with_the_fix(values: list[object], words: str) -> None:
    tally = SliceSums()
    for unit, value in enumerate(values):
        tally.sum("n", unit, value)
    with pytest.raises(ScriptError, match=words):
        tally.pack(units=4, share=Span(0, 4))


def test_a_wrong_length_in_a_script_is_refused_in_its_slice():
    refused(
        LOOP
        + """
for step in data:
    for a, b in step:
        step.gather(logits=model(a)[:1])
""",
        "logits",
        "got 1 entries",
        "2 samples",
    )


def test_sums_belong_into_the_slices():
    refused(
        LOOP
        + """
for step in data:
    for a, b in step:
        pass
    step.sum(n=len(b))
""",
        "step.sum belongs inside the loop",
    )
