"""Learning-rate rules: hand-computed factors, and optimizers that show the user's rate between steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from stretto.batching.lr_rules import LEGW, AdaScale, LinearScale, LrRule, Moment, SqrtScale, gain, ramped, rule_of
from stretto.batching.lr_scaling import LrScaling, RuleWarning
from stretto.batching.noise_scale import NoiseScale
from stretto.core.errors import ScriptError


def sgd(*, lr: float = 0.1, momentum: float = 0.0) -> tuple[nn.Parameter, torch.optim.SGD]:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    return weight, torch.optim.SGD([weight], lr=lr, momentum=momentum)


def rates_used(optimizer: torch.optim.Optimizer) -> list[float]:
    """What each step really uses: read by a hook that runs after the rule's."""
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: seen.append(float(opt.param_groups[0]["lr"])))
    return seen


def measured(signal: float, noise: float) -> NoiseScale:
    """An estimator that has seen exactly these moments, with slices of 32 and a batch of 64."""
    estimator = NoiseScale(1)
    estimator.observe([[signal + noise / 32]] * 2, mean=[signal + noise / 64], sizes=[32, 32])
    return estimator


def test_adascale_by_hand():
    # |G|² = 1, trΣ = 256, B0 = 64, B = 256: (4 + 1)/(1 + 1) = 2.5.
    assert gain((1.0, 256.0), batch=256, reference=64) == pytest.approx(2.5)
    assert AdaScale().factor(Moment(64, 256, pair=(1.0, 256.0))) == pytest.approx(2.5)


def test_adascale_is_between_one_and_the_scale():
    assert gain((1.0, 0.0), batch=256, reference=64) == 1.0
    assert gain((1e-12, 1.0), batch=256, reference=64) == pytest.approx(4.0)
    assert gain(None, batch=256, reference=64) == 1.0


def test_the_ramp_takes_eight_steps_in_both_directions():
    up = [ramped(1.0, 4.0, since=t, over=8) for t in range(10)]
    assert up == pytest.approx([1, 1.375, 1.75, 2.125, 2.5, 2.875, 3.25, 3.625, 4, 4])
    down = [ramped(4.0, 1.0, since=t, over=8) for t in range(10)]
    assert down == pytest.approx([4, 3.625, 3.25, 2.875, 2.5, 2.125, 1.75, 1.375, 1, 1])


def test_square_root_and_legw_by_hand():
    assert SqrtScale().factor(Moment(64, 256)) == 2.0
    rule = LEGW(warmup_epochs=0.5)
    assert rule.factor(Moment(64, 256, warmed=0.25)) == 0.5
    assert rule.factor(Moment(64, 256, warmed=1.0)) == 2.0
    assert rule.warms(1.0, scale=4.0) == 0.5  # 4 times the warm-up of half an epoch: one epoch is half of it


def test_a_change_of_the_batch_ramps_the_rate_and_a_second_one_starts_where_the_first_was():
    _, optimizer = sgd(lr=1.0)
    rate = LrScaling(LinearScale(), [optimizer], reference=32)
    seen = rates_used(optimizer)
    for batch in [32] * 2 + [64] * 4 + [32] * 9:
        rate.begin(batch)
        optimizer.step()
        rate.committed()
    grown = [1, 1, 1, 1.125, 1.25, 1.375]
    fallen = [1.5 - 0.5 * t / 8 for t in range(8)] + [1.0]
    assert seen == pytest.approx(grown + fallen)


def test_a_job_that_begins_above_the_reference_warms_up_to_its_rate():
    _, optimizer = sgd(lr=1.0)
    rate = LrScaling(LinearScale(), [optimizer], reference=32)
    seen = rates_used(optimizer)
    for _ in range(10):
        rate.begin(128)
        optimizer.step()
        rate.committed()
    assert (seen[0], seen[4], seen[8]) == (1.0, 2.5, 4.0)


def test_the_user_sees_only_the_rate_that_the_user_set():
    weight, optimizer = sgd(lr=0.1)
    rate = LrScaling(LinearScale(ramp=0), [optimizer], reference=64)
    rate.begin(256)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert weight.item() == pytest.approx(-0.4)


def test_the_control_without_a_rule_steps_with_the_plain_rate():
    weight, optimizer = sgd(lr=0.1)
    rate = LrScaling(None, [optimizer], reference=64)
    rate.begin(256)
    optimizer.step()
    assert weight.item() == pytest.approx(-0.1)


def test_a_factor_of_one_leaves_the_bits_alone():
    (one, plain), (other, ruled) = sgd(lr=0.1 / 3), sgd(lr=0.1 / 3)
    rate = LrScaling(AdaScale(), [ruled], reference=64, noise=measured(1.0, 10.0))
    rate.begin(64)
    plain.step()
    ruled.step()
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=20),
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 6], gamma=0.5),
    ],
)
def test_schedulers_go_on_as_if_there_were_no_rule(make: object):
    (_, plain), (_, ruled) = sgd(), sgd()
    schedulers = [make(optimizer) for optimizer in (plain, ruled)]  # type: ignore[operator]
    rate = LrScaling(LinearScale(ramp=0), [ruled], reference=64)
    used_plain, used_ruled = rates_used(plain), rates_used(ruled)
    for step in range(10):
        rate.begin(64 if step < 5 else 192)
        for optimizer, scheduler in zip((plain, ruled), schedulers, strict=True):
            optimizer.step()
            scheduler.step()
    assert ruled.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    assert used_ruled == pytest.approx([lr * (1 if step < 5 else 3) for step, lr in enumerate(used_plain)])


def test_groups_get_their_own_gain():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [weights[0]], "lr": 1.0}, {"params": [weights[1]], "lr": 2.0}])
    for weight in weights:
        weight.grad = torch.ones(1)
    noise = NoiseScale(2)
    noise.observe([[1.0, 1.0 + 8.0]] * 2, mean=[1.0, 1.0 + 4.0], sizes=[32, 32])
    rate = LrScaling(AdaScale(), [optimizer], reference=64, noise=noise)
    rate.begin(256)
    optimizer.step()
    assert weights[0].item() == pytest.approx(-1.0)
    assert weights[1].item() == pytest.approx(-2.0 * 2.5)


def test_a_group_that_is_not_measured_gets_the_gain_of_the_whole():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
    noise = NoiseScale(2)
    noise.observe([[1.0 + 256.0 / 32, 0.0]] * 2, mean=[1.0 + 256.0 / 64, 0.0], sizes=[32, 32])
    rate = LrScaling(AdaScale(), optimizers, reference=64, noise=noise)
    rate.begin(256)
    assert rate.factor(0) == pytest.approx(2.5)
    assert rate.factor(1) == pytest.approx(2.5), "a GAN's generator would go on with the rate of the small batch"


def test_a_rate_that_is_a_tensor_stays_the_same_tensor():
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    given = torch.tensor(0.1)
    optimizer = torch.optim.SGD([weight], lr=given, foreach=False)
    rate = LrScaling(LinearScale(ramp=0), [optimizer], reference=64)
    rate.begin(128)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] is given
    assert given.item() == pytest.approx(0.1)
    assert weight.item() == pytest.approx(-0.2)


def test_a_step_that_raises_does_not_leave_its_rate_behind():
    weight, optimizer = sgd(lr=0.1)
    rate = LrScaling(LinearScale(ramp=0), [optimizer], reference=64)
    rate.begin(128)

    def broken() -> float:
        raise RuntimeError("in the closure")

    with pytest.raises(RuntimeError, match="closure"):
        optimizer.step(broken)
    optimizer.step()
    assert weight.item() == pytest.approx(-0.2)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_progress_counts_reference_steps():
    _, optimizer = sgd()
    rate = LrScaling(AdaScale(), [optimizer], reference=64, noise=measured(1.0, 256.0))
    for batch in (64, 256, 256):
        rate.begin(batch)
        rate.committed()
    assert rate.progress == pytest.approx(1.0 + 2.5 + 2.5)
    rate.committed(applied=False)
    assert rate.progress == pytest.approx(1.0 + 2.5 + 2.5), "a step that was not applied is no progress"


def test_a_newcomer_goes_on_in_the_middle_of_a_ramp():
    (_, first), (_, second) = sgd(), sgd()
    old, new = (LrScaling(LinearScale(), [optimizer], reference=32) for optimizer in (first, second))
    for batch in (32, 128, 128, 128):
        old.begin(batch)
        old.committed()
    new.load_state_dict(old.state_dict())
    for rate in (old, new):
        rate.begin(128)
    assert new.factor() == old.factor() == pytest.approx(1 + 3 * 3 / 8)
    assert new.progress == old.progress


def test_legw_warms_up_by_the_data_seen():
    _, optimizer = sgd(lr=1.0)
    rate = LrScaling(LEGW(warmup_epochs=0.5), [optimizer], reference=64)
    seen = rates_used(optimizer)
    for _ in range(5):
        rate.begin(256)
        optimizer.step()
        rate.committed(epochs=0.5)
    assert seen == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


def adam() -> torch.optim.Optimizer:
    return torch.optim.AdamW([nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize(
    ("rule", "optimizer", "advice"),
    [
        (AdaScale(), adam, "use stretto.SqrtScale()"),
        (LinearScale(), adam, "use stretto.SqrtScale()"),
        (AdaScale(), lambda: torch.optim.RMSprop([nn.Parameter(torch.zeros(1))]), "use stretto.SqrtScale()"),
        (SqrtScale(), lambda: sgd()[1], "use stretto.AdaScale() or stretto.LinearScale()"),
    ],
)
def test_a_rule_on_the_wrong_optimizer_warns_with_the_better_one(rule: LrRule, optimizer: object, advice: str):
    with pytest.warns(RuleWarning) as caught:
        LrScaling(rule, [optimizer()], reference=64)  # type: ignore[operator]
    assert advice in str(caught[0].message)
    assert caught[0].filename == __file__, "the warning does not show where the script is"


@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [
        (AdaScale(), lambda: sgd()[1]),
        (LinearScale(), lambda: sgd()[1]),
        (SqrtScale(), adam),
        (LEGW(warmup_epochs=1), adam),
        (LEGW(warmup_epochs=1), lambda: sgd()[1]),
        (None, adam),
    ],
)
def test_a_rule_on_its_own_optimizer_does_not_warn(rule: LrRule | None, optimizer: object):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LrScaling(rule, [optimizer()], reference=64)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AdaScale(reference=0), r"AdaScale\(reference=0\): the batch that the rate was chosen for is a whole number"),
        (lambda: LinearScale(reference=2.5), r"LinearScale\(reference=2.5\)"),  # type: ignore[arg-type]
        (lambda: LinearScale(ramp=-1), r"LinearScale\(ramp=-1\) must be a number of at least 0"),
        (lambda: SqrtScale(ramp=float("nan")), r"SqrtScale\(ramp=nan\)"),  # type: ignore[arg-type]
        (lambda: LEGW(warmup_epochs=-1), r"LEGW\(warmup_epochs=-1\) must be a number of at least 0"),
        (lambda: rule_of(AdaScale), r"write stretto.AdaScale\(\) with brackets"),
        (lambda: rule_of("linear"), r"lr_rule='linear' is not a learning-rate rule: give stretto.AdaScale\(\)"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_with_the_fix(make: Callable[[], object], words: str):
    with pytest.raises(ScriptError, match=words):
        make()
