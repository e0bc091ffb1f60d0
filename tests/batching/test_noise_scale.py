"""The noise scale against closed forms, and what must not disturb it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stretto.batching.grad_norms import CHUNK, RIPE, GradNorms, plain
from stretto.batching.noise_scale import LIMIT, NoiseScale, Sampling, moments

SLICES = 8


class Quadratic:
    """f(w) = E ½ (w-x)ᵀH(w-x), x ~ N(0, diag s²): the gradient is H w, its covariance over samples H diag(s²) H."""

    def __init__(self, size: int, *, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.curvature = torch.logspace(-1, 0.5, size)
        self.spread = torch.linspace(0.5, 2.0, size)
        self.weight = nn.Parameter(torch.full((size,), 1.5))

    def slice_gradient(self, samples: int) -> torch.Tensor:
        x = torch.randn(samples, len(self.spread), generator=self.random) * self.spread
        return (self.curvature * (self.weight.detach() - x)).mean(0)

    def truth(self, divisor: torch.Tensor) -> tuple[float, float]:
        signal = ((self.curvature * self.weight.detach() / divisor) ** 2).sum()
        noise = ((self.curvature * self.spread / divisor) ** 2).sum()
        return float(signal), float(noise)


def run(
    problem: Quadratic, optimizer: torch.optim.Optimizer, *, steps: int, sizes: list[int], scale: float = 1.0
) -> tuple[NoiseScale, NoiseScale]:
    """Trains and measures. The second estimator averages the closed form in the same way: it is the truth."""
    norms = GradNorms([optimizer])
    found, truth = NoiseScale(1, halflife=150), NoiseScale(1, halflife=150)
    for _ in range(steps):
        gradients = [problem.slice_gradient(size) for size in sizes]
        mean = sum(g * size for g, size in zip(gradients, sizes, strict=True) if size) / sum(sizes)
        rows: list[list[float]] = []
        for gradient in (*gradients, mean):
            problem.weight.grad = gradient * scale
            rows.append(norms.squared(scale=scale).tolist())
        if norms.ripe():
            found.observe(rows[:-1], mean=rows[-1], sizes=sizes)
            signal, noise = problem.truth(divisor(optimizer, problem.weight))
            truth.observe([[signal + noise / max(size, 1)] for size in sizes], mean=[signal + noise / sum(sizes)], sizes=sizes)
        problem.weight.grad = mean
        optimizer.step()
    return found, truth


def divisor(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> torch.Tensor:
    """√v̂ + ε as the formula has it, from the optimizer's state; ones for SGD."""
    if not isinstance(optimizer, torch.optim.Adam):
        return torch.ones_like(weight)
    state, group = optimizer.state[weight], optimizer.param_groups[0]
    return (state["exp_avg_sq"] / (1 - group["betas"][1] ** state["step"].item())).sqrt() + group["eps"]


@pytest.mark.parametrize("sizes", [[4] * 8, [16] * 8, [2, 4, 4, 8, 8, 8, 16, 16], [8, 8, 8, 0, 8, 8, 8, 3]])
def test_the_noise_scale_of_a_quadratic_under_sgd_is_within_5_percent(sizes: list[int]):
    problem = Quadratic(200, seed=1)
    found, truth = run(problem, torch.optim.SGD([problem.weight], lr=1e-4), steps=600, sizes=sizes)
    assert found.scale == pytest.approx(truth.scale, rel=0.05)
    assert found.pair() == pytest.approx(truth.pair(), rel=0.05)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_the_noise_scale_of_a_quadratic_under_adam_is_that_of_the_preconditioned_gradient(optimizer: type[torch.optim.Adam]):
    problem = Quadratic(200, seed=2)
    found, truth = run(problem, optimizer([problem.weight], lr=1e-4, weight_decay=0.0), steps=600, sizes=[8] * 8)
    assert found.scale == pytest.approx(truth.scale, rel=0.05)
    # The control: the plain gradient's noise scale is another number altogether.
    signal, noise = problem.truth(torch.ones(200))
    assert found.scale != pytest.approx(noise / signal, rel=0.3)


def test_the_noise_scale_does_not_depend_on_the_loss_scale():
    first, second = Quadratic(50, seed=3), Quadratic(50, seed=3)
    found, _ = run(first, torch.optim.SGD([first.weight], lr=1e-4), steps=50, sizes=[4] * 8)
    scaled, _ = run(second, torch.optim.SGD([second.weight], lr=1e-4), steps=50, sizes=[4] * 8, scale=1024.0)
    assert scaled.scale == pytest.approx(found.scale, rel=1e-4)


def test_one_step_by_hand():
    # Slices of 2 and 6 samples, |g|² 5 and 3, of the mean 2: S1 = (2·5 + 6·3)/8 = 3.5, 1/b = 2/8, 1/B = 1/8.
    signal, noise = moments([5.0, 3.0], mean=2.0, sizes=[2, 6])
    assert noise == pytest.approx((3.5 - 2.0) / (1 / 4 - 1 / 8))
    assert signal == pytest.approx((2.0 / 4 - 3.5 / 8) / (1 / 4 - 1 / 8))


def test_equal_slices_agree_with_the_formula_in_b_and_B():
    b, big, s1, s2 = 4, 32, 7.0, 3.0
    signal, noise = moments([s1] * 8, mean=s2, sizes=[b] * 8)
    assert signal == pytest.approx((big * s2 - b * s1) / (big - b))
    assert noise == pytest.approx((s1 - s2) / (1 / b - 1 / big))


def test_one_slice_alone_says_nothing():
    with pytest.raises(ValueError, match="slices smaller than the batch"):
        moments([1.0, 2.0], mean=1.0, sizes=[4, 0])
    estimator = NoiseScale(1)
    assert not estimator.observe([[1.0]], mean=[1.0], sizes=[4])
    assert estimator.scale is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_steps_with_nan_or_infinity_are_ignored_and_counted(bad: float):
    clean, dirty = NoiseScale(1), NoiseScale(1)
    for step in range(20):
        rows, mean = [[3.0 + step % 3], [5.0]], [2.0]
        assert clean.observe(rows, mean=mean, sizes=[4, 4])
        assert dirty.observe(rows, mean=mean, sizes=[4, 4])
        assert not dirty.observe([[bad], [5.0]], mean=mean, sizes=[4, 4])
        assert not dirty.observe(rows, mean=[bad], sizes=[4, 4])
    assert dirty.scale == clean.scale
    assert (dirty.count, dirty.ignored) == (20, 40)


def test_a_newcomer_goes_on_with_the_state_it_was_given():
    old, new = NoiseScale(2), NoiseScale(2)
    for _ in range(5):
        old.observe([[3.0, 1.0], [5.0, 2.0]], mean=[2.0, 1.0], sizes=[4, 4])
    new.load_state_dict(old.state_dict())
    for estimator in (old, new):
        estimator.observe([[4.0, 1.5], [6.0, 2.0]], mean=[2.5, 1.0], sizes=[4, 4])
    assert new.state_dict() == old.state_dict()
    assert new.scale == old.scale


def test_the_average_of_a_constant_is_that_constant_from_the_first_step_on():
    estimator = NoiseScale(1, halflife=50)
    for _ in range(3):
        estimator.observe([[5.0], [3.0]], mean=[2.0], sizes=[2, 6])
        assert estimator.pair() == pytest.approx(moments([5.0, 3.0], mean=2.0, sizes=[2, 6]))


def test_a_vanishing_gradient_gives_a_large_but_finite_noise_scale():
    estimator = NoiseScale(1)
    estimator.observe([[8.0], [8.0]], mean=[0.0], sizes=[4, 4])
    assert estimator.scale == pytest.approx(LIMIT * 8)


def test_groups_are_measured_apart_and_add_up():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD([{"params": part.parameters()} for part in model], lr=0.1)
    model(torch.randn(4, 7)).square().sum().backward()
    rows = GradNorms([optimizer]).squared()
    expected = [sum(float(p.grad.double().square().sum()) for p in part.parameters()) for part in model]  # type: ignore[union-attr]
    assert rows.tolist() == pytest.approx(expected, rel=1e-5)


def test_parameters_without_a_gradient_count_as_nothing():
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    used.grad = torch.full((3,), 2.0)
    optimizer = torch.optim.SGD([{"params": [used]}, {"params": [unused]}], lr=0.1)
    assert GradNorms([optimizer]).squared().tolist() == [pytest.approx(12.0), 0.0]


def test_large_tensors_are_summed_accurately():
    torch.manual_seed(0)
    big = torch.randn(64 * CHUNK + 17) * 0.01 + 0.001
    exact = float(big.double().square().sum())
    assert float(plain([big])) == pytest.approx(exact, rel=1e-4)
    # The control: one fp32 reduction over all of it is worse than the bound above allows.
    assert float(torch._foreach_norm([big])[0].double() ** 2) != pytest.approx(exact, rel=1e-4)


def test_channels_last_weights_are_measured_without_mixing_them_up():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(conv.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        conv(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)).square().sum().backward()
        optimizer.step()
    expected = 0.0
    for param in conv.parameters():
        state = optimizer.state[param]
        root = (state["exp_avg_sq"] / (1 - 0.999 ** state["step"].item())).sqrt() + 1e-8
        expected += float((param.grad.contiguous() / root.contiguous()).double().square().sum())  # type: ignore[union-attr]
    assert float(GradNorms([optimizer]).squared()[0]) == pytest.approx(expected, rel=1e-4)


def test_half_precision_gradients_are_not_summed_in_half_precision():
    grads = [torch.full((5000,), 0.5, dtype=torch.bfloat16)]
    assert float(plain(grads)) == pytest.approx(1250.0, rel=1e-6)


def test_measuring_copies_nothing_of_the_gradients_size():
    weight = nn.Parameter(torch.zeros(8 * CHUNK))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        GradNorms([optimizer]).squared()
    assert max(event.cpu_memory_usage for event in profile.events()) < CHUNK


def test_sampled_steps_are_a_function_of_the_step():
    sampling = Sampling(every=4, first=10)
    assert [step for step in range(24) if sampling.includes(step)] == [*range(10), 12, 16, 20]
    assert sampling.slices(3, 8) == set(range(8))
    assert [sorted(sampling.slices(step, 8)) for step in (12, 16, 20)] == [[3, 7], [0, 4], [1, 5]]


def test_two_measured_slices_are_as_right_as_all():
    problem = Quadratic(200, seed=4)
    found = NoiseScale(1, halflife=150)
    for _ in range(600):
        gradients = [problem.slice_gradient(8) for _ in range(SLICES)]
        mean = [float(torch.stack(gradients).mean(0).square().sum())]
        found.observe([[float(g.square().sum())] for g in gradients[2:4]], mean=mean, sizes=[8, 8], batch=64)
    signal, noise = problem.truth(torch.ones(200))
    assert found.scale == pytest.approx(noise / signal, rel=0.05)


@pytest.mark.parametrize("make", [torch.optim.Adamax, torch.optim.RMSprop, torch.optim.Adagrad])
def test_an_optimizer_without_second_moments_like_adams_is_measured_by_its_plain_gradient(make: type[torch.optim.Optimizer]):
    problem = Quadratic(200, seed=6)
    found, truth = run(problem, make([problem.weight], lr=1e-4), steps=300, sizes=[8] * 8)  # type: ignore[call-arg]
    assert found.count > 280
    assert found.scale == pytest.approx(truth.scale, rel=0.1)


def test_a_parameter_of_adam_that_has_no_second_moment_yet_is_not_counted():
    old, new = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([old, new])
    for _ in range(RIPE):
        old.grad = torch.ones(3)
        optimizer.step()
    norms = GradNorms([optimizer])
    assert norms.ripe()
    before = norms.squared().item()
    new.grad = torch.full((3,), 1e6)
    assert norms.squared().item() == before
    assert norms.of(new, new.grad) == []
    assert new not in optimizer.state, "looking at the state must not add to it"
