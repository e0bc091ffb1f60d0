"""Ways to go over a loader: what works under plain python works with joins too, and the rest is refused with the way."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import StackDataset, TensorDataset

from stretto.core.errors import ScriptError
from stretto.train.data.loader import Loader
from tests.train.lone_job import lone_job

X = torch.arange(64.0).reshape(64, 1)


class Script:
    """A script under plain python that trains, without being this process's job."""

    def __init__(self, **loader: Any) -> None:
        torch.manual_seed(1)
        self.job = lone_job(seed=3)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.job.share(model=self.model, optimizer=self.optimizer)
        self.data: Loader = self.job.loader(TensorDataset(X), 16, **loader)
        self.steps: list[tuple[int, int, int]] = []

    def train(self, step: Any) -> None:
        self.steps.append((step.index, step.epoch, step.first))
        for (x,) in step:
            F.mse_loss(self.model(x), x).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def epochs(self, count: int) -> None:
        for _ in self.job.epochs(count):
            for step in self.data:
                self.train(step)


WHOLE = [(4 * epoch + k, epoch, 16 * k) for epoch in range(2) for k in range(4)]


def digest() -> str:
    script = Script()
    script.epochs(2)
    assert script.steps == WHOLE
    return script.job.digest()


def look_at_the_top(script: Script) -> None:
    next(iter(script.data))
    script.epochs(2)


def look_in_an_epoch(script: Script) -> None:
    for _ in script.job.epochs(2):
        first = next(iter(script.data))
        for step in script.data:
            script.train(step)
            assert step.count == first.count


def look_without_epochs(script: Script) -> None:
    steps = iter(script.data)
    next(steps)
    del steps
    for step in script.data:
        script.train(step)


@pytest.mark.parametrize("look", [look_at_the_top, look_in_an_epoch, look_without_epochs])
def test_a_look_at_a_training_step_is_refused_with_the_way_before_anything_is_trained(look: Any) -> None:
    script = Script()
    with pytest.raises(ScriptError, match=r"next\(iter\(data\)\) took step 0 .*collate_fn.*train=False"):
        look(script)
    assert script.steps == []


def test_the_ways_to_look_change_nothing() -> None:
    script = Script()
    (batch,) = script.data.collate_fn([script.data.dataset[k] for k in range(8)])
    assert torch.equal(batch, X[:8])
    val = script.job.loader(script.data.dataset, 16, train=False)
    for step in val:
        for (x,) in step:
            assert len(x) == 2
    script.epochs(2)
    assert script.steps == WHOLE


def test_the_step_of_a_look_is_not_to_be_trained_on() -> None:
    script = Script()
    step = next(iter(script.data))
    with pytest.raises(ScriptError, match=r"step 0 is over.*dataset\[0\].*Subset"):
        script.train(step)


def test_a_step_is_over_when_its_loop_has_gone_on() -> None:
    script = Script()
    steps = iter(script.data)
    first = next(steps)
    script.train(first)
    script.train(next(steps))
    with pytest.raises(ScriptError, match="step 0 is over"):
        script.train(first)


def test_an_epoch_that_is_left_before_its_first_step_is_over_all_the_same() -> None:
    script = Script()
    for epoch in script.job.epochs(3):
        for step in script.data:
            if epoch == 1:
                break
            script.train(step)
    assert [epoch for _, epoch, _ in script.steps] == [0] * 4 + [2] * 4


def test_an_iterator_of_ones_own_is_a_loop_as_good_as_any() -> None:
    script = Script()
    for _ in script.job.epochs(2):
        steps = iter(script.data)
        while (step := next(steps, None)) is not None:
            script.train(step)
    assert script.steps == WHOLE
    assert script.job.digest() == digest()


def test_enumerate_and_tqdm_and_map_are_loops() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    script = Script()
    bar = tqdm(script.data, file=io.StringIO())
    assert bar.total == 4
    for step in bar:
        script.train(step)
    for place, step in enumerate(script.data):
        assert step.first == 16 * place
        script.train(step)
    assert script.steps == WHOLE
    list(map(script.train, script.data))
    assert len(script.steps) == 12


@pytest.mark.parametrize(
    "wrap",
    [
        lambda data: itertools.islice(data, 2),
        lambda data: itertools.islice(enumerate(data), 2),
        lambda data: enumerate(itertools.islice(data, 2)),
    ],
)
def test_islice_is_refused_because_a_newcomer_would_count_from_its_own_first_step(wrap: Any) -> None:
    script = Script()
    with pytest.raises(ScriptError, match=r"itertools\.islice.*step\.index"):
        next(wrap(script.data))
    assert script.steps == []


def test_zip_is_refused_with_the_way_that_exists() -> None:
    script = Script()
    for other in (range(9), script.job.loader(TensorDataset(X), 16)):
        with pytest.raises(ScriptError, match=r"zip.*StackDataset"):
            next(zip(script.data, other, strict=False))


def test_the_way_that_zip_is_refused_with_exists() -> None:
    script = Script()
    both = script.job.loader(StackDataset(TensorDataset(X), TensorDataset(-X)), 16, train=False)
    for step in both:
        for (x,), (y,) in step:
            assert torch.equal(x, -y)


def test_a_list_of_steps_is_refused_at_its_first_step() -> None:
    script = Script()
    with pytest.raises(ScriptError, match=r"step 0 was never iterated over.*dataset\[0\]"):
        list(script.data)


def evaluate(loader: Loader) -> float:
    for step in loader:
        for (x,) in step:
            step.log(mean=x.mean())
    return float(loader.metrics["mean"])


def test_a_look_at_an_evaluation_changes_nothing() -> None:
    script = Script()
    val = script.job.loader(TensorDataset(X), 16, train=False)
    next(iter(val))
    assert evaluate(val) == X.mean()
    next(iter(val))
    script.epochs(2)
    assert script.steps == WHOLE


def test_evaluations_may_be_zipped_but_one_loader_has_one_loop_at_a_time() -> None:
    script = Script()
    one, two = (script.job.loader(TensorDataset(X), 16, train=False) for _ in range(2))
    pairs = 0
    for a, b in zip(one, two, strict=True):
        for (x,), (y,) in zip(a, b, strict=True):
            assert torch.equal(x, y)
            pairs += 1
    assert pairs == 32
    with pytest.raises(ScriptError, match="two loops over loader 1"):
        list(zip(one, one, strict=True))
