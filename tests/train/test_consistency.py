"""What workers compare in every exchange: nothing that is shared is left out, and equal states are equal whatever their layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stretto.train.consistency import PARTS, STATE, TENSORS, Consistency, checksum
from stretto.train.sharing.optimizer_hooks import OptimizerHooks
from stretto.train.sharing.shared_objects import SharedObjects


@pytest.fixture
def made():
    """A model with an optimizer's state, as a worker of its own has it."""
    opened: list[OptimizerHooks] = []

    def make(*, channels_last: bool) -> tuple[SharedObjects, Consistency]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 5))
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        shared = SharedObjects()
        shared.add({"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3)})
        opened.append(OptimizerHooks(shared))
        return shared, Consistency(shared, opened[-1])

    yield make
    for hooks in opened:
        hooks.close()


def checks(consistency: Consistency) -> list[dict[str, str]]:
    return [consistency.checks(part=part, order="", changes={}) for part in range(PARTS)]


def test_equal_states_are_equal_in_every_memory_layout(made):
    assert checks(made(channels_last=True)[1]) == checks(made(channels_last=False)[1])


def test_every_element_has_its_turn(made):
    shared, consistency = made(channels_last=False)
    before = checks(consistency)
    tensors = [*shared.tensors(), *(t for o in shared.optimizers for s in o.state.values() for t in s.values())]
    for tensor in tensors:
        flat = tensor.view(-1)
        for place in {0, flat.numel() // 2, flat.numel() - 1}:
            old = flat[place].clone()
            flat[place] += 1
            pairs = zip(before, checks(consistency), strict=True)
            assert [name for one, other in pairs for name in one if one[name] != other[name]] == [TENSORS], (tensor.shape, place)
            flat[place] = old
    assert checks(consistency) == before


def test_what_a_script_sets_outside_of_tensors_is_compared(made):
    shared, consistency = made(channels_last=False)
    first = consistency.checks(part=0, order="", changes={})

    def changed() -> set[str]:
        now = consistency.checks(part=0, order="", changes={})
        return {name for name in first if first[name] != now[name]}

    shared.objects["model"].eval()
    assert changed() == {"attributes of the modules"}
    shared.objects["model"].train()
    shared.objects["optimizer"].param_groups[0]["lr"] = 0.5
    assert changed() == {"settings of the optimizers"}
    shared.objects["optimizer"].param_groups[0]["lr"] = 1e-3
    shared.objects["model"][0].weight.requires_grad_(False)
    assert changed() == {"attributes of the modules"}
    shared.objects["model"][0].weight.requires_grad_(True)
    shared.state.best = 3
    assert changed() == {"shared state"}
    del shared.state.best
    assert not changed()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_one_bit_changes_a_checksum(dtype):
    tensor = torch.zeros(1000, dtype=dtype)
    before = checksum(tensor)
    tensor.view(torch.uint8)[777 % tensor.nbytes] = 1
    assert checksum(tensor) != before


def test_a_long_history_costs_no_more_than_a_short_one_and_its_end_is_compared():
    def told(values: list[float]) -> Any:
        shared = SharedObjects()
        shared.add({"history": {"loss": values}})
        hooks = OptimizerHooks(shared)
        try:
            consistency = Consistency(shared, hooks)
            return consistency.checks(part=0, order="", changes={})[STATE], consistency.details(STATE, part=0)
        finally:
            hooks.close()

    values = [0.5 * place for place in range(100_000)]
    usual, details = told(values)
    assert len(str(details)) < 2000
    assert usual == told(list(values))[0]
    assert usual != told([*values, 1.0])[0] and usual != told([*values[:-3], 1.0, *values[-2:]])[0]
