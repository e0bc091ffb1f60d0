"""The throughput model's measurements and fit, the replayed plan, and the meter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stretto.batching import step_timing as speeds
from stretto.batching.grad_norms import GradNorms, Meter
from stretto.batching.recorded_batches import BatchLine, Replay, plan_of
from stretto.batching.step_timing import ENOUGH, RunConfig, StepTiming
from stretto.core.errors import UsageError
from stretto.core.journal import Commit, Record, Resume


def observed(*ways: tuple[int, int]) -> StepTiming:
    """A job with 10 ms a forward, 1 ms a sample and 5 ms of exchange, seen in these ways (workers, samples a part)."""
    speed = StepTiming()
    for workers, part in ways:
        for _ in range(2 * ENOUGH):
            grad_s = 0.010 + 0.001 * part
            speed.observe(RunConfig(1, workers, part), grad_s=grad_s, step_s=grad_s + (0.005 if workers > 1 else 0.0))
    speed.refit(after=1)
    speed.join()
    return speed


def test_the_model_predicts_the_time_of_a_batch_that_was_not_tried():
    speed = observed((2, 4), (2, 8), (2, 16))
    predict = speed.seconds(nodes=1, workers=2, slices=8)
    assert predict is not None
    # 8 slices on 2 workers: 4 forwards of 32 samples each, and one exchange.
    assert predict(256, 1) == pytest.approx(4 * 0.042 + 0.005, rel=0.1)
    # Twice as many forwards of half the size.
    assert predict(256, 2) == pytest.approx(8 * 0.026 + 0.005, rel=0.1)
    assert speed.fitted is not None
    assert speed.fitted.confidence > 0.5


def test_the_optimizers_time_counts_once_in_a_step_of_one_worker_and_not_once_a_slice():
    speed = StepTiming()
    for part in (4, 8, 16):
        for _ in range(2 * ENOUGH):
            grad_s = 0.010 + 0.001 * part
            speed.observe(RunConfig(1, 1, part), grad_s=grad_s, step_s=grad_s + 0.040)
    speed.refit(after=1)
    speed.join()
    predict = speed.seconds(nodes=1, workers=1, slices=8)
    assert predict is not None and speed.fitted is not None
    assert predict(64, 1) == pytest.approx(8 * 0.018 + 0.040, rel=0.02)
    assert speed.fitted.confidence > 0.9


def test_nothing_is_predicted_before_anything_is_fitted():
    speed = StepTiming()
    speed.observe(RunConfig(1, 1, 4), grad_s=0.01, step_s=0.01)
    speed.refit(after=1)
    assert speed.seconds(nodes=1, workers=1, slices=8) is None


def test_times_that_make_no_sense_are_not_counted():
    speed = StepTiming()
    for _ in range(20):
        speed.observe(RunConfig(1, 1, 4), grad_s=float("nan"), step_s=1.0)
        speed.observe(RunConfig(1, 1, 4), grad_s=1.0, step_s=-1.0)
    assert speed.observations == []


def test_a_fit_that_fails_leaves_the_model_that_there_was(monkeypatch: pytest.MonkeyPatch):
    speed = observed((1, 4), (1, 8))
    before = speed.fitted

    def broken(_: object) -> None:
        raise ImportError("no scipy here")

    monkeypatch.setattr(speeds, "fit", broken)
    for _ in range(ENOUGH):
        speed.observe(RunConfig(1, 1, 16), grad_s=0.026, step_s=0.026)
    speed.refit(after=1)
    speed.join()
    assert speed.fitted is before is not None
    assert speed.failure == "ImportError: no scipy here"


def commit(step: int, batch: int, parts: int = 1) -> Commit:
    return Commit(t=0.0, step=step, epoch=0, loader=0, first=0, count=batch, batch=batch, roster=1, workers=1, parts=parts)


def test_a_plan_is_read_from_the_commits_and_looked_up_by_step():
    records: list[Record] = [commit(0, 32), commit(1, 32), commit(2, 64), commit(3, 64, 2), commit(4, 32)]
    plan = plan_of(records)
    assert plan == [[0, 0, 32, 1], [2, 0, 64, 1], [3, 0, 64, 2], [4, 0, 32, 1]]
    replay = Replay.read(plan)
    assert [(replay.at(step, loader=0).batch, replay.at(step, loader=0).parts) for step in range(6)] == [  # type: ignore[union-attr]
        (32, 1),
        (32, 1),
        (64, 1),
        (64, 2),
        (32, 1),
        (32, 1),
    ]
    assert replay.at(0, loader=1) is None


def test_steps_that_a_later_life_has_done_again_are_replayed_as_they_were_done_last():
    records: list[Record] = [commit(0, 32), commit(1, 64), commit(2, 64), Resume(t=0.0, step=0), commit(1, 32), commit(2, 128)]
    assert plan_of(records) == [[0, 0, 32, 1], [2, 0, 128, 1]]


def test_a_run_without_steps_cannot_be_replayed():
    with pytest.raises(UsageError, match="no committed step"):
        plan_of([])
    assert Replay([BatchLine(5, 0, 32, 1)]).at(0, loader=0) == BatchLine(5, 0, 32, 1)


def test_the_meter_reads_what_the_gradients_were():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD([{"params": part.parameters()} for part in model], lr=0.1)
    meter = Meter(GradNorms([optimizer]))
    handles = [one.register_post_accumulate_grad_hook(lambda p: meter.take(p.grad, p)) for one in model.parameters()]  # type: ignore[arg-type]
    expected: dict[int, list[float]] = {}
    meter.begin()
    for unit in (2, 5):
        model.zero_grad()
        meter.enter(unit)
        model(torch.randn(6, 4)).square().mean().backward()
        expected[unit] = [sum(float(p.grad.double().square().sum()) for p in part.parameters()) for part in model]  # type: ignore[union-attr]
    rows = meter.rows(1.0)
    assert {unit: pytest.approx(row, rel=1e-5) for unit, row in expected.items()} == rows
    assert meter.rows(2.0)[2] == pytest.approx([value / 4 for value in expected[2]], rel=1e-5)
    for handle in handles:
        handle.remove()
